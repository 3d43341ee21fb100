"""Write the files that stand beside the shards of a result: report, digests, card, picture, index, configuration."""

import json
from collections.abc import Iterable
from typing import Any

from sharding.checkpoint.read import read_small
from sharding.core.environment import result_page
from sharding.core.errors import DestinationError
from sharding.core.limits import MAX_CARD_BYTES, MAX_CONFIG_BYTES
from sharding.core.protocols import Source
from sharding.core.values import FileEntry
from sharding.formats.dtypes import CASTABLE
from sharding.formats.index import build_indexes
from sharding.formats.names import CARD_NAME, DIGESTS_NAME, PICTURE_NAME, REPORT_NAME
from sharding.loading.chart import draw_memory
from sharding.report.card import Links, write_card
from sharding.report.digests import digests_json
from sharding.report.report import Report, report_json, to_bytes
from sharding.storage.hub_client import Hub


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


_WEIGHTS_NAMED = "transformers_weights"
_CASTABLE = {dtype.torch for dtype in CASTABLE.values()}


def configured(config: bytes, torch_dtype: str | None) -> dict[str, Any] | None:
    """Return the config.json of a copy: it says `torch_dtype` ("float16") wherever it said another dtype.

    What names the weight files goes, as with `save_pretrained`: the copy has the usual names. None where nothing
    changes, or it is no configuration.
    """
    try:
        document = json.loads(config)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or (torch_dtype is None and _WEIGHTS_NAMED not in document):
        return None
    document.pop(_WEIGHTS_NAMED, None)
    if torch_dtype is None:
        return document
    if "model_type" in document and not {"dtype", "torch_dtype"} & document.keys():
        document["dtype"] = torch_dtype
    waiting: list[Any] = [document]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            for key in ("dtype", "torch_dtype"):
                if isinstance(part.get(key), str) and part[key].removeprefix("torch.") in _CASTABLE:
                    part[key] = torch_dtype
        waiting += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return document
