"""Read and write what lies beside the shards of a result: report, card, pictures, index."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from sharding.checkpoint.documents import read_small
from sharding.core.environment import result_page
from sharding.core.errors import DestinationError, Remedy, SourceError
from sharding.core.limits import MAX_CARD_BYTES, MAX_SHOWN_REPORT_BYTES, MAX_SHOWN_REPORT_VALUES
from sharding.core.protocols import Files, Inputs
from sharding.core.text import format_bytes, json_file, values_in
from sharding.core.values import Content, FileEntry, Plan, ShardRecord
from sharding.drawing.map_svg import draw_plan
from sharding.formats.file_formats import format_of
from sharding.formats.model_card import ModelCard, parse_card
from sharding.formats.names import CARD_NAME, DIGESTS_NAME, MAP_NAME, PICTURE_NAME, REPORT_NAME
from sharding.report.card import write_card
from sharding.report.report import digests_json
from sharding.report.schema import Report, parse_report, to_json
from sharding.storage.hub.client import Hub
from sharding.storage.hub.lookup import Lookup
from sharding.storage.locate import open_inputs
from sharding.storage.names import parse_address


def read_card(origin: Files) -> ModelCard:
    """Return the card of `origin`, of a base only the metadata, an empty one if there is none. Raises SourceError."""
    file = next((file for file in origin.files if file.path == CARD_NAME), None)
    if file is None:
        return ModelCard()
    if file.bytes > MAX_CARD_BYTES:
        return ModelCard(problem=f"the file is larger than {format_bytes(MAX_CARD_BYTES)}")
    card = parse_card(read_small(origin, file, MAX_CARD_BYTES).decode("utf-8-sig", errors="replace"))
    return replace(card, text="") if file.source else card


def write_beside(
    report: Report,
    checkpoint: Content,
    plan: Plan,
    records: Mapping[str, ShardRecord],
    origin: Inputs,
    original: ModelCard,
    hub: Hub,
) -> dict[str, bytes]:
    """Return name to content of every file that this tool writes beside the shards. `original` is `origin`'s card."""
    target = report.destination
    result = result_page(target.repo_id) if target.is_pinned else None
    write = partial(write_card, report, original, hub.endpoint, result, is_private=bool(origin.is_private))
    card = write()
    if target.is_pinned and not hub.ask(target.repo_id, DestinationError, lambda: hub.takes_card(card)):
        card = write(keeps_metadata=False)
    files = {
        CARD_NAME: card.encode(),
        MAP_NAME: draw_plan(checkpoint, plan).encode(),
        DIGESTS_NAME: json_file(digests_json(plan, report.plan_id, records)),
        REPORT_NAME: json_file(to_json(report)),
    }
    if report.comparison and report.comparison.picture:
        files[PICTURE_NAME] = report.comparison.picture.encode()
    return files | dict(format_of(plan).beside(plan)) | dict(plan.written)


@dataclass(frozen=True, slots=True)
class Result:
    """A repo at one commit, its files, and the report in it."""

    repo_id: str
    revision: str
    files: tuple[FileEntry, ...]
    report: Report


def read_result(place: str, *, endpoint: str, token: str | None = None) -> Result:
    """Return the untrusted result in the repo at `place`: "owner/name[@revision]", or a link. Raises SourceError."""
    link, address = Lookup(endpoint).link(place), parse_address(place, endpoint)
    if address.inside:
        raise SourceError(f"{place[:200]} is a folder in a repo. A result is a whole repo.", "Name the repo alone.")
    source = open_inputs({"model": link}, Hub(endpoint, token))
    entry = next((file for file in source.files if file.path == REPORT_NAME), None)
    if entry is None:
        raise SourceError(
            f"{source.ref.repo_id} has no {REPORT_NAME}, so there is no result to show.",
            "Only repos that this tool made have a result.",
            Remedy("plan_repo", replace(address, repo_id=source.ref.repo_id).text),
        )
    text = read_small(source, entry, MAX_SHOWN_REPORT_BYTES)
    refuse_costly(text, source.ref.repo_id)
    return Result(source.ref.repo_id, source.ref.revision, source.files, parse_report(text, source.ref.repo_id))


def refuse_costly(text: bytes, repo_id: str) -> None:
    """Raise SourceError if the report in `repo_id` has too many values: they need far more memory than its bytes."""
    if values_in(text) > MAX_SHOWN_REPORT_VALUES:
        raise SourceError(
            f"The {REPORT_NAME} of {repo_id} holds more than a page can show.",
            "Compare the models with `shard-my-repo verify`, which has no such limit.",
        )
