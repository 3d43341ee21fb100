"""Write the files that stand beside the shards of a result: report, digests, card, picture, index, configuration."""

from collections.abc import Iterable

from sharding.card import Links, write_card
from sharding.dtypes import configured
from sharding.errors import DestinationError
from sharding.files import CARD_NAME, DIGESTS_NAME, PICTURE_NAME, REPORT_NAME
from sharding.headers import read_small
from sharding.hub import Hub
from sharding.limits import MAX_CARD_BYTES, MAX_CONFIG_BYTES, result_page
from sharding.picture import draw_memory
from sharding.plan import build_indexes
from sharding.protocols import Source
from sharding.report import Report, digests_json, report_json, to_bytes
from sharding.values import FileEntry


def write_beside(report: Report, origin: Source, hub: Hub) -> dict[str, bytes]:
    """Return the files that this tool writes beside the shards."""
    card = next((file for file in origin.files if file.path == CARD_NAME and file.bytes <= MAX_CARD_BYTES), None)
    text = read_small(origin, card, MAX_CARD_BYTES).decode(errors="replace") if card else ""
    page = hub.page(origin.ref.repo_id) if origin.ref.kind == "hub" else None
    links = Links(page, result_page(report.destination.repo_id) if report.destination.kind == "hub" else None)
    files = _files_beside(report, text, links, is_private=bool(origin.is_private))
    if report.destination.kind == "hub":
        text_of_card = files[CARD_NAME].decode()
        keeps = hub.ask(report.destination.repo_id, DestinationError, lambda: hub.takes_card(text_of_card))
        files = _files_beside(report, text, links, is_private=bool(origin.is_private), keeps_metadata=keeps)
    return files


def rewritten_configs(origin: Source, side_files: Iterable[FileEntry], torch_dtype: str | None) -> dict[str, bytes]:
    """Return the configurations among `side_files` that must change: for the dtype, or the names of the weights."""
    files = [file for file in side_files if file.path.rpartition("/")[2] == "config.json"]
    files = [file for file in files if file.bytes <= MAX_CONFIG_BYTES]
    documents = {file.path: configured(read_small(origin, file, MAX_CONFIG_BYTES), torch_dtype) for file in files}
    return {path: to_bytes(document) for path, document in documents.items() if document is not None}


def _files_beside(
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
    return files | build_indexes(report.plan)
