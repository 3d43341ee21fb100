"""Write the model card of a result. Pure."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from sharding.core.made import explained, phrase
from sharding.core.origin import Place
from sharding.core.text import format_bytes, name_some, share, unreached_sentence
from sharding.formats.model_card import ModelCard
from sharding.formats.names import MAP_NAME, PICTURE_NAME
from sharding.report.comparison import ComparisonSummary
from sharding.report.schema import Report
from sharding.report.snippets import gguf_snippets, how_to_check, loading_code, pipeline_snippets

TAGS = ("sharded", "shard-my-repo")
_ORIGINAL = "<!-- the card of the original -->"
_MOST_ROWS = 60
_BADGE = "https://huggingface.co/datasets/huggingface/badges/resolve/main/open-in-hf-spaces-sm.svg"
"""The Hub publishes this badge for such links."""


def write_card(
    report: Report,
    source: ModelCard,
    endpoint: str,
    result: str | None,
    *,
    is_private: bool,
    keeps_metadata: bool = True,
) -> str:
    """Return the README.md of a result, which the page at `result` shows. `source` is the original's card. Its metadata
    is kept, with `base_model` and `tags` set, or goes into the text without `keeps_metadata`."""
    import yaml  # type: ignore[import-untyped]

    metadata, body = dict(source.metadata), source.text.strip()
    if _ORIGINAL in body:  # the source has a card of ours: keep only the card of its original
        body = body.partition(_ORIGINAL)[2].partition("\n## The original's card\n")[2].strip()
    if metadata and not keeps_metadata:
        refused = yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True).replace("`", "'")
        body = f"The Hub does not accept the metadata of this card:\n\n```yaml\n{refused}```\n\n{body}"
        metadata = {}
    _mark(metadata, report, endpoint)
    sections = [
        f"---\n{yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True)}---\n",
        *_introduction(report, endpoint, result, is_private),
        *_loading(report),
        *_shards(report),
        *_stages(report),
        *(_comparison(report.comparison) if report.comparison else ()),
        *_making(report, result),
    ]
    if body:
        sections += [_ORIGINAL, "## The original's card\n", body]
    return "\n".join(sections).rstrip() + "\n"


def _mark(metadata: dict[str, Any], report: Report, endpoint: str) -> None:
    tags = metadata.get("tags") or []
    tags = [tags] if isinstance(tags, str) else list(tags) if isinstance(tags, list) else []
    metadata["tags"] = [*tags, *(tag for tag in TAGS if tag not in tags)]
    base = report.source.of("base")
    origin = base or report.source.place
    relations = [change.relation for change in report.plan.made if change.relation]
    if base or report.verification.unreached or relations:
        metadata.pop("base_model_relation", None)  # it says how the base was made, for example by quantizing
    if report.verification.unreached:
        metadata.pop("base_model", None)  # anybody may have written it
    elif origin.is_pinned:
        metadata["base_model"] = origin.repo_id
        if relations:
            metadata["base_model_relation"] = relations[0]
    link = metadata.get("license_link")
    if origin.is_pinned and isinstance(link, str) and "://" not in link and not link.startswith("mailto:"):
        path = quote(link.removeprefix("./").lstrip("/"), safe="/#")
        metadata["license_link"] = f"{endpoint}/{origin.repo_id}/blob/{origin.revision}/{path}"


def _introduction(report: Report, endpoint: str, result: str | None, is_private: bool) -> Iterable[str]:
    yield f"# {report.destination.repo_id.rpartition('/')[2]}\n"
    if result:
        yield f"[![See and check it on its page]({_BADGE})]({result})\n"
    for place in report.verification.unreached:
        yield f"**{_plain(unreached_sentence(place))}**\n"
    count = len(report.plan.shards)
    files = "one file" if count == 1 else f"{count} files of at most {format_bytes(report.plan.max_shard_bytes)}"
    origin = _link(report.source.place, endpoint)
    what = f"a copy of {origin}" if report.plan.rank is None else f"the part of {origin} for {_part(report)}"
    what += phrase(report.plan.made, lambda place: _link(place, endpoint)) + "," * bool(report.plan.made)
    proved = f" in {files}. {_proof(report)}" if report.verification.may_be_published else "."
    yield f"This is {what}{proved}\n"
    if count := report.source.in_pieces:
        yield (
            f"The source was saved by a training run: {count:,} of its {report.source.tensors:,} tensors were in "
            f"pieces, in {len(report.source.weight_files)} files of its ranks. Here they are whole.\n"
        )
    if base := report.source.of("base"):
        beside = "The files beside the weights (configuration, tokenizer, licence)"
        yield f"{beside} come from {_link(base, endpoint)}, the model that was trained.\n"
    for sentences in explained(report.plan.made):
        yield f"{sentences}\n"
    yield f"![A map of all tensors, sized by their bytes, in the files of the original and of the copy]({MAP_NAME})\n"
    if is_private and report.source.beside:
        yield "The original or another input is gated or private. Their terms hold for this copy too.\n"
    elif is_private and (page := replace(report.source.place, revision="", inside="").page(endpoint)):
        yield f"The original is gated or private. The terms on [its page]({page}) hold for this copy too.\n"
    if not report.source.place.is_pinned:
        yield "The original is a folder, so there is no page to link to.\n"


def _link(place: Place, endpoint: str) -> str:
    """Return the name of an input with a link to the commit that was read. A folder has no page."""
    if not place.is_pinned:
        return f"the folder `{_plain(place.name)}`"
    page = replace(place, revision="", inside="").page(endpoint)
    return f"[{_plain(place.name)}]({page}) at commit [`{place.revision[:12]}`]({place.page(endpoint)})"


def _proof(report: Report) -> str:
    count = f"{report.verification.tensors:,}"
    if report.engine != "stream":
        first = "It was loaded and saved by transformers and accelerate."
        return f"{first} Then all {count} tensors were read again and compared."
    if (proof := report.verification).evidence.read == "stated":
        hashes = f"the SHA-256{' and Xet hash' * proof.evidence.xet} of every file as it was sent"
        read = f"{proof.sample} of the weights were read again. The rest was not"
        return (
            f"Before it was published, the Hub stated {hashes}, and {read}. The reads of the original were not checked."
        )
    unstated, done = "", phrase(report.plan.made, lambda place: _plain(place.name))
    claim = f"were equal to the original's{done}" if done else "were bit-identical to the original's"
    if report.verification.unstated:
        claim += ", as it was read"
        unstated = " Not all files of the original were compared with a hash that the Hub states."
    infinite = sum(report.overflowed.values())
    lost = f" {infinite:,} numbers were too large for their new dtype and became infinite." if infinite else ""
    return (
        f"Before it was published, every byte was read again: all {count} tensors {claim}. "
        f"`sharding_digests.json` has their BLAKE3.{unstated}{lost}"
    )


def _loading(report: Report) -> Iterable[str]:
    is_repo, name = report.destination.is_pinned, report.destination.repo_id
    for command in how_to_check(report, name if is_repo else ".").values():
        yield f"Anybody can write such a card. To check this one, read every byte of both:\n\n```sh\n{command}```\n"
    repo = name if is_repo else f"./{name}"
    yield "## How to load it\n"
    if report.plan.rank is not None:
        yield "Each of the other machines needs its own part.\n"
    if snippets := pipeline_snippets(report, repo):
        script, commands = snippets.values()
        yield f"To load it as a pipeline, run this `pipeline.py` on every machine:\n\n```python\n{script}```\n"
        yield f"```sh\n{commands}```\n"
    if lines := gguf_snippets(report, repo):
        yield f"```sh\n{''.join(lines.values())}```\n"
    elif report.plan.rank is None:
        source = report.source
        code = loading_code(repo, source.library, source.architecture, source.variant, source.weights_name)
        yield f"```python\n{code}\n```\n"


def _part(report: Report) -> str:
    cut, rank = report.plan.pipeline, report.plan.rank
    if cut is None or rank is None or rank >= len(cut.layers):
        return "one rank of a pipeline"
    start, end = cut.layers[rank]
    return f"rank {rank} of {len(cut.layers)} (layers {start} to {end - 1} of {cut.layers[-1][1]})"


def _shards(report: Report) -> Iterable[str]:
    total = sum(shard.bytes for shard in report.plan.shards)
    yield "## Shards\n"
    rows = [
        f"| `{one.file}` | {len(one.tensors):,} | {format_bytes(one.bytes)} | {share(one.bytes, total)} |"
        for one in report.plan.shards
    ]
    yield _table("| file | tensors | size | share |", "|---|---:|---:|---:|", rows)


def _stages(report: Report) -> Iterable[str]:
    cut = report.plan.pipeline
    if cut is None or not report.plan.stages:
        return
    needs, rows = [], []
    for number, stage in enumerate(report.plan.stages, start=1):
        files = ", ".join(f"`{file}`" for file in dict.fromkeys([stage.files[0], stage.files[-1]]))
        between = f" ({len(stage.files):,} in all)" if len(stage.files) > 2 else ""
        size = format_bytes(stage.bytes)
        rows.append(f"| {number} | {size} | {len(stage.blocks):,} | {len(stage.others):,} | {files}{between} |")
        for tied in stage.also_needs:
            what = f"{_plain(tied.tensor)} in that file is {_plain(name_some(tied.used_as))} here too."
            needs.append(f"- Stage {number} also needs `{tied.file}`: {what}")
    besides = ", and the files that are named below the table" if needs else ""
    yield f"## Pipeline stages\n\nA machine that computes one stage needs only the files of that stage{besides}."
    yield f"The model is cut where transformers {cut.transformers} cuts it. Stage 1 is rank 0.\n"
    yield _table("| stage | size | blocks | other tensors | files |", "|---:|---:|---:|---:|---|", rows)
    if needs:
        more = [f"- and {len(needs) - _MOST_ROWS:,} more."] if needs[_MOST_ROWS:] else []
        stored = "Weights that two stages share are stored and counted once:\n"
        yield "\n".join([stored, *needs[:_MOST_ROWS], *more]) + "\n"


def _table(headings: str, columns: str, rows: Sequence[str]) -> str:
    """Return a table of at most `_MOST_ROWS` rows; the others are counted."""
    more = [f"| and {len(rows) - _MOST_ROWS:,} more {'| ' * (columns.count('|') - 1)}"] if rows[_MOST_ROWS:] else []
    return "\n".join([headings, columns, *rows[:_MOST_ROWS], *(row.rstrip() for row in more)]) + "\n"


def _comparison(comparison: ComparisonSummary) -> Iterable[str]:
    yield f"## What loading costs\n\n{_plain(comparison.verdict.sentence)}\n"
    if not comparison.table:
        yield f"Not measured here: {_plain(comparison.reason_not_measured)}\n"
        return
    shown = "the original and this copy load and compute" if comparison.original else "this copy loads and computes"
    yield f"![Memory over time while {shown}]({PICTURE_NAME})\n"
    headings, *sides = comparison.table
    lines = ("---", "---", *["---:"] * (len(headings) - 2))
    rows = (row + ("",) * (len(headings) - len(row)) for row in (headings, lines, *sides))
    yield "\n".join(f"| {' | '.join(row)} |" for row in rows) + f"\n\n{comparison.how}\n"


def _making(report: Report, result: str | None) -> Iterable[str]:
    cost, version = report.resources, report.tool.rpartition(" ")[2]
    yield "## How it was made\n"
    shown = f", and [its page]({result}) shows it" if result else ""
    yield (
        f"Shard My Repo {version} made this copy on {report.finished:%Y-%m-%d} in {cost.seconds:.1f} s, with at most "
        f"{format_bytes(cost.peak_anon_bytes)} of memory. The whole report is in `sharding_report.json`{shown}.\n"
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
            yield f"The classic way was not run, so its figures are predictions: {_plain(classic.reason_not_run)}\n"


def _plain(text: str) -> str:
    """Return `text` escaped for Markdown. Names may come from files of strangers."""
    return re.sub(r"([\\`*_\[\]<>|#!])", r"\\\1", " ".join(text.split()))
