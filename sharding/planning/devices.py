"""Decide which device holds which block of a model, within memory budgets. Pure."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sharding.core.errors import UsageError
from sharding.core.text import parse_bytes
from sharding.core.values import Address, Tensor
from sharding.model_class.architecture import Architecture

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
    """The device of each module. The plan fits if the disk holds no module. `snippet` is the Python that loads it.

    If there is none, it is "" and `trouble` says why.
    """

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
    """Return device to bytes for a budget such as "cuda:0=16GB,cpu=12GB", or for the name of a preset.

    >>> parse_budgets("cuda:0=16GB,cpu=12GB")
    {'cuda:0': 16000000000, 'cpu': 12000000000}

    Raises UsageError for anything else.
    """
    budgets: dict[str, int] = {}
    for budget in PRESETS.get(text.strip().lower(), text).split(","):
        device, equals, size = budget.strip().partition("=")
        if not equals or not _DEVICE.fullmatch(device) or device in budgets:
            raise UsageError(
                f"{budget.strip()!r} is not the budget of one device.",
                f"Write budgets like cuda:0=16GB,cpu=12GB, or use a preset: {', '.join(PRESETS)}.",
            )
        budgets[device] = parse_bytes(size, f"a budget of {device}")
    return budgets


def plan_devices(
    architecture: Architecture, tensors: Iterable[Tensor], budgets: Mapping[str, int], place: Address, dtype: str | None
) -> DevicePlan:
    """Return the plan for a checkpoint of `tensors`, from accelerate's device map in `architecture`.

    `place` and `dtype` (None: "auto") go into the snippet.
    """
    file_of = {tensor.name: tensor.file for tensor in tensors}
    loads: dict[str, int] = dict.fromkeys([*budgets, DISK], 0)
    files: dict[str, set[str]] = {device: set() for device in loads}
    for weight in architecture.weights:
        module = weight.name  # the longest entry of the map that is a prefix of the name decides
        while module not in architecture.device_map and module:
            module = module.rpartition(".")[0]
        device = architecture.device_map[module]
        loads[device] += weight.bytes
        names = (_stored_name(saved, file_of) for saved in weight.saved_as)
        files[device] |= {file_of[stored] for stored in names if stored}
    modules = {device: tuple(m for m, at in architecture.device_map.items() if at == device) for device in loads}
    return DevicePlan(
        class_name=architecture.class_name,
        no_split_classes=architecture.no_split_classes,
        blocks=len(architecture.blocks),
        devices=tuple(
            DeviceLoad(device, budgets.get(device), loads[device], modules[device], tuple(sorted(files[device])))
            for device in loads
            if modules[device] or device != DISK
        ),
        device_map=architecture.device_map,
        snippet=""
        if architecture.trouble
        else device_snippet(architecture.class_name, architecture.device_map, place, dtype),
        trouble=architecture.trouble,
    )


def device_plan_json(plan: DevicePlan) -> dict[str, Any]:
    """Return a plan as the command line prints it, ready for JSON."""
    return {
        "architecture": plan.class_name,
        "fits": plan.fits,
        "no_split_classes": list(plan.no_split_classes),
        "blocks": plan.blocks,
        "devices": [
            {**asdict(load), "modules": list(load.modules), "files": list(load.files)} for load in plan.devices
        ],
        "device_map": dict(plan.device_map),
        "snippet": plan.snippet,
        "trouble": plan.trouble,
    }


def _stored_name(name: str, stored: Mapping[str, str]) -> str | None:
    """Return the name of a tensor in the files, None if it is not there.

    A checkpoint may have the base model's prefix, or lack it.
    """
    if name in stored:
        return name
    shorter = name.partition(".")[2]
    if shorter in stored:
        return shorter
    return next((other for other in stored if other.endswith(f".{name}")), None)


def device_snippet(class_name: str, device_map: Mapping[str, str], place: Address, dtype: str | None = None) -> str:
    """Return the Python that loads the model in `place` by a device map, in `dtype` (None: "auto")."""
    name, revision, folder = place
    where = f"    revision={revision!r},\n" if revision else ""
    where += f"    subfolder={folder[:-1]!r},\n" if folder else ""
    offload = '    offload_folder="offload",\n' if DISK in device_map.values() else ""
    lines = "".join(f"        {line},\n" for line in _map_lines(device_map))
    return (
        f"from transformers import {class_name}\n\n"
        f"model = {class_name}.from_pretrained(\n"
        f'    {name!r},\n{where}    dtype="{dtype or "auto"}",\n    device_map={{\n{lines}    }},\n{offload})\n'
    )


def _map_lines(device_map: Mapping[str, str]) -> list[str]:
    """Return a device map as lines of a Python dictionary, with one line for each run of numbered blocks.

    >>> _map_lines({"wte": "cpu", "h.0": "cpu", "h.1": "cpu", "h.2": "disk"})
    ["'wte': 'cpu'", "**{f'h.{n}': 'cpu' for n in range(0, 2)}", "'h.2': 'disk'"]
    """
    runs: list[tuple[str, int | None, int, str]] = []
    for module, device in device_map.items():
        stem, _, last = module.rpartition(".")
        number = int(last) if last.isdigit() and stem else None
        if runs and number is not None and (runs[-1][0], runs[-1][2], runs[-1][3]) == (stem, number, device):
            runs[-1] = (stem, runs[-1][1], number + 1, device)
        else:
            runs.append((module, None, 0, device) if number is None else (stem, number, number + 1, device))
    lines = []
    for stem, start, end, device in runs:
        if start is None:
            lines.append(f"{stem!r}: {device!r}")
        elif end == start + 1:
            lines.append(f"{f'{stem}.{start}'!r}: {device!r}")
        else:
            lines.append(f"**{{f'{stem}.{{n}}': {device!r} for n in range({start}, {end})}}")
    return lines
