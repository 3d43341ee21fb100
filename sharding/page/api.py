"""The same work for programs: endpoints of Gradio's HTTP API, which are MCP tools as well."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import gradio as gr
from gradio.events import api

from sharding.core.errors import Refused, ShardingError, TooManyTensors, unforeseen
from sharding.core.options import OPTIONS, Options
from sharding.desk import Desk, JobRequest
from sharding.desk.patience import patient
from sharding.page.links import Wish, query_of
from sharding.page.parameters import taking_options
from sharding.page.site import Site, person
from sharding.report.report import summarize_plan, summarize_source
from sharding.report.schema import Json, to_json
from sharding.storage.hub.answers import Person


class Endpoints:
    """What a program may ask. Programs and language models read these docstrings."""

    def __init__(self, desk: Desk, site: Site) -> None:
        """Answer from `desk`; the caller is who the `Authorization` header of a request says."""
        self._desk = desk
        self._site = site

    def add(self) -> None:
        """Add the endpoints to the page that is being built."""
        for endpoint in (self.inspect, self.plan, self.shard, self.status, self.result):
            answer = patient(endpoint)
            answer.__signature__ = inspect.signature(endpoint)  # type: ignore[attr-defined] # as bound: without self
            api(answer, api_name=endpoint.__name__, concurrency_limit=None)

    @taking_options("inspect")
    def inspect(self, source: str, request: gr.Request, **chosen: Any) -> Json:
        """Say what a model checkpoint on the Hub holds, from its headers only: architecture, parameters, dtypes, files.

        Args:
            source: the repo, as "owner/name", "owner/name@revision" or a link to it
        """
        with _api_errors(source, *_texts(chosen)):
            token = self._site.token(request)
            try:
                return to_json(summarize_source(self._desk.inspect(source, token=token, **chosen)))
            except TooManyTensors:
                overview = self._desk.overview(source, token=token, session=_session(request), **chosen)
                return to_json(overview.source)

    @taking_options("plan")
    def plan(self, source: str, request: gr.Request, **chosen: Any) -> Json:
        """Say which files a model checkpoint would be cut into. Moves no weights and needs no login.

        Args:
            source: the repo, as "owner/name", "owner/name@revision" or a link to it
        """
        with _api_errors(source, *_texts(chosen)):
            token = self._site.token(request)
            checkpoint, plan = self._desk.plan(source, Options(**chosen), token, _session(request))
            return to_json(summarize_plan(plan, checkpoint.findings))

    @taking_options("shard")
    def shard(self, source: str, destination: str, request: gr.Request, **chosen: Any) -> Json:
        """Start a job that copies a model checkpoint into files of at most the given size, verifies and pushes them.

        Answers at once with the job's id and link; ask `status` how it is. Needs the caller's Hugging Face token in
        the header `Authorization: Bearer hf_...`, with the right to write to the destination.

        Args:
            source: the repo, as "owner/name", "owner/name@revision" or a link to it
            destination: the repo to write, as "owner/name"; it is created if there is none
        """
        with _api_errors(source, destination, *_texts(chosen)):
            caller, token = self._caller(request)
            job = self._desk.submit(JobRequest.of(source, destination, chosen), caller, token)
            return {"job": job, "link": self._site.address(request) + query_of(Wish(job=job))}

    def status(self, job: str, request: gr.Request) -> Json:
        """Say how a job of the caller is: state, place in the queue, progress, log, and the report once it is done.

        Needs the token of the one who started it, in the header `Authorization: Bearer hf_...`.

        Args:
            job: the id that `shard` answered with
        """
        with _api_errors(job):
            status = self._desk.status(job, self._caller(request)[0].name)
            if status is None:
                raise Refused("There is no such job of yours.", "Jobs are kept for a day.")
            document = to_json(status)
            asked = document["request"]
            asked |= asked.pop("options")
            asked["compare"] = bool(asked.pop("compare_rounds"))
            if document["published"]:
                document["published"] |= document["published"].pop("ref")
            return document

    def result(self, repo: str, request: gr.Request) -> Json:
        """Return the report of a finished job from the repo that it made: what was done, the proof, what it cost.

        The report may be anybody's: `trust` says how far to rely on it. Its level is "made-here" or "read-now" where
        this page itself has read every byte, "fits" where files and headers of both repos agree with it, "unreached"
        where one of both is on no known branch, "claims" where there is nothing to compare with, and "contradicted",
        without the report, where something does not fit.

        Args:
            repo: the result, as "owner/name", "owner/name@revision" or a link to it
        """
        with _api_errors(repo):
            result, trust = self._desk.judge(repo, self._site.token(request))
            return {
                "repo_id": result.repo_id,
                "revision": result.revision,
                "trust": to_json(trust),
                "report": to_json(result.report) if trust.level != "contradicted" else None,
            }

    def _caller(self, request: gr.Request) -> tuple[Person, str]:
        token = self._site.token(request)
        who = person(self._desk, token)
        if who is None or token is None:
            raise Refused("This needs a login.", "Send your token in the header `Authorization: Bearer hf_...`.")
        return who, token


def _session(request: gr.Request) -> str | None:
    """Return the session of who asks, None for the one that Gradio 6.31 has for the calls of all tools together."""
    return None if request.headers.get("x-gradio-user") == "mcp" else request.session_hash


def _texts(chosen: Mapping[str, Any]) -> Iterator[Any]:
    """Yield what was given for options that take text."""
    return (value for name, value in chosen.items() if OPTIONS[name].is_text)


@contextmanager
def _api_errors(*texts: object) -> Iterator[None]:
    """Tell the caller what went wrong and what helps; `texts` come from anybody, so that they may be anything."""
    if not all(isinstance(text, str) for text in texts):
        raise gr.Error("A name, a size or a choice is a text.", print_exception=False)
    try:
        yield
    except (ShardingError, MemoryError) as error:
        known = error if isinstance(error, ShardingError) else unforeseen(error)
        raise gr.Error(f"{known.message} {known.hint}".rstrip(), print_exception=False) from error
