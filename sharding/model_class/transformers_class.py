"""Find transformers' own class for a checkpoint. Runs only in child processes."""

import json
from pathlib import Path
from typing import Any


class Unsupported(Exception):
    """This method cannot load this checkpoint, although the checkpoint is valid."""


def model_class(folder: Path) -> tuple[Any, Any]:
    """Return transformers' own class for the checkpoint in `folder`, and its configuration. Raises Unsupported."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_MAPPING

    document = json.loads((folder / "config.json").read_text())
    if document.get("model_type") not in CONFIG_MAPPING:
        unknown = f"is not known to transformers {transformers.__version__}"
        reason = "needs code from its repo, which is never run" if "auto_map" in document else unknown
        raise Unsupported(f"The model type {document.get('model_type')!r} {reason}.")
    config = transformers.AutoConfig.from_pretrained(folder)
    for name in document.get("architectures") or []:
        cls = getattr(transformers, name, None)
        if isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel):
            return cls, config
    if "auto_map" in document:
        raise Unsupported(f"Its class {document.get('architectures')} needs code from its repo, which is never run.")
    return MODEL_MAPPING[type(config)], config
