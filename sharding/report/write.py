"""Write the files beside the shards of a result: report, digests, card, pictures, index."""

from collections.abc import Mapping

from sharding.core.environment import result_page
from sharding.core.errors import DestinationError
from sharding.core.repo import Repo
from sharding.core.text import json_file
from sharding.core.values import Checkpoint, Plan, ShardRecord
from sharding.drawing.map_svg import draw_plan
from sharding.formats.index import build_indexes
from sharding.formats.model_card import ModelCard
from sharding.formats.names import CARD_NAME, DIGESTS_NAME, MAP_NAME, PICTURE_NAME, REPORT_NAME
from sharding.report.card import Links, write_card
from sharding.report.digests import digests_json
from sharding.report.schema import Report, to_json
from sharding.storage.hub.client import Hub


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
    page = hub.page(origin.ref.repo_id) if origin.ref.kind == "hub" else None
    target = report.destination
    base = report.source.base
    base_page = hub.page(base.repo_id) if base and base.kind == "hub" else None
    adapter = report.plan.merged.adapter if report.plan.merged else None
    adapter_page = hub.page(adapter.repo_id) if adapter and adapter.kind == "hub" else None
    links = Links(page, result_page(target.repo_id) if target.kind == "hub" else None, base_page, adapter_page)
    card = write_card(report, original, links, is_private=bool(origin.is_private))
    if target.kind == "hub" and not hub.ask(target.repo_id, DestinationError, lambda: hub.takes_card(card)):
        return write_card(report, original, links, is_private=bool(origin.is_private), keeps_metadata=False)
    return card
