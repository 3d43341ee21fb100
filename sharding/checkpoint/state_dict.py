"""Tell the weights in a saved state dict from the state of its training, by the keys that trainers use. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence

_STATE = {
    "optimizer", "optimizers", "optim", "optimizer_state", "optimizer_state_dict", "optimizer_states", "lr_scheduler",
    "lr_schedulers", "dataloader", "train_state", "rng", "rng_state", "rng_states", "random_states", "extra_state",
    "grad_scaler",
}  # fmt: skip
"""Keys below which trainers keep what is no weight (accelerate 1.15, torchtitan, PyTorch's own tutorials)."""

_STATE_OR_MODULE = {
    "ema", "ema_model", "model_ema", "ema_state_dict", "opt", "scheduler", "schedulers", "scheduler_state",
    "scheduler_state_dict", "scaler", "amp", "sampler",
}  # fmt: skip
"""Keys that are no weights beside a wrapper, and may be modules of the model where there is none."""

_WRAPPERS = {"model", "module", "state_dict", "model_state_dict"}
"""Keys below which they keep the weights: whatever is called inside as the keys above is a module."""

_AROUND = {"app", "state"}
"""Keys below which they keep all of it, model and state."""

_WRAPPING_MODULES = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
"""What torch.compile, FSDP and activation checkpointing put into the names of what they wrap."""

Path = tuple[str, ...]
"""The keys on the way to a tensor."""


def state_in(paths: Mapping[str, Path]) -> set[str]:
    """Return which tensors are the state of the training; `paths` has the name of each, () where no path is known.

    Without a path the name is split at its dots. That tells no wrapper from a body called "model", so a wrapper is
    there only where every tensor lies below one, or below a key of trainers.

    >>> sorted(state_in({"model.w": ("model", "w"), "ema.w": ("ema", "w"), "model.ema.w": ("model", "ema", "w")}))
    ['ema.w']
    >>> state_in({"scheduler.w": ("scheduler.w",), "v": ("v",)})
    set()
    """
    places = {name: _place(path or tuple(name.split("."))) for name, path in paths.items()}
    keys = {key for _, key, _ in places.values()}
    is_known = any(paths.values()) or keys <= _STATE | _STATE_OR_MODULE | _WRAPPERS
    wrapped = {level for level, key, is_inside in places.values() if is_known and is_inside and key in _WRAPPERS}
    wrapped |= {path[:depth] for path in paths.values() for depth, key in enumerate(path[:-1]) if key in _AROUND}
    state = {
        name
        for name, (level, key, _) in places.items()
        if key in _STATE or (key in _STATE_OR_MODULE and level in wrapped)
    }
    rest = {key for name, (_, key, _) in places.items() if name not in state}
    # With no model beside it, only an average of weights may be meant as one.
    return state if rest - _STATE_OR_MODULE or "ema" in rest else set(paths)


def model_names(paths: Mapping[str, Path]) -> dict[str, str]:
    """Return what the model itself calls each of its tensors, as far as the keys on the way to it tell.

    A wrapper inside another is a module of the model where it does not hold all of it.

    >>> list(model_names({"app.model.a.w": ("app", "model", "a", "w"), "v": ("v",), "b.w": ()}).values())
    ['a.w', 'v', 'b.w']
    """
    beside: dict[Path, set[str]] = {}
    for path in paths.values():
        for depth in range(_deepest(path) + 1):
            beside.setdefault(path[:depth], set()).update(path[depth : depth + 1])
    names = {}
    for name, path in paths.items():
        depth = len(_place(path)[0]) if path else 0
        first, last = depth, _deepest(path)
        while depth < last and (depth == first or len(beside[path[:depth]]) == 1):
            depth += 1
        names[name] = ".".join(path[depth:]) or name
    return names


def _place(path: Path) -> tuple[Path, str, bool]:
    """Return the level at which a trainer has model and state beside each other, the key there, and if more follows."""
    depth = next((depth for depth, key in enumerate(path[:-1]) if key not in _AROUND), len(path) - 1)
    key = re.sub(r"_\d+$", "", path[depth].partition(".")[0])  # Lightning's optimizer_0
    return path[:depth], key, depth < len(path) - 1


def _deepest(path: Path) -> int:
    """Return how many of the first keys may be wrappers."""
    return next((depth for depth, key in enumerate(path[:-1]) if key not in _WRAPPERS | _AROUND), max(len(path) - 1, 0))


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Return what each of `names` is without what wrappers have put before it or into it.

    >>> short_names(["model.model.norm.weight", "model.lm_head.weight"])
    {'model.model.norm.weight': 'model.norm.weight', 'model.lm_head.weight': 'lm_head.weight'}
    >>> short_names(["model.norm.weight", "model.layers.0._orig_mod.mlp.weight"])
    {'model.norm.weight': 'model.norm.weight', 'model.layers.0._orig_mod.mlp.weight': 'model.layers.0.mlp.weight'}
    """
    names = list(names)
    short = names
    for module in _WRAPPING_MODULES:
        short = [name.replace(module, "") for name in short]
    while prefix := next((prefix for prefix in ("module.", "state_dict.", "model.") if _is_wrapped(short, prefix)), ""):
        short = [name.removeprefix(prefix) for name in short]
    return dict(zip(names, short, strict=True))


def _is_wrapped(names: Sequence[str], prefix: str) -> bool:
    if not names or not all(name.startswith(prefix) for name in names):
        return False
    # Most models call their own body "model": only a second one, or a head inside it, tells that this is another's.
    return prefix != "model." or any(name.startswith(("model.model.", "model.lm_head.")) for name in names)


def clashes(names: Mapping[str, str]) -> Iterable[tuple[str, str, str]]:
    """Yield two tensors that would get the same name, and that name."""
    seen: dict[str, str] = {}
    for saved, name in names.items():
        if name in seen:
            yield seen[name], saved, name
        seen.setdefault(name, saved)
