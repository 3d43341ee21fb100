"""Write the model card of a result: the source's metadata, what was done, what loading costs, how to load. Pure."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from sharding.core.text import format_bytes, name_some, source_name, unreached_sentence
from sharding.formats.model_card import ModelCard
from sharding.formats.names import MAP_NAME, PICTURE_NAME
from sharding.report.comparison import ComparisonSummary
from sharding.report.schema import Report
from sharding.report.snippets import how_to_check, loading_code, pipeline_commands, pipeline_script

TAGS = ("sharded", "shard-my-repo")
_ORIGINAL = "<!-- the card of the original -->"
_MOST_ROWS = 60
_BADGE = "https://huggingface.co/datasets/huggingface/badges/resolve/main/open-in-hf-spaces-sm.svg"
"""Published for such links by the Hub itself."""


@dataclass(frozen=True, slots=True)
class Links:
    """Addresses on the Hub: where the source lies there (None for a folder) and the page that shows the result.

    `base` is where the model lies that was trained, if there is one.
    """

    source: str | None = None
    result: str | None = None
    base: str | None = None


def write_card(
    report: Report, source: ModelCard, links: Links, *, is_private: bool, keeps_metadata: bool = True
) -> str:
    """Return the README.md of a result.

    Every key of the metadata of `source`, the card of the original, is kept; `base_model` and
    `tags` are set, a relative `license_link` is made absolute. A commit on no known branch gives no `base_model`.
    Without `keeps_metadata`, for metadata that a Hub does not take, the source's stands in the text instead.
    """
    import yaml  # type: ignore[import-untyped]

    metadata, body = dict(source.metadata), source.text.strip()
    if _ORIGINAL in body:  # the source is a result of ours: keep the card of the original, not a card of a card
        body = body.partition(_ORIGINAL)[2].partition("\n## The original's card\n")[2].strip()
    if metadata and not keeps_metadata:
        refused = yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True).replace("`", "'")
        body = f"The Hub does not take the metadata of this card:\n\n```yaml\n{refused}```\n\n{body}"
        metadata = {}
    _mark(metadata, report, links)
    sections = [
        f"---\n{yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True)}---\n",
        *_introduction(report, links, is_private),
        *_check(report),
        *_loading(report),
        *_shards(report),
        *_stages(report),
        *(_comparison(report.comparison) if report.comparison else ()),
        *_making(report, links),
    ]
    if body:
        sections += [_ORIGINAL, "## The original's card\n", body]
    return "\n".join(sections).rstrip() + "\n"


def _mark(metadata: dict[str, Any], report: Report, links: Links) -> None:
    tags = metadata.get("tags") or []
    tags = [tags] if isinstance(tags, str) else list(tags) if isinstance(tags, list) else []
    metadata["tags"] = [*tags, *(tag for tag in TAGS if tag not in tags)]
    origin, page = (report.source.base, links.base) if report.source.base else (report.source, links.source)
    if report.source.base or report.verification.unreached:
        metadata.pop("base_model_relation", None)  # how the base was made of another, as by quantizing it
    if report.verification.unreached:
        metadata.pop("base_model", None)  # whose words that are is not known
    elif page:
        metadata["base_model"] = origin.repo_id
    if page:
        link = metadata.get("license_link")
        if isinstance(link, str) and "://" not in link and not link.startswith("mailto:"):
            path = quote(link.removeprefix("./").lstrip("/"), safe="/#")
            metadata["license_link"] = f"{page}/blob/{origin.revision}/{path}"


def _introduction(report: Report, links: Links, is_private: bool) -> Iterable[str]:
    yield f"# {report.destination.repo_id.rpartition('/')[2]}\n"
    if links.result:
        yield f"[![See and check it on its page]({_BADGE})]({links.result})\n"
    for place in report.verification.unreached:
        yield f"**{_plain(unreached_sentence(place))}**\n"
    count = len(report.plan.shards)
    files = "one file" if count == 1 else f"{count} files of at most {format_bytes(report.plan.max_shard_bytes)}"
    part = f"{_part(report)}: a part of " if report.plan.rank is not None else ""
    proved = f" in {files}. {_proof(report)}" if report.verification.identical else "."
    sentence = f"{part}{_origin(report, links)}{proved}"
    yield f"{sentence[0].upper()}{sentence[1:]}\n"
    if count := report.source.in_pieces:
        yield (
            f"The source is what a training run has saved: {count:,} of its {report.source.tensors:,} tensors lay in "
            f"pieces in {len(report.source.weight_files)} files of its ranks, and are put together here.\n"
        )
    if base := report.source.base:
        name = (
            f"[{_plain(base.repo_id)}]({links.base}/tree/{base.revision})"
            if links.base
            else source_name(base.kind, f"`{_plain(base.repo_id)}`")
        )
        yield f"What is beside the weights (configuration, tokenizer, licence) is that of {name}, which was trained.\n"
    if report.plan.dequantized:
        yield (
            f"Its bits are computed, not moved: the original is quantized with {report.plan.dequantized}. Every number "
            f"was multiplied by its scale and rounded to {report.plan.dtype}; what was computed was hashed, and hashed "
            "again when it was read back. Nothing is won back of what quantizing has lost.\n"
        )
    yield f"![Every tensor as large as its bytes, in today's files and in those of the copy]({MAP_NAME})\n"
    if is_private and links.source:
        yield (
            f"The original is gated or private: [its page]({links.source}) says under which terms it is given, "
            "and they hold for this copy as well.\n"
        )
    if report.source.kind == "folder":
        yield "It was made from a folder, so there is no page of the original to link to.\n"


def _origin(report: Report, links: Links) -> str:
    source = report.source
    if not links.source:
        return source_name(source.kind, f"`{_plain(source.repo_id)}`")
    commit = f"[`{source.revision[:12]}`]({links.source}/tree/{source.revision})"
    return f"[{_plain(source.repo_id)}]({links.source}) at commit {commit}"


def _proof(report: Report) -> str:
    count = f"{report.verification.tensors:,}"
    if report.engine != "stream":
        return f"Loaded and saved by transformers and accelerate; all {count} tensors were read again and compared."
    lost, dtype = "", report.plan.dtype
    if report.plan.dequantized:
        claim = f"equalled what was computed of the original's numbers and scales in {dtype}"
    elif dtype == "keep":
        claim = "were bit-identical to the original's"
    else:
        claim = f"equalled the original's, cast to {dtype} as `tensor.to(dtype)` casts numbers"
    if report.verification.unstated:
        claim += ", as it was read: not all of its files were compared with a hash that the Hub states"
    if dtype != "keep":
        infinite = sum(report.overflowed.values())
        lost = f" {infinite:,} numbers were too large for it and became infinite." if infinite else ""
    return (
        f"Before it was published, every byte was read again: all {count} tensors {claim}; "
        f"`sharding_digests.json` has their BLAKE3.{lost}"
    )


def _check(report: Report) -> Iterable[str]:
    place = report.destination.repo_id if report.destination.kind == "hub" else "."
    for command in how_to_check(report, place).values():
        yield f"That is what this card says. To check it, read every byte of both:\n\n```sh\n{command}```\n"


def _loading(report: Report) -> Iterable[str]:
    repo = report.destination.repo_id if report.destination.kind == "hub" else f"./{report.destination.repo_id}"
    yield "## How to load it\n"
    if report.plan.rank is not None:
        yield "The other machines need parts of their own.\n"
    if script := pipeline_script(report, repo):
        yield f"As a pipeline of transformers, `pipeline.py` on every machine:\n\n```python\n{script}```\n"
        yield f"```sh\n{pipeline_commands(report, repo)}```\n"
    if report.plan.rank is not None:
        return
    source = report.source
    code = loading_code(repo, source.library, source.architecture, source.variant, source.weights_name)
    yield f"```python\n{code}\n```\n"


def _part(report: Report) -> str:
    cut, rank = report.plan.pipeline, report.plan.rank
    if cut is None or rank is None or rank >= len(cut.layers):
        return "of a pipeline"
    start, end = cut.layers[rank]
    return f"what rank {rank} of {len(cut.layers)} loads, layers {start} to {end - 1} of {cut.layers[-1][1]}"


def _shards(report: Report) -> Iterable[str]:
    total = sum(shard.bytes for shard in report.plan.shards) or 1
    yield "## Shards\n"
    rows = ["| file | tensors | size | share |", "|---|---:|---:|---:|"]
    for shard in report.plan.shards[:_MOST_ROWS]:
        share = f"{100 * shard.bytes / total:.1f}%"
        rows.append(f"| `{shard.file}` | {len(shard.tensors):,} | {format_bytes(shard.bytes)} | {share} |")
    if len(report.plan.shards) > _MOST_ROWS:
        rows.append(f"| and {len(report.plan.shards) - _MOST_ROWS:,} more | | | |")
    yield "\n".join(rows) + "\n"


def _stages(report: Report) -> Iterable[str]:
    cut = report.plan.pipeline
    if cut is None or not report.plan.stages:
        return
    needs = [
        f"- Stage {number} needs `{tied.file}` as well: {_plain(tied.tensor)} in it is "
        f"{_plain(name_some(tied.used_as))} too."
        for number, stage in enumerate(report.plan.stages, start=1)
        for tied in stage.also_needs
    ]
    besides = ", and what is named below the table" if needs else ""
    yield f"## Pipeline stages\n\nA machine that computes one stage needs that stage's files only{besides}."
    yield f"Cut where transformers {cut.transformers} cuts: stage 1 is rank 0.\n"
    rows = ["| stage | size | blocks | other tensors | files |", "|---:|---:|---:|---:|---|"]
    for number, stage in enumerate(report.plan.stages[:_MOST_ROWS], start=1):
        files = ", ".join(f"`{file}`" for file in dict.fromkeys([stage.files[0], stage.files[-1]]))
        between = f" ({len(stage.files):,} in all)" if len(stage.files) > 2 else ""
        size = format_bytes(stage.bytes)
        rows.append(f"| {number} | {size} | {len(stage.blocks):,} | {len(stage.others):,} | {files}{between} |")
    if len(report.plan.stages) > _MOST_ROWS:
        rows.append(f"| and {len(report.plan.stages) - _MOST_ROWS:,} more | | | | |")
    yield "\n".join(rows) + "\n"
    if needs:
        more = [f"- and {len(needs) - _MOST_ROWS:,} more."] if len(needs) > _MOST_ROWS else []
        stored = "Weights that two stages share are stored, and counted, once:\n"
        yield "\n".join([stored, *needs[:_MOST_ROWS], *more]) + "\n"


def _comparison(comparison: ComparisonSummary) -> Iterable[str]:
    yield f"## What loading costs\n\n{_plain(comparison.verdict.sentence)}\n"
    if not comparison.table:
        yield f"Not measured here: {_plain(comparison.reason_not_measured)}\n"
        return
    yield f"![Memory over time while the original and this copy are loaded and compute]({PICTURE_NAME})\n"
    headings, *sides = comparison.table
    lines = ("---", "---", *["---:"] * (len(headings) - 2))
    rows = (row + ("",) * (len(headings) - len(row)) for row in (headings, lines, *sides))
    yield "\n".join(f"| {' | '.join(row)} |" for row in rows) + f"\n\n{comparison.how}\n"


def _making(report: Report, links: Links) -> Iterable[str]:
    cost, version = report.resources, report.tool.rpartition(" ")[2]
    yield "## How it was made\n"
    yield (
        f"By Shard My Repo {version} on {report.finished:%Y-%m-%d} in {cost.seconds:.1f} s, with at most "
        f"{format_bytes(cost.peak_anon_bytes)} of memory. The whole report is `sharding_report.json`"
        + (f", shown on [its page]({links.result}).\n" if links.result else ".\n")
    )
    classic = report.comparison.classic if report.comparison else None
    if classic:
        time = f"{classic.seconds:.1f} s" if classic.seconds is not None else "not run"
        yield (
            "| the job itself | time | peak anonymous memory | disk |\n|---|---:|---:|---:|\n"
            f"| streaming, with transfer and proof | {cost.seconds:.1f} s | {format_bytes(cost.peak_anon_bytes)} "
            f"| {format_bytes(cost.disk_bytes_written)} |\n"
            f"| classic: load, save, load again | {time} | {format_bytes(classic.peak_anon_bytes)} "
            f"| {format_bytes(classic.disk_bytes)} |\n"
        )
        if classic.reason_not_run:
            yield f"The classic way was not run, its figures are predictions: {_plain(classic.reason_not_run)}\n"


def _plain(text: str) -> str:
    """Return text that is no markup: names come from files of strangers."""
    return re.sub(r"([\\`*_\[\]<>|#!])", r"\\\1", " ".join(text.split()))
