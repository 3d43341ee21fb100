"""A terminal whose two outputs are read, and values to show there."""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from rich.console import Console

from sharding.cli.terminal import Terminal
from sharding.core.options import Options
from sharding.core.values import (
    Checkpoint,
    Component,
    FileEntry,
    Plan,
    RepoRef,
    Shard,
    Tensor,
    Verification,
)
from sharding.loading.costs import Comparison, LoadCost, Prediction, Verdict
from sharding.planning.devices import DeviceLoad, DevicePlan
from tests.tensors import stored_tensor

GB = 1_000_000_000


@dataclass
class Screen:
    """A terminal, and what stands on it by now."""

    out: io.StringIO
    err: io.StringIO
    terminal: Terminal

    @property
    def results(self) -> str:
        return self.out.getvalue()

    @property
    def passing(self) -> str:
        return self.err.getvalue()

    @property
    def rows(self) -> list[list[str]]:
        """The cells of what stands in lines."""
        return [re.split(r" {2,}|(?<=\)) ", line.strip()) for line in self.results.splitlines()]


@pytest.fixture
def screen() -> Screen:
    out, err = io.StringIO(), io.StringIO()
    results, passing = (Console(file=file, soft_wrap=True, width=200) for file in (out, err))
    return Screen(out, err, Terminal(results, passing))


def entry(name: str, file: str, size: int = 4, start: int = 0) -> Tensor:
    return stored_tensor(name, "U8", (size,), file, start, start + size)


def plan_of(files: Sequence[str], **more: object) -> Plan:
    shards = tuple(Shard(file, (entry(f"w{n}", "in"),), 4) for n, file in enumerate(files))
    return replace(Plan(shards, (Component(),), 4 * len(shards), 4 * len(shards), Options(), ()), **more)  # type: ignore[arg-type]


def checkpoint_of(files: Sequence[str], **more: object) -> Checkpoint:
    tensors = tuple(entry(f"w{n}", file) for n, file in enumerate(files))
    entries = tuple(FileEntry(file, 4) for file in files)
    return replace(Checkpoint(RepoRef("hub", "a/b", ""), tensors, (Component(),), entries, (), ()), **more)  # type: ignore[arg-type]


SAME = Verification(3, 12, 0.5, "all read", ())


COST = LoadCost(
    outcome="loaded", message="", method="from_pretrained", dtype_asked=None, memory_limited_by=None, cache="cold",
    seconds={"import": 50.0, "load": 2.0, "forward": 1.0}, peak_anon_bytes=GB // 4, peak_file_bytes=2 * GB,
    peak_total_bytes=3 * GB, format="safetensors", files=8,
)  # fmt: skip
MEASURED = Comparison(
    "from_pretrained", None, True, None,
    original=(
        COST,
        replace(COST, seconds={"load": 9.0}, peak_anon_bytes=GB, peak_file_bytes=4 * GB),
        replace(COST, seconds={"load": 4.0, "tokens": 1.5}, peak_anon_bytes=3 * GB, peak_file_bytes=0),
    ),
    sharded=(replace(COST, files=1), replace(COST, files=1), replace(COST, files=1)),
    verdict=Verdict("gain", None, "It is better."), predicted=(Prediction(1, 1), Prediction(1, 1)), machine="a machine",
)  # fmt: skip


DEVICES = DevicePlan(
    "LlamaForCausalLM",
    ("LlamaDecoderLayer",),
    2,
    (DeviceLoad("cuda:0", 16 * GB, 9, ("h.0", "h.1"), ("a", "b")), DeviceLoad("cpu", None, 4, ("head",), ("c",))),
    {"h.0": "cuda:0", "head": "cpu"},
    "import torch\nload()",
)
