"""Write the files that stand beside the shards of a result: report, digests, card, picture, index, configuration."""

import json
from collections.abc import Mapping
from typing import Any

from sharding.checkpoint.documents import CONFIG_NAME, WEIGHTS_NAMED, read_small
from sharding.core.dtypes import CASTABLE, torch_name
from sharding.core.environment import result_page
from sharding.core.errors import DestinationError
from sharding.core.limits import MAX_CONFIG_BYTES, MAX_CONFIG_VALUES
from sharding.core.options import Options
from sharding.core.protocols import Source
from sharding.core.text import values_in
from sharding.core.values import Checkpoint, Plan, ShardRecord, folder_of
from sharding.drawing.map_svg import draw_plan
from sharding.formats.index import build_indexes
from sharding.formats.model_card import ModelCard
from sharding.formats.names import CARD_NAME, DIGESTS_NAME, MAP_NAME, PICTURE_NAME, REPORT_NAME
from sharding.formats.quantization import drop_quantization, quantization_of
from sharding.report.card import Links, write_card
from sharding.report.digests import digests_json
from sharding.report.schema import Json, Report, to_json
from sharding.storage.hub.client import Hub


def write_beside(
    report: Report,
    checkpoint: Checkpoint,
    plan: Plan,
    records: Mapping[str, ShardRecord],
    origin: Source,
    original: ModelCard,
    hub: Hub,
) -> dict[str, bytes]:
    """Return name and content of every file that this tool writes beside the shards; an index only where one is due.

    `original` is the card of `origin`.
    """
    files = {
        CARD_NAME: _card(report, original, origin, hub).encode(),
        MAP_NAME: draw_plan(checkpoint, plan).encode(),
        DIGESTS_NAME: to_bytes(digests_json(plan, report.plan_id, records)),
        REPORT_NAME: to_bytes(to_json(report)),
    }
    if report.comparison and report.comparison.picture:
        files[PICTURE_NAME] = report.comparison.picture.encode()
    return files | build_indexes(plan)


def rewritten_configs(origin: Source, checkpoint: Checkpoint, options: Options) -> dict[str, bytes]:
    """Return the configurations beside the weights that must change.

    For the dtype, the names of the weights, or because the weights are not quantized, or no longer.
    """
    places = {component.folder + CONFIG_NAME for component in checkpoint.components}
    files = [file for file in checkpoint.side_files if file.path in places]
    documents = {}
    for file in files:
        if file.bytes <= MAX_CONFIG_BYTES:
            config = read_small(origin, file, MAX_CONFIG_BYTES)
            planned = checkpoint.configs.get(folder_of(file.path), "")
            is_plain = options.dequantize or (bool(planned) and quantization_of(planned) is None)
            documents[file.path] = configured(config, torch_name(options.dtype), is_plain)
    return {path: to_bytes(document) for path, document in documents.items() if document is not None}


def to_bytes(document: Json) -> bytes:
    """Return a JSON file for people and programs: indented, one trailing newline."""
    # Half a surrogate pair, which a config.json may hold, becomes the escape that JSON has for it.
    return json.dumps(document, indent=2, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"


def _card(report: Report, original: ModelCard, origin: Source, hub: Hub) -> str:
    page = hub.page(origin.ref.repo_id) if origin.ref.kind == "hub" else None
    target = report.destination
    base = report.source.base
    base_page = hub.page(base.repo_id) if base and base.kind == "hub" else None
    links = Links(page, result_page(target.repo_id) if target.kind == "hub" else None, base_page)
    card = write_card(report, original, links, is_private=bool(origin.is_private))
    if target.kind == "hub" and not hub.ask(target.repo_id, DestinationError, lambda: hub.takes_card(card)):
        return write_card(report, original, links, is_private=bool(origin.is_private), keeps_metadata=False)
    return card


_CASTABLE = {dtype.torch for dtype in CASTABLE.values()}


def configured(config: bytes, torch_dtype: str | None, is_plain: bool = False) -> dict[str, Any] | None:
    """Return the config.json of a copy: it says `torch_dtype` ("float16") wherever it said another dtype.

    Where its weights are not quantized (`is_plain`) it says nothing of quantization.

    What names the weight files goes, as with `save_pretrained`: the copy has the usual names. None where nothing
    changes, or it is no configuration.
    """
    if values_in(config) > MAX_CONFIG_VALUES:
        return None
    try:
        document = json.loads(config)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    is_changed = document.pop(WEIGHTS_NAMED, None) is not None
    if is_plain and quantization_of(config.decode(errors="replace")) is not None:
        is_changed = drop_quantization(document)
    if torch_dtype is None:
        return document if is_changed else None
    if "model_type" in document and not {"dtype", "torch_dtype"} & document.keys():
        document["dtype"] = torch_dtype
    waiting: list[Any] = [document]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            for key in ("dtype", "torch_dtype"):
                if isinstance(value.get(key), str) and value[key].removeprefix("torch.") in _CASTABLE:
                    value[key] = torch_dtype
        waiting += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return document
