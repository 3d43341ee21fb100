"""Write the files that stand beside the shards of a result: report, digests, card, picture, index, configuration."""

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

_WEIGHTS_NAMED = "transformers_weights"


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


def rewritten_configs(origin: Source, torch_dtype: str | None) -> dict[str, bytes]:
    """Return the configurations of the copy where they must change: the dtype after a cast, the name of the weights."""
    rewritten = {}
    for file in origin.files:
        is_config = file.path.rpartition("/")[2] == "config.json" and file.bytes <= MAX_CONFIG_BYTES
        if not is_config or (torch_dtype is None and "/" in file.path):
            continue
        document = configured(read_small(origin, file, MAX_CONFIG_BYTES), torch_dtype)
        if document is not None and (torch_dtype or _WEIGHTS_NAMED in document):
            document.pop(_WEIGHTS_NAMED, None)  # as save_pretrained does: the copy has the usual names
            rewritten[file.path] = to_bytes(document)
    return rewritten


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
