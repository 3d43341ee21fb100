"""Offer the work of the page to programs: as endpoints of Gradio's HTTP API, which are also MCP tools."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

import gradio as gr
from gradio.events import api

from sharding.checkpoint.gguf import EVERY
from sharding.core.errors import Refused, ShardingError, TooManyTensors, unforeseen
from sharding.core.option import Option
from sharding.core.options import Options, of_tool
from sharding.desk import JobRequest
from sharding.desk.questions import patient
from sharding.page.links import Wish, query_of
from sharding.page.site import Asked, Refusal
from sharding.report.report import inspection_json, summarize_plan
from sharding.report.schema import Json, to_json

_MOST_MISMATCHES = 1_000
_NO_LOGIN: Refusal = ("Jobs need a login.", "Send your token in the header `Authorization: Bearer hf_...`.", None)
_KEPT_BACK = (
    *("written", "reread", "times", "bytes", "process", "result", "expected_seconds", "seconds"),
    *("peak_anon_bytes", "disk_bytes_written", "outcome"),
)
"""What a program is not told of a job, or reads in its report."""


def _endpoint(tool: str = "") -> Callable[[Callable[..., Json]], Callable[..., Json]]:
    """Return a decorator for what programs call: it adds every option of `tool` as a parameter to a method that takes
    keyword arguments. It refuses names and choices that are no text, and tells what went wrong and what to do."""
    options = of_tool(tool)

    def give(method: Callable[..., Json]) -> Callable[..., Json]:
        own = inspect.signature(method)
        named = [one for one in own.parameters.values() if one.kind is not one.VAR_KEYWORD]
        signature = own.replace(parameters=[*named, *map(_parameter, options)])

        @wraps(method)
        def answer(*values: Any, **more: Any) -> Json:
            given = signature.bind(*values, **more)
            given.apply_defaults()
            chosen = [(option, given.arguments.pop(option.tool_name)) for option in options]
            texts = [value for name, value in given.arguments.items() if name not in ("self", "request")]
            texts += [value for one, value in chosen if (one.kind is str or one.choices) and value != one.default]
            if not all(isinstance(text, str) for text in texts):
                raise gr.Error("Names, sizes and choices must be text.", print_exception=False)
            try:
                return method(**given.arguments, **{one.name: _value(one, value) for one, value in chosen})
            except (ShardingError, MemoryError) as error:
                known = error if isinstance(error, ShardingError) else unforeseen(error)
                raise gr.Error(f"{known.message} {known.hint}".rstrip(), print_exception=False) from error

        lines = [f"            {option.tool_name}: {option.help}" for option in options]
        answer.__signature__ = signature  # type: ignore[attr-defined]
        hints = {one.name: one.annotation for one in signature.parameters.values()}
        answer.__annotations__ = hints | {"return": signature.return_annotation}
        answer.__doc__ = "\n".join([(method.__doc__ or "").rstrip(), *lines]) + "\n"
        return answer

    return give


def _parameter(option: Option) -> inspect.Parameter:
    kind, default = (option.kind, option.default) if option.on is None else (bool, False)
    kind = str if option.name == "max_shard_size" else kind
    usual = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Parameter(option.tool_name, usual, default=default, annotation=kind)


def _value(option: Option, given: Any) -> Any:
    """Return the value of an option for the `given` argument. An invalid one stays as it is and is refused later."""
    return given if option.on is None else option.on if given else option.default


@dataclass(frozen=True, slots=True)
class Endpoints(Asked):
    """The endpoints. Programs and language models read the docstrings of the methods."""

    def add(self) -> None:
        """Add the endpoints to the page that is being built."""
        for endpoint in (self.inspect, self.plan, self.shard, self.status, self.result, self.compare):
            answer = patient(endpoint)
            answer.__signature__ = inspect.signature(endpoint)  # type: ignore[attr-defined] # as bound: without self
            api(answer, api_name=endpoint.__name__, concurrency_limit=None)

    @_endpoint("inspect")
    def inspect(self, source: str, request: gr.Request, **chosen: Any) -> Json:
        """Describe a model checkpoint on the Hugging Face Hub: architecture, parameters, dtypes, files and sizes.

        Call it before you plan a copy. It reads only headers, no weights. A public repo needs no login. For a private
        or gated repo, send a token that can read it in the header `Authorization: Bearer hf_...`.

        It answers with an object: `architecture`, `total_parameters`, `total_bytes`, `tensors` (their number), `dtypes`
        (bytes of each), `weight_files`, `other_variants` of the weights, and `findings` (warnings and notes). For GGUF
        files it has `models` too: the `name`, `variant`, `files`, `bytes`, `tensors` and `dtypes` of each.

        Args:
            source: the repo, as "owner/name", "owner/name@revision/folder" or a link to it
        """
        token, asked = self.site.token(request), Options(**chosen)
        try:
            every = replace(asked, variant=asked.variant or EVERY)
            return inspection_json(self.desk.models.inspect(source, every, token))
        except TooManyTensors:
            return to_json(self.desk.models.overview(source, asked, token, _session(request)).source)

    @_endpoint("plan")
    def plan(self, source: str, request: gr.Request, **chosen: Any) -> Json:
        """Plan a copy of a model checkpoint: which files it would have, and which tensors each file would hold.

        Call it before `shard` to choose a size. It reads only headers and writes nothing. A public repo needs no login.
        For a private or gated repo, send a token that can read it in the header `Authorization: Bearer hf_...`.

        It answers with an object. `shards` lists the files, each with `file`, `bytes` and the names of its `tensors`.
        `total_bytes` and `weight_map` are those of all files. `findings` are warnings and notes, such as a tensor
        larger than the limit. Plans with the same `plan_id` give the same files, byte for byte.

        Args:
            source: the repo, as "owner/name", "owner/name@revision/folder" or a link to it
        """
        token = self.site.token(request)
        checkpoint, plan = self.desk.models.plan(source, Options(**chosen), token, _session(request))
        return to_json(summarize_plan(plan, checkpoint.findings))

    @_endpoint("shard")
    def shard(self, source: str, destination: str, request: gr.Request, **chosen: Any) -> Json:
        """Start a job that copies a model checkpoint to another repo, in files up to a given size.

        The job writes the files, reads them back, and publishes the copy only if every tensor matches its source. It
        needs your Hugging Face token, with the right to write to `destination`, in the header
        `Authorization: Bearer hf_...`. You can have one job at a time.

        It answers at once, before the copy is made, with an object: `job` is the id of the job, and `link` opens its
        page. Call `status` with the id until the job has ended.

        Args:
            source: the repo to copy, as "owner/name", "owner/name@revision/folder" or a link to it
            destination: the repo to write, as "owner/name". It is created if it does not exist.
        """
        job = self.desk.submit(JobRequest.of(source, destination, chosen), *self.signed_in(request, None, _NO_LOGIN))
        return {"job": job, "link": self.site.address(request) + query_of(Wish(job=job))}

    @_endpoint()
    def status(self, job: str, request: gr.Request) -> Json:
        """Report the status of a job that you started with `shard`: its state, progress and log, and later its report.

        It needs a token of the account that started the job, in the header `Authorization: Bearer hf_...`. A job is
        kept for a day after it has ended.

        It answers with an object. `state` is "queued", "running", "cancelling", "done", "failed", "cancelled" or
        "interrupted". `position` counts the jobs before it in the queue, `progress` the bytes done, and `log` has
        readable lines. `error` is a sentence and a hint, or null. Once the job is done, `published` names the new
        commit, and `report` has the verification and what the job cost. To resume an interrupted job, call `shard`
        again with the same arguments.

        Args:
            job: the id that `shard` answered with
        """
        status = self.desk.status(job, self.signed_in(request, None, _NO_LOGIN)[0].name)
        if status is None:
            hint = "Send a token of the account that started it. Jobs are kept for a day."
            raise Refused("You have no job with this id.", hint)
        document = to_json(replace(status, written={}, reread={}))  # they grow with the files
        for name in _KEPT_BACK:
            del document[name]
        if document["progress"]:
            del document["progress"]["files"]  # since the last event, which the caller may not have seen
        asked = document["request"]
        asked |= asked.pop("options")
        asked["compare"] = bool(asked.pop("compare_rounds"))
        if document["published"]:
            document["published"] |= document["published"].pop("ref")
        return document

    @_endpoint()
    def result(self, repo: str, request: gr.Request) -> Json:
        """Return the report of a finished copy from its repo: how it was made, the verification, and what it cost.

        Call it to check a copy that you or somebody else made. A public repo needs no login. For a private repo, send a
        token that can read it in the header `Authorization: Bearer hf_...`.

        It answers with an object: `repo_id`, `revision`, `trust` and `report`. Anybody can write a report, so look at
        `trust` first: it has a `level` and the `reasons` for it. At "made-here" or "read-now", this page has read every
        byte itself. At "stated", it made the copy, compared the hashes that the Hub states, and read only a sample. At
        "fits", the files and headers of both repos agree with the report. At "unreached", the commit of the copy or of
        its source is on no known branch or tag. At "claims", there is nothing to compare the report with. At
        "contradicted", something does not match, and `report` is null.

        Args:
            repo: the copy, as "owner/name", "owner/name@revision" or a link to it
        """
        result, trust = self.desk.results.judge(repo, self.site.token(request))
        return {
            "repo_id": result.repo_id,
            "revision": result.revision,
            "trust": to_json(trust),
            "report": to_json(result.report) if trust.level != "contradicted" else None,
        }

    @_endpoint()
    def compare(self, original: str, copy: str, request: gr.Request, variant: str = "") -> Json:
        """Compare two model checkpoints without reading weights: names, shapes and dtypes of tensors, hashes of files.

        Call it to find out whether a copy can be the same model. A public repo needs no login. For a private or gated
        repo, send a token that can read it in the header `Authorization: Bearer hf_...`.

        It answers with an object. `verdict` is "different", "converted" (`made` says how),
        "same-structure" or "same-files" (the Hub states the same hashes). `mismatched` counts the tensors that differ,
        and `mismatches` lists the first thousand. `unread` are weight files of the copy that are not compared.
        `in_same_files` counts the tensors whose bytes are equal because their files have equal hashes. `claims`
        compares digests that both repos store: anybody can write these, so they prove nothing. `trust` has a `level`
        and the `reasons` for it. Only at "made-here" and "read-now" has this page read every tensor of both. `caveats`
        say what that does not cover.

        Args:
            original: the repo to compare with, as "owner/name", "owner/name@revision/folder" or a link to it
            copy: the repo that may be a copy, in the same form
            variant: which weights of the original to compare, such as fp16
        """
        token = self.site.token(request)
        likeness, trust = self.desk.results.compare(original, copy, token, _session(request), variant)
        shown = replace(likeness, mismatches=likeness.mismatches[:_MOST_MISMATCHES])
        return {**to_json(shown), "mismatched": len(likeness.mismatches), "trust": to_json(trust)}


def _session(request: gr.Request) -> str | None:
    return None if request.headers.get("x-gradio-user") == "mcp" else request.session_hash
