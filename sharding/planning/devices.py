"""Decide which device holds which block of a model, within memory budgets, and say where its weights fit. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any

from sharding.core.errors import SourceError, UsageError
from sharding.core.options import Options
from sharding.core.origin import Place
from sharding.core.text import format_bytes, objects_in, parse_bytes, parsed_json
from sharding.core.values import Content, Plan, Tensor
from sharding.formats.quantization import NEEDS_KERNELS, method_of, quantization_of
from sharding.model_class.architecture import Architecture
from sharding.planning.steps import drafted

PRESETS = {
    "colab-t4": "cuda:0=15GB,cpu=12GB",
    "kaggle-2xt4": "cuda:0=15GB,cuda:1=15GB,cpu=29GB",
    "24gb": "cuda:0=23GB,cpu=32GB",
    "laptop-16gb": "cpu=12GB",
}
"""Memory that is free for weights, by the name of a machine. Cards keep about 1 GB for themselves, systems more."""

_DEVICE = re.compile(r"cuda:\d{1,2}|cpu", re.ASCII)
DISK = "disk"


@dataclass(frozen=True, slots=True)
class DeviceLoad:
    """What one device holds: its modules, their bytes, and the weight files that they need."""

    device: str
    budget_bytes: int | None
    bytes: int
    modules: tuple[str, ...]
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """The device of each module, none on the disk if it fits, and code that loads it, or what is the `trouble`."""

    class_name: str
    no_split_classes: tuple[str, ...]
    blocks: int
    devices: tuple[DeviceLoad, ...]
    device_map: Mapping[str, str]
    snippet: str
    trouble: str = ""

    @property
    def fits(self) -> bool:
        """Whether all weights are in memory."""
        return DISK not in self.device_map.values()


def parse_budgets(text: str) -> dict[str, int]:
    """Return device to bytes for a budget or the name of a preset. Raises UsageError for anything else.

    >>> parse_budgets("cuda:0=16GB,cpu=12GB")
    {'cuda:0': 16000000000, 'cpu': 12000000000}
    """
    budgets: dict[str, int] = {}
    for budget in PRESETS.get(text.strip().lower(), text).split(","):
        device, equals, size = budget.strip().partition("=")
        if not equals or not _DEVICE.fullmatch(device) or device in budgets:
            hint = f"Write budgets like cuda:0=16GB,cpu=12GB, or use a preset: {', '.join(PRESETS)}."
            raise UsageError(f"{budget.strip()!r} is not the budget of one device.", hint)
        budgets[device] = parse_bytes(size, f"a budget of {device}")
    return budgets


def plan_devices(
    architecture: Architecture, tensors: Iterable[Tensor], budgets: Mapping[str, int], place: Place, dtype: str | None
) -> DevicePlan:
    """Return the plan for a checkpoint, from accelerate's device map. `place` and `dtype` go into its code."""
    file_of = {tensor.name: tensor.file for tensor in tensors}
    sizes: dict[str, int] = dict.fromkeys([*budgets, DISK], 0)
    files: dict[str, set[str]] = {device: set() for device in sizes}
    for weight in architecture.weights:
        module = weight.name  # the longest entry of the map that is a prefix of the name decides
        while module not in architecture.device_map and module:
            module = module.rpartition(".")[0]
        device = architecture.device_map[module]
        sizes[device] += weight.bytes
        names = (_stored_name(saved, file_of) for saved in weight.saved_as)
        files[device] |= {file_of[stored] for stored in names if stored}
    name, device_map, trouble = architecture.class_name, architecture.device_map, architecture.trouble
    modules = {device: tuple(module for module, at in device_map.items() if at == device) for device in sizes}
    loads = tuple(
        DeviceLoad(device, budgets.get(device), size, modules[device], tuple(sorted(files[device])))
        for device, size in sizes.items()
        if modules[device] or device != DISK
    )
    snippet = "" if trouble else device_snippet(name, device_map, place, dtype)
    blocks = len(architecture.blocks)
    return DevicePlan(name, architecture.no_split_classes, blocks, loads, device_map, snippet, trouble)


def device_plan_json(plan: DevicePlan) -> dict[str, Any]:
    """Return a plan as the command line prints it, ready for JSON."""
    document = asdict(plan)
    return {"architecture": document.pop("class_name"), "fits": plan.fits, **document}


def _stored_name(name: str, stored: Mapping[str, str]) -> str | None:
    """Return the name of a tensor in the files, which may have or lack the base model's prefix. None: not there."""
    for known in (name, name.partition(".")[2]):
        if known in stored:
            return known
    return next((other for other in stored if other.endswith(f".{name}")), None)


def device_snippet(class_name: str, device_map: Mapping[str, str], place: Place, dtype: str | None = None) -> str:
    """Return the Python that loads the model in `place` by a device map, in `dtype` (None: "auto")."""
    where = f"    revision={place.revision!r},\n" if place.revision else ""
    where += f"    subfolder={place.inside[:-1]!r},\n" if place.inside else ""
    offload = '    offload_folder="offload",\n' if DISK in device_map.values() else ""
    lines = "".join(f"        {line},\n" for line in _map_lines(device_map))
    return (
        f"from transformers import {class_name}\n\n"
        f"model = {class_name}.from_pretrained(\n"
        f'    {place.repo_id!r},\n{where}    dtype="{dtype or "auto"}",\n'
        f"    device_map={{\n{lines}    }},\n{offload})\n"
    )


def _map_lines(device_map: Mapping[str, str]) -> list[str]:
    """Return a device map as lines of a Python dictionary, with one line for each run of numbered blocks.

    >>> _map_lines({"wte": "cpu", "h.0": "cpu", "h.1": "cpu", "h.2": "disk"})
    ["'wte': 'cpu'", "**{f'h.{n}': 'cpu' for n in range(0, 2)}", "'h.2': 'disk'"]
    """

    def run_of(item: tuple[int, tuple[str, str]]) -> tuple[object, ...]:
        position, (module, device) = item
        stem, _, last = module.rpartition(".")
        return (stem, int(last) - position, device) if stem and last.isdigit() else (position,)

    lines = []
    for _, run in groupby(enumerate(device_map.items()), run_of):
        (_, (module, device)), *rest = run
        if rest:
            stem, _, start = module.rpartition(".")
            numbers = f"range({int(start)}, {int(start) + 1 + len(rest)})"
            lines.append(f"**{{f'{stem}.{{n}}': {device!r} for n in {numbers}}}")
        else:
            lines.append(f"{module!r}: {device!r}")
    return lines


_PLACES = (
    ("CPU memory of free Colab", "colab-t4", "cpu"),
    ("T4", "colab-t4", "cuda:0"),
    ("24 GB card", "24gb", "cuda:0"),
)
"""The name of a place, and the preset and the device that say how much memory it has for weights."""

CONTEXT_TOKENS = 4096
"""How many tokens of context `Need` has room for."""


@dataclass(frozen=True, slots=True)
class Need:
    """The memory that a model needs where it is loaded and runs, in bytes.

    - `weights`: the weights as they are held: dequantized to bf16 if transformers does so without the method's kernels.
    - `loading`: the largest file. A processor holds it beside the weights while it loads them, unless it maps files,
      which it cannot do on mounted drives. If weights are dequantized, it is all files: what is left of them as it is,
      such as norms, keeps each in memory. Nothing of it stays on a card.
    - `context`: the keys and values of `CONTEXT_TOKENS` tokens in two bytes each, once they are loaded.
    - `packed`: the weights where the kernels are there, 0 if that is the same.
    """

    weights: int
    loading: int = 0
    context: int = 0
    packed: int = 0


def needed(content: Content, plan: Plan | None = None) -> Need:
    """Return what the copy of `content` by `plan`, or else `content` itself, needs to be loaded and to run."""
    stored = plan.total_bytes if plan else content.total_bytes
    written = plan.written.get("config.json") if plan else None
    config = written.decode() if written else content.configs.get("", "")
    files = [shard.bytes for shard in plan.shards] if plan else [file.bytes for file in content.weight_files]
    how, ordinary = quantization_of(config), 0
    if how is not None and method_of(how) in NEEDS_KERNELS:
        with suppress(SourceError, UsageError):  # its tensors do not match its configuration
            draft = drafted(content, Options(dequantize=True))
            ordinary = sum(tensor.bytes for tensor in draft.tensors)
    weights, context = max(ordinary, stored), context_bytes(config)
    if weights > stored:
        return Need(weights, stored, context, packed=stored)
    return Need(weights, max(files, default=0), context)


def context_bytes(config: str, tokens: int = CONTEXT_TOKENS) -> int:
    """Return the size of the keys and values of `tokens` tokens, 0 if a config.json does not tell.

    >>> context_bytes('{"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}')
    536870912
    """
    for level in objects_in(parsed_json(config)):
        layers, heads, hidden = (
            next((level[name] for name in names if isinstance(level.get(name), int)), 0)
            for names in (_LAYERS, _HEADS, _HIDDEN)
        )
        head, kept = level.get("head_dim") or (hidden // heads if heads > 0 else 0), level.get("num_key_value_heads")
        if layers and isinstance(head, int):
            return max(2 * layers * (kept if isinstance(kept, int) else heads) * head * 2 * tokens, 0)
    return 0


_LAYERS, _HEADS = ("num_hidden_layers", "n_layer", "num_layers"), ("num_attention_heads", "n_head", "num_heads")
_HIDDEN = ("hidden_size", "n_embd", "d_model")


@dataclass(frozen=True, slots=True)
class Fit:
    """How much of a copy a place holds. Each of its devices has `room_bytes` for its part of `part_bytes`.

    Each also needs `beside_bytes`. With the kernels of a quantized model, the parts have only `packed_bytes` together,
    if that is not 0.
    """

    place: str
    room_bytes: int
    part_bytes: tuple[int, ...]
    beside_bytes: int = 0
    packed_bytes: int = 0

    @property
    def spare_bytes(self) -> int:
        """What the fullest device has left. It is negative if its part does not fit."""
        return self.room_bytes - max(self.part_bytes) - self.beside_bytes

    @property
    def needs(self) -> tuple[int, ...]:
        """What each device needs, in bytes."""
        return tuple(part + self.beside_bytes for part in self.part_bytes)

    @property
    def words(self) -> str:
        """The answer.

        >>> Fit("T4", 15_000_000_000, (13_500_000_000,), 1_000_000_000).words
        'fits, 500.0 MB to spare'
        >>> Fit("Two T4s", 15_000_000_000, (70_500_000_000, 70_500_000_000)).words
        'too small: holds 30.0 GB of 141.0 GB'
        >>> Fit("24 GB card", 23_000_000_000, (30_000_000_000,), packed_bytes=15_000_000_000).words
        'too small: holds 23.0 GB of 30.0 GB; with kernels for it, fits, 8.0 GB to spare'
        """
        kernels = ""
        if self.packed_bytes:
            shares = (part * self.packed_bytes // sum(self.part_bytes) for part in self.part_bytes)
            packed = replace(self, part_bytes=tuple(shares), packed_bytes=0)
            kernels = f"; with kernels for it, {packed.words}" if packed.spare_bytes >= 0 > self.spare_bytes else ""
        if self.spare_bytes >= 0:
            each = " on the fullest" if len(self.part_bytes) > 1 else ""
            return f"fits, {format_bytes(self.spare_bytes)} to spare{each}"
        held = sum(min(part, max(self.room_bytes - self.beside_bytes, 0)) for part in self.part_bytes)
        return f"too small: holds {format_bytes(held)} of {format_bytes(sum(self.part_bytes))}{kernels}"


def where_it_fits(need: Need, stages: Sequence[int] = ()) -> tuple[Fit, ...]:
    """Return how much fits into each place, the least first, and last on a T4 for each of the `stages`, or two."""

    def fit(name: str, preset: str, device: str, parts: tuple[int, ...]) -> Fit:
        beside, packed = (need.context, need.packed) if device != "cpu" else (max(need.loading, need.context), 0)
        return Fit(name, parse_budgets(preset)[device], parts, beside, packed)

    stored, half = sum(stages), need.weights // 2
    parts = tuple(stage * need.weights // stored for stage in stages) if stored else (need.weights - half, half)
    several = "Two T4s" if len(parts) == 2 else f"{len(parts)} machines with a T4"
    places = [fit(*place, (need.weights,)) for place in _PLACES]
    return (*places, fit(several, "kaggle-2xt4", "cuda:0", parts))
