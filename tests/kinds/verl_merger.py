"""Merge the ranks of a run with verl's own merger (0.9.1), which is installed in the folder PACKAGES without ray and the like.

`python -m tests.kinds.verl_merger PACKAGES RUN OUT`. Only the rooms of the merger are imported, and no tokenizer is saved.
"""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any


def main() -> None:
    packages, run, out = sys.argv[1:]
    verl = Path(packages) / "verl"
    _stand_in("verl", verl)
    _stand_in("verl.utils", verl / "utils", hf_tokenizer=lambda *_, **__: None, hf_processor=lambda *_, **__: None)
    _stand_in("verl.model_merger", verl / "model_merger")
    from verl.model_merger.base_model_merger import ModelMergerConfig  # type: ignore[import-not-found]
    from verl.model_merger.fsdp_model_merger import FSDPModelMerger  # type: ignore[import-not-found]

    beside = f"{run}/huggingface"
    FSDPModelMerger(
        ModelMergerConfig("merge", "fsdp", target_dir=out, local_dir=run, hf_model_config_path=beside)
    ).merge_and_save()


def _stand_in(name: str, folder: Path, **content: Any) -> None:
    """Import a package without running its `__init__`."""
    package = ModuleType(name)
    package.__path__ = [str(folder)]
    package.__dict__.update(content)
    sys.modules[name] = package


if __name__ == "__main__":
    main()
