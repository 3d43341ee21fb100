"""Keep the dtype in which transformers loads a model whose config.json names none. Pure."""

import json
from collections.abc import Iterator
from typing import Any

from sharding.core.text import json_file, parsed_json
from sharding.core.values import Checkpoint, Finding, Plan
from sharding.formats.model_config import CONFIG_NAME, dtype_of_first


def stated_dtypes(checkpoint: Checkpoint, plan: Plan) -> Iterator[tuple[str, bytes, Finding]]:
    """Yield path and content of each config.json that must name a dtype, and a finding that says so.

    Without it, the copy would load in another dtype than the original: its first tensor is another one.
    """
    for component in plan.components:
        config = checkpoint.configs.get(component.folder, "")
        document: Any = parsed_json(config or "null")
        is_open = isinstance(document, dict) and "model_type" in document and not {"dtype", "torch_dtype"} & {*document}
        files = sorted((shard for shard in plan.shards if shard.folder == component.folder), key=lambda one: one.file)
        first = sorted(files[0].tensors if files else (), key=lambda tensor: tensor.name)
        if is_open and component.loads_as and component.loads_as != dtype_of_first(first):
            path = component.folder + CONFIG_NAME
            written = json.loads(plan.written.get(path, config)) | {"dtype": component.loads_as}
            message = (
                f"{path} names no dtype, and the original loads in {component.loads_as}. The copy's {CONFIG_NAME} "
            )
            message += "says so, because its first tensor has another dtype."
            yield path, json_file(written), Finding("info", "dtype-written", message)
