"""Read the card of a source, and write the files beside the shards of a result: report, card, pictures, index."""

from collections.abc import Mapping
from dataclasses import replace

from sharding.checkpoint.documents import read_small
from sharding.core.environment import result_page
from sharding.core.errors import DestinationError
from sharding.core.limits import MAX_CARD_BYTES
from sharding.core.protocols import Files, Repo
from sharding.core.text import format_bytes, json_file
from sharding.core.values import Checkpoint, Plan, RepoRef, ShardRecord
from sharding.drawing.map_svg import draw_plan
from sharding.formats.index import build_indexes
from sharding.formats.model_card import ModelCard, parse_card
from sharding.formats.names import CARD_NAME, DIGESTS_NAME, MAP_NAME, PICTURE_NAME, REPORT_NAME
from sharding.report.card import Links, write_card
from sharding.report.digests import digests_json
from sharding.report.schema import Report, to_json
from sharding.storage.hub.client import Hub


def read_card(origin: Files) -> ModelCard:
    """Return the card of `origin`, an empty one if it has none. Raises SourceError if it cannot be fetched.

    If the card comes from the model that was trained, it keeps only the metadata: its text describes another model.
    """
    file = next((file for file in origin.files if file.path == CARD_NAME), None)
    if file is None:
        return ModelCard()
    if file.bytes > MAX_CARD_BYTES:
        return ModelCard(problem=f"the file is larger than {format_bytes(MAX_CARD_BYTES)}")
    card = parse_card(read_small(origin, file, MAX_CARD_BYTES).decode("utf-8-sig", errors="replace"))
    return replace(card, text="") if file.source else card


def write_beside(
    report: Report,
    checkpoint: Checkpoint,
    plan: Plan,
    records: Mapping[str, ShardRecord],
    origin: Repo,
    original: ModelCard,
    hub: Hub,
) -> dict[str, bytes]:
    """Return name to content of every file that this tool writes beside the shards.

    A component has an index only if it needs one. `original` is the card of `origin`.
    """
    files = {
        CARD_NAME: _card(report, original, origin, hub).encode(),
        MAP_NAME: draw_plan(checkpoint, plan).encode(),
        DIGESTS_NAME: json_file(digests_json(plan, report.plan_id, records)),
        REPORT_NAME: json_file(to_json(report)),
    }
    if report.comparison and report.comparison.picture:
        files[PICTURE_NAME] = report.comparison.picture.encode()
    return files | build_indexes(plan) | dict(plan.written)


def _card(report: Report, original: ModelCard, origin: Repo, hub: Hub) -> str:
    def page(ref: RepoRef | None) -> str | None:
        return hub.page(ref.repo_id) if ref and ref.kind == "hub" else None

    target, merged = report.destination, report.plan.merged
    result = result_page(target.repo_id) if target.kind == "hub" else None
    links = Links(page(origin.ref), result, page(report.source.base), page(merged.adapter if merged else None))
    card = write_card(report, original, links, is_private=bool(origin.is_private))
    if target.kind == "hub" and not hub.ask(target.repo_id, DestinationError, lambda: hub.takes_card(card)):
        return write_card(report, original, links, is_private=bool(origin.is_private), keeps_metadata=False)
    return card
