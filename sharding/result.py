"""The files that stand beside the shards of a result: digests, report, card, picture, index. Pure."""

from sharding.card import Links, write_card
from sharding.files import CARD_NAME, DIGESTS_NAME, INDEX_NAME, PICTURE_NAME, REPORT_NAME
from sharding.picture import draw_memory
from sharding.plan import build_index
from sharding.report import Report, digests_json, report_json, to_bytes


def files_beside(
    report: Report, source_card: str, links: Links, *, is_private: bool, keeps_metadata: bool = True
) -> dict[str, bytes]:
    """Return name and content of every file that this tool writes itself; an index only where one is due."""
    measured = report.comparison is not None and report.comparison.is_measured
    picture = PICTURE_NAME if measured else None
    card = write_card(report, source_card, links, is_private=is_private, picture=picture, keeps_metadata=keeps_metadata)
    files = {
        CARD_NAME: card.encode(),
        DIGESTS_NAME: to_bytes(digests_json(report)),
        REPORT_NAME: to_bytes(report_json(report)),
    }
    if measured and report.comparison:
        files[PICTURE_NAME] = draw_memory(report.comparison).encode()
    return {**files, INDEX_NAME: build_index(report.plan)} if report.plan.is_sharded else files
