"""Say what the keys in a saved state dict show: which tensors are weights, and how they were saved. Pure."""

import re
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence

from sharding.checkpoint.foreign import refuse_foreign_names
from sharding.core.errors import SourceError
from sharding.core.protocols import Files
from sharding.core.text import count, format_bytes, name_some
from sharding.core.values import FileEntry, Finding, Tensor
from sharding.formats.names import CONFIG_NAME

_STATE = {
    "optimizer", "optimizers", "optim", "optimizer_state", "optimizer_state_dict", "optimizer_states", "lr_scheduler",
    "lr_schedulers", "dataloader", "train_state", "rng", "rng_state", "rng_states", "random_states", "extra_state",
    "grad_scaler", "optim_state", "optim_states",
}  # fmt: skip
"""Keys under which trainers save everything but weights (accelerate 1.15, torchtitan, PyTorch's own tutorials)."""
_STATE_OR_MODULE = {
    "ema", "ema_model", "model_ema", "ema_state_dict", "opt", "scheduler", "schedulers", "scheduler_state",
    "scheduler_state_dict", "scaler", "amp", "sampler",
}  # fmt: skip
"""Keys that are training state if a wrapper stands beside them. Without a wrapper, they may be modules of the model."""
_WRAPPERS = {"model", "module", "state_dict", "model_state_dict", "model_state"}
"""Keys under which trainers save the weights. Inside them, the keys above are modules."""
_AROUND = {"app", "state"}  # Keys under which trainers save everything, model and state.
_WRAPPING_MODULES = re.compile(r"_orig_mod\.|_(?:fsdp|checkpoint)_wrapped_module\.")
"""Names that torch.compile, FSDP and activation checkpointing add when they wrap a module."""
_MOMENTS = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer"}
"""What optimizers keep for each tensor (torch 2.13). Everything under their key is training state."""

Path = tuple[str, ...]  # The keys on the way to a tensor.


def state_in(paths: Mapping[str, Path]) -> set[str]:
    """Return which tensors belong to the training state. `paths` has the path of each tensor, or () if it is unknown.

    A name without a path is split at its dots. Then a wrapper cannot be distinguished from a body called "model". So if
    no path is known, wrappers count only if every tensor lies under one, or under a key of trainers.

    >>> sorted(state_in({"model.w": ("model", "w"), "ema.w": ("ema", "w"), "model.ema.w": ("model", "ema", "w")}))
    ['ema.w']
    >>> state_in({"scheduler.w": ("scheduler.w",), "v": ("v",)})
    set()
    """
    around = _keys_around(paths.values())
    places = {name: _place(path or tuple(name.split(".")), around) for name, path in paths.items()}
    keys = {key for _, key, _ in places.values()}
    is_known = any(paths.values()) or keys <= _STATE | _STATE_OR_MODULE | _WRAPPERS
    wrapped = {level for level, key, is_inside in places.values() if is_known and is_inside and key in _WRAPPERS}
    wrapped |= {path[:depth] for path in paths.values() for depth, key in enumerate(path[:-1]) if key in around}
    last = {name: (paths[name][-1] if paths[name] else name).rpartition(".")[2] for name in places}
    moments = {place[:2] for name, place in places.items() if last[name] in _MOMENTS}
    state = {
        name
        for name, (level, key, _) in places.items()
        if key in _STATE or (level, key) in moments or (key in _STATE_OR_MODULE and level in wrapped)
    }
    rest = {key for name, (_, key, _) in places.items() if name not in state}
    # If there is no model, an average of weights may be the model. Other state cannot be.
    return state if rest - _STATE_OR_MODULE or "ema" in rest else set(paths)


def model_names(paths: Mapping[str, Path]) -> dict[str, str]:
    """Return the name that the model itself gives each tensor, as far as the keys on its path show it.

    A wrapper inside another wrapper is a module of the model if it does not hold everything in the outer one.

    >>> list(model_names({"app.model.a.w": ("app", "model", "a", "w"), "v": ("v",), "b.w": ()}).values())
    ['a.w', 'v', 'b.w']
    """
    around = _keys_around(paths.values())
    beside: dict[Path, set[str]] = {}
    for path in paths.values():
        for depth in range(_deepest(path, around) + 1):
            beside.setdefault(path[:depth], set()).update(path[depth : depth + 1])
    names = {}
    for name, path in paths.items():
        depth = len(_place(path, around)[0]) if path else 0
        first, last = depth, _deepest(path, around)
        while depth < last and (depth == first or len(beside[path[:depth]]) == 1):
            depth += 1
        names[name] = ".".join(path[depth:]) or name
    return names


def _keys_around(paths: Iterable[Path]) -> set[str]:
    """Return the keys under which a trainer saves everything: the usual ones, and its own, around all tensors."""
    around, paths = set(_AROUND), list(paths)
    for depth in range(min(map(len, paths), default=0) - 1):
        keys, inside = {path[depth] for path in paths}, {path[depth + 1] for path in paths if len(path) > depth + 2}
        if len(keys) > 1 or not (keys & _AROUND or inside & _WRAPPERS):
            break
        around |= keys - _WRAPPERS - _STATE
    return around


def _place(path: Path, around: Container[str]) -> tuple[Path, str, bool]:
    """Return the level where a trainer keeps model and state, the key at that level, and whether more keys follow."""
    depth = next((depth for depth, key in enumerate(path[:-1]) if key not in around), len(path) - 1)
    key = re.sub(r"_\d+$", "", path[depth].partition(".")[0])  # Lightning writes optimizer_0
    return path[:depth], key, depth < len(path) - 1


def _deepest(path: Path, around: Container[str]) -> int:
    """Return how many keys at the start of a path may be wrappers."""
    inner = (depth for depth, key in enumerate(path[:-1]) if key not in _WRAPPERS and key not in around)
    return next(inner, max(len(path) - 1, 0))


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Return each of `names` without the prefixes and parts that wrappers added.

    >>> short_names(["model.model.norm.weight", "model.lm_head.weight"])
    {'model.model.norm.weight': 'model.norm.weight', 'model.lm_head.weight': 'lm_head.weight'}
    >>> short_names(["model.norm.weight", "model.layers.0._orig_mod.mlp.weight"])
    {'model.norm.weight': 'model.norm.weight', 'model.layers.0._orig_mod.mlp.weight': 'model.layers.0.mlp.weight'}
    """
    names = list(names)
    short = [_WRAPPING_MODULES.sub("", name) for name in names]
    while prefix := next((prefix for prefix in ("module.", "state_dict.", "model.") if _is_wrapped(short, prefix)), ""):
        short = [name.removeprefix(prefix) for name in short]
    return dict(zip(names, short, strict=True))


def _is_wrapped(names: Sequence[str], prefix: str) -> bool:
    if not names or not all(name.startswith(prefix) for name in names):
        return False
    # Most models call their own body "model". So "model." is a wrapper only if a second one or a head is inside it.
    return prefix != "model." or any(name.startswith(("model.model.", "model.lm_head.")) for name in names)


_DDP = "DistributedDataParallel"
_WRAPPED = {
    "torch.compile": re.compile(r"(?:^|\.)_orig_mod\."),
    "FSDP": re.compile(r"(?:^|\.)_(?:fsdp|checkpoint)_wrapped_module\."),
    _DDP: re.compile(r"^module\."),
}
"""What the wrappers of torch add to the names of tensors."""


def remarks_on(tensors: Sequence[Tensor]) -> Iterator[Finding]:
    """Yield warnings for tensors without numbers, and for names that a wrapper of the model has left."""
    empty, wrapped = [tensor.name for tensor in tensors if tensor.shape == (0,)], dict[str, list[str]]()
    for tensor in tensors:
        name = tensor.name.removeprefix(tensor.folder)
        if wrapper := next((wrapper for wrapper, form in _WRAPPED.items() if form.search(name)), ""):
            wrapped.setdefault(wrapper, []).append(tensor.name)
    if empty:
        hint = (
            "DeepSpeed's ZeRO-3 leaves such tensors where nobody gathers the weights first. Save the model again with "
            "stage3_gather_16bit_weights_on_model_save, or use zero_to_fp32.py of its checkpoint."
        )
        yield Finding("warning", "empty-tensors", f"{_some(empty)} no numbers: {name_some(empty)}.", hint)
    for wrapper, names in wrapped.items():
        if wrapper == _DDP and len(names) < len(tensors):
            continue  # it wraps the whole model, so a part of it may well have that name
        message = f"{_some(names)} names that {wrapper} makes, so no library finds them: {name_some(names)}."
        hint = "Save what the wrapper holds. Or add --like with the original model."
        yield Finding("warning", "wrapped-names", message, hint)


def _some(names: list[str]) -> str:
    return f"{count(len(names), 'tensor')} {'has' if len(names) == 1 else 'have'}"


def final_names(names: Mapping[str, str], state: Collection[str]) -> dict[str, str]:
    """Return names in the result by `names` in the files. Raises SourceError for only state, or a name twice."""
    refuse_foreign_names(names)
    if state and not names:
        message = "The source has no weights, only training state such as that of an optimizer."
        raise SourceError(message, "Use the folder beside it that holds the model.")
    # If some tensors lie under a wrapper's key, only their names can show the prefixes that this wrapper added.
    wrapped = {saved: name for saved, name in names.items() if saved != name} or names
    short = short_names(wrapped.values())
    final_names = {saved: short[name] if saved in wrapped else name for saved, name in names.items()}
    seen: dict[str, str] = {}
    for saved, name in final_names.items():
        if (first := seen.setdefault(name, saved)) != saved:
            message = f"{first} and {saved} would both be called {name} in the result."
            raise SourceError(message, "Save only the one that you want, or save each in its own folder.")
    return final_names


_STEP = re.compile(r"(?:^|/)(?:global_step|iter|checkpoint|step)[-_]?0*(\d+)(?:/|$)", re.ASCII)


def findings_on_run(
    source: Files,
    files: Sequence[FileEntry],
    tensors: Iterable[Tensor],
    state: Mapping[str, int],
    others: Sequence[str],
    names: Mapping[str, str],
    trainer: str = "",
) -> Iterator[Finding]:
    """Yield the findings on what the ranks of a run saved, with `trainer` if it is known: these tensors in `files`.

    Left out are the training `state` (tensor to bytes), and `others`. `names` are those of the result, by the files'.
    """
    number = sum(tensor.recipe.place is None for tensor in tensors)
    step = _STEP.search(f"{source.ref.name}/{files[0].at}")
    told = ", ".join(filter(None, (trainer, f"step {step[1]}" if step else "")))
    message = f"The ranks of a training run {f'({told}) ' if told else ''}saved these weights in "
    message += f"{count(len(files), 'file')}."
    message += f" The pieces of {count(number, 'tensor')} are joined while they are read." if number else ""
    if (config := source.by_path.get(CONFIG_NAME)) and config.place:
        message += f" {config.place} is the configuration of its base."
    yield Finding("info", "ranks", message)
    parts = []
    if state:
        size = format_bytes(sum(state.values()))
        parts.append(f"{count(len(state), 'tensor')} of training state ({size}; {name_some(list(state), 1)})")
    if others:
        entries = count(len(others), "entry that is not a tensor", "entries that are not tensors")
        parts.append(f"{entries} ({name_some(others, 1)})")
    if parts:
        yield Finding("info", "training-state", f"Left out: {' and '.join(parts)}.")
    if changed := [saved for saved, name in names.items() if saved != name]:
        example = f"{changed[0]} becomes {names[changed[0]]}"
        message = f"Prefixes that the trainer added are removed from {count(len(changed), 'name')}: {example}."
        yield Finding("info", "names", message)
