"""The process that loads, computes, and writes a line of JSON after each step. It runs no code of a repo."""

import hashlib
import inspect
import json
import math
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import psutil

from sharding.core.allowance import load_allowance, memory_allowance
from sharding.core.meter import anon_bytes
from sharding.model_class.transformers_class import Unsupported, model_class

_INDEXES = {"model.safetensors.index.json": "model.safetensors", "pytorch_model.bin.index.json": "pytorch_model.bin"}
_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}
_FLOATS = set(_NAMES.values())  # A load casts these. Integers, booleans and fp8 count as not cast.


def import_libraries() -> None:
    """Import what a load needs."""
    import accelerate  # noqa: F401 - its import is part of the cost
    import transformers.modeling_utils  # noqa: F401


def load(asked: dict[str, Any]) -> None:
    """Load as `asked`, and write the facts to its file descriptor `said`."""
    stream = os.fdopen(asked["said"], "w", buffering=1)

    def say(**facts: object) -> None:
        stream.write(json.dumps(facts) + "\n")

    folder = Path(asked["folder"])
    try:
        say(phase="import", at=time.monotonic())
        import_libraries()
        with memory_allowance(load_allowance(folder)):
            load_and_run(folder, asked, say)
        say(phase="end", at=time.monotonic(), outcome="loaded", message="")
    except Unsupported as error:
        say(outcome="unsupported", message=str(error))
    except MemoryError as error:
        say(outcome="out-of-memory", message=str(error) or "No memory was left.")
    except Exception as error:  # any error of a library is an answer of this probe
        refused = any(words in str(error) for words in ("memory", "Cannot allocate"))
        outcome = "out-of-memory" if refused and asked["memory_limit_bytes"] else "failed"
        say(outcome=outcome, message=f"{type(error).__name__}: {error}"[:1000])


def load_and_run(folder: Path, asked: dict[str, Any], say: Callable[..., None]) -> None:
    """Load the checkpoint in `folder` by the method in `asked`, compute, and report facts to `say`."""
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    cls, config = model_class(folder)
    files = weight_files(folder, asked["method"])
    torch.manual_seed(0)
    dtype = getattr(torch, asked["dtype"]) if asked["dtype"] else None
    stored = _stored_dtypes(files)
    sizes = [file.stat().st_size for file in files]
    facts = {"architecture": cls.__name__, "files": len(files), "format": files[0].suffix[1:], "stored_dtypes": stored}
    facts |= {"weight_bytes": sum(sizes), "largest_file_bytes": max(sizes), "base_anon_bytes": anon_bytes()}
    facts |= {"is_cast": asked["dtype"] is not None and bool(stored.keys() & _FLOATS - {asked["dtype"]})}
    with tempfile.TemporaryDirectory(prefix="offload-") as offload:
        say(**facts, phase="load", at=time.monotonic())
        read_bytes = _disk_bytes_read()
        model, names = METHODS[asked["method"]](cls, config, folder, dtype, {**asked, "offload": offload})
        if names:
            some = ", ".join(sorted(names)[:3])
            raise Unsupported(
                f"{len(names)} weights of the model are not in the files under their names ({some}). They are missing, "
                "or transformers renames or fuses them while loading, which this method does not do."
            )
        model.eval()
        say(phase="forward", at=time.monotonic(), **_weights(model, files))
        with torch.inference_mode():
            inputs = _fixed_inputs(model)
            output = model(**inputs)[0].contiguous()
            data = f"{output.dtype} {tuple(output.shape)} ".encode() + output.view(torch.uint8).numpy().tobytes()
            say(logits_sha256=hashlib.sha256(data).hexdigest())
            del output, data  # they are no part of what generating costs
            say(phase="tokens", at=time.monotonic())
            if model.can_generate() and model.main_input_name == "input_ids":
                text = inputs["input_ids"]
                made = model.generate(
                    input_ids=text, max_new_tokens=_NEW_TOKENS, min_new_tokens=_NEW_TOKENS, do_sample=False
                )
                say(tokens=made[0].tolist())
        say(disk_bytes_read=None if read_bytes is None else (_disk_bytes_read() or 0) - read_bytes)


_Loaded = tuple[Any, Collection[str]]  # A model, and the names of its weights that were in no file.


def _from_pretrained(cls: Any, config: Any, folder: Path, dtype: Any, asked: dict[str, Any]) -> _Loaded:
    options: dict[str, Any] = {"disable_mmap": not asked["with_mapping"] or None}
    if asked["method"] == "offload":
        if not asked["max_memory_bytes"]:
            raise Unsupported("Offloading needs a limit for the weights that stay in memory.")
        limits = {"cpu": asked["max_memory_bytes"]}
        options = {"device_map": "auto", "max_memory": limits, "offload_folder": asked["offload"]}
    options |= {"low_cpu_mem_usage": True, "output_loading_info": True, "local_files_only": True}
    model, info = cls.from_pretrained(folder, dtype=dtype or "auto", **options)
    return model, info["missing_keys"]


def _load_checkpoint_and_dispatch(cls: Any, config: Any, folder: Path, dtype: Any, asked: dict[str, Any]) -> _Loaded:
    from accelerate import load_checkpoint_and_dispatch

    model = _empty(cls, config, dtype)
    classes = sorted(model._no_split_modules or [])
    try:
        load_checkpoint_and_dispatch(model, folder, {"": "cpu"}, no_split_module_classes=classes, dtype=dtype)
    except NotImplementedError:  # a weight that is in no file cannot leave the meta device
        if not _on_meta(model):
            raise
    return model, _on_meta(model)


def _load_sharded_checkpoint(cls: Any, config: Any, folder: Path, dtype: Any, asked: dict[str, Any]) -> _Loaded:
    from transformers.initialization import no_init_weights
    from transformers.trainer_utils import load_sharded_checkpoint

    if not any((folder / index).exists() for index in _INDEXES):
        raise Unsupported("load_sharded_checkpoint needs an index, but a checkpoint in one file has none.")
    with no_init_weights():
        model = cls._from_config(config, dtype=dtype or config.dtype)
    model.tie_weights()
    absent = load_sharded_checkpoint(model, str(folder), strict=False).missing_keys
    addresses = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    loaded = {address for name, address in addresses.items() if name not in absent}
    return model, [name for name in absent if addresses[name] not in loaded]


def _torch_load(cls: Any, config: Any, folder: Path, dtype: Any, asked: dict[str, Any]) -> _Loaded:
    import torch

    model = _empty(cls, config, dtype)
    for file in weight_files(folder, asked["method"]):
        state = torch.load(file, map_location="cpu", weights_only=True, mmap=asked["with_mapping"])
        if dtype is not None:
            state = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in state.items()}
        model.load_state_dict(state, strict=False, assign=True)
    model.tie_weights()
    return model, _on_meta(model)


METHODS: dict[str, Callable[[Any, Any, Path, Any, dict[str, Any]], _Loaded]] = {
    "from_pretrained": _from_pretrained,
    "load_checkpoint_and_dispatch": _load_checkpoint_and_dispatch,
    "offload": _from_pretrained,
    "load_sharded_checkpoint": _load_sharded_checkpoint,
    "torch_load": _torch_load,
}


def _empty(cls: Any, config: Any, dtype: Any) -> Any:
    from accelerate import init_empty_weights

    with init_empty_weights():
        model = cls._from_config(config, dtype=dtype or config.dtype)
    model.tie_weights()
    return model


def _on_meta(model: Any) -> list[str]:
    return [name for name, tensor in model.state_dict().items() if tensor.is_meta]


def _weights(model: Any, files: list[Path]) -> dict[str, Any]:
    """Return the bytes of the weights of a model, and how many of them are still in the mapped files."""
    tensors = {tensor.data_ptr(): tensor for tensor in model.parameters() if not tensor.is_meta}
    mapped_bytes = None
    if (mapped := _mapped_ranges(files)) is not None:
        among = (tensor for at, tensor in tensors.items() if any(start <= at < end for start, end in mapped))
        mapped_bytes = sum(tensor.nbytes for tensor in among)
    return {"loaded_bytes": sum(tensor.nbytes for tensor in tensors.values()), "mapped_bytes": mapped_bytes}


def _mapped_ranges(files: list[Path]) -> list[tuple[int, int]] | None:
    """Return the addresses that `files` are mapped to; None on systems that do not say."""
    process, wanted = psutil.Process(), {os.path.realpath(file) for file in files}
    if not hasattr(process, "memory_maps"):
        return None
    spans = [part.addr.split("-") for part in process.memory_maps(grouped=False) if part.path in wanted]
    return [(int(start, 16), int(end, 16)) for start, end in spans]


def weight_files(folder: Path, method: str) -> list[Path]:
    """Return the files that `method` loads: safetensors first, except for torch.load and accelerate."""
    if named := json.loads((folder / "config.json").read_text()).get("transformers_weights"):
        if method not in ("from_pretrained", "offload"):
            raise Unsupported(f"config.json names {named} as its weights, but this method knows only the usual names.")
        return _listed(folder / named) if named.endswith(".json") else [folder / named]
    names = list(_INDEXES.items())
    if method in ("torch_load", "load_checkpoint_and_dispatch"):
        names.reverse()
    for index, single in names[:1] if method == "torch_load" else names:
        if (folder / single).exists():
            return [folder / single]
        if (folder / index).exists():
            return _listed(folder / index)
    raise Unsupported("The folder has no weights that this method can load.")


def _listed(index: Path) -> list[Path]:
    weight_map = json.loads(index.read_text())["weight_map"]
    return [index.parent / file for file in sorted(set(weight_map.values()))]


def _stored_dtypes(files: list[Path]) -> dict[str, int]:
    dtypes: Counter[str] = Counter()
    for file in files:
        if file.suffix == ".bin":
            import torch

            for tensor in torch.load(file, map_location="meta", weights_only=True).values():
                dtypes[str(tensor.dtype).removeprefix("torch.")] += tensor.nbytes
            continue
        with open(file, "rb") as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        header.pop("__metadata__", None)
        for entry in header.values():
            start, end = entry["data_offsets"]
            dtypes[_NAMES.get(entry["dtype"], entry["dtype"])] += end - start
    return dict(dtypes)


def _disk_bytes_read() -> int | None:
    """Return what this process has read from disks; None on systems that do not say."""
    process = psutil.Process()
    return int(process.io_counters().read_bytes) if hasattr(process, "io_counters") else None


_TOKENS, _FIRST_TOKEN = 12, 3
_NEW_TOKENS = 4
_SOUND_SAMPLES = 4000


def _fixed_inputs(model: Any) -> dict[str, Any]:
    """Return the input that the forward pass of `model` needs. It is always the same for the same configuration."""
    import torch

    config = model.config
    text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    vocabulary = getattr(text, "vocab_size", None) or 100
    tokens = (torch.arange(_FIRST_TOKEN, _FIRST_TOKEN + _TOKENS) % vocabulary).view(1, _TOKENS)
    known = inspect.signature(model.forward).parameters
    names = {model.main_input_name}
    # Models with two towers, such as CLIP, need both inputs. Text models that accept pictures need only text.
    if "pixel_values" in known and not model.can_generate() and getattr(config, "vision_config", None):
        names |= {"pixel_values", "input_ids"} & set(known)
    shapes: dict[str, Callable[[Any], tuple[int, ...]]] = {
        "pixel_values": _picture,
        "input_values": lambda _: (1, _SOUND_SAMPLES),
        "input_features": lambda of: (1, getattr(of, "num_mel_bins", 80), 2 * getattr(of, "max_source_positions", 50)),
    }
    wanted = {name: shapes[name](config) for name in sorted(names) if name in shapes}
    inputs = {
        name: torch.linspace(-1, 1, math.prod(shape)).view(shape).to(model.dtype) for name, shape in wanted.items()
    }
    inputs |= {"input_ids": tokens} if "input_ids" in names else {}
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in known:
        inputs["decoder_input_ids"] = tokens[:, :4]
    return inputs


def _picture(config: Any) -> tuple[int, ...]:
    vision = getattr(config, "vision_config", None) or config
    size = getattr(vision, "image_size", 224)
    return 1, getattr(vision, "num_channels", 3), *(size if isinstance(size, list | tuple) else (size, size))


if __name__ == "__main__":
    load(json.loads(sys.argv[1]))
