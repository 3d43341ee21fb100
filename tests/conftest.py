"""Small checkpoints to work on, and the command line to run."""

import asyncio
import atexit
import gc
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from safetensors.numpy import save_file
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from sharding.core.options import Options
from tests import warm

if TYPE_CHECKING:
    from tests.clusters import Cluster
    from tests.localhub.conftest import Server

# A run in the background may ignore interrupts, and would hand that on to the jobs that are interrupted here.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Time is never asserted, and the machine of a test may be slow or busy.
# A fixture for all examples of a property is what these tests mean. `make fuzz` tries far more of what is hostile.
HELD = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile("untimed", deadline=None, suppress_health_check=HELD, max_examples=50)
settings.load_profile("untimed")

LONGEST_SECONDS = 300
"""A command that takes as long hangs."""
ROOT = Path(__file__).parent.parent
# huggingface_hub reads it once, at its import: no login and no cache of this machine's own. What has imported it already,
# as the process has that tries faults, has chosen a folder too.
CHOSEN = os.environ.get("HF_HOME", "") if "huggingface_hub" in sys.modules else ""
HOME = Path(CHOSEN or tempfile.mkdtemp(prefix="home-"))
os.environ["HF_HOME"] = str(HOME)
# From anywhere, `sharding` is that of this tree.
os.environ["PYTHONPATH"] = str(ROOT)
if not CHOSEN:
    atexit.register(shutil.rmtree, HOME, ignore_errors=True)
# Two processes run tests side by side, and their models are small: threads of torch would only wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# On some processors MKL adds up in another order where weights lie at another offset in their file: the last bit of
# logits would tell how a checkpoint is cut (oneMKL, Conditional Numerical Reproducibility).
os.environ.setdefault("MKL_CBWR", "COMPATIBLE")
Tensors = Mapping[str, np.ndarray]


def random_tensors(count: int = 12, elements: int = 5000, seed: int = 0) -> dict[str, np.ndarray]:
    """Layers whose stored order (by name) differs from the natural one, and one integer tensor."""
    random = np.random.default_rng(seed)
    tensors = {f"layers.{n}.weight": random.standard_normal(elements).astype(np.float32) for n in range(count)}
    return {
        **tensors,
        "norm.steps": np.arange(7, dtype=np.int64),
        "embed.weight": random.standard_normal((9, 3)).astype(np.float16),
    }


def write_checkpoint(folder: Path, files: Mapping[str, Tensors], index: bool = True) -> Path:
    """Write `files` (name to tensors) with an index that tells the truth, and a configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, tensors in files.items():
        save_file(dict(tensors), folder / name, metadata={"format": "pt"})
    if index:
        weight_map = {tensor: name for name, tensors in files.items() for tensor in tensors}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    return folder


def in_two_files(folder: Path) -> Path:
    """Write a checkpoint in two files with an index, about 240 kB."""
    tensors = random_tensors()
    names = list(tensors)
    halves = {
        "model-00001-of-00002.safetensors": {name: tensors[name] for name in names[:8]},
        "model-00002-of-00002.safetensors": {name: tensors[name] for name in names[8:]},
    }
    return write_checkpoint(folder, halves)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return in_two_files(tmp_path / "checkpoint")


@pytest.fixture
def run() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a command as a person would, in this process; `commands.run_process` gives it one of its own."""
    from tests.commands import invoke

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        done = invoke(*arguments)
        return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)

    return run


@pytest.fixture(scope="session")
def warm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where processes ask for a fork that has imported torch: one server for all processes of this run."""
    folder, parent = tmp_path_factory.getbasetemp(), os.getpid()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder, parent = folder.parent, os.getppid()
    return warm.start(folder, parent, environment())


@pytest.fixture(scope="session")
def warm_path(warm_folder: Path) -> str:
    """The path of modules with which processes that would import torch are forks of one that has done so."""
    # Where coverage watches, a fork would be taken for the test that was first to have one.
    return str(ROOT) if "COVERAGE_PROCESS_START" in os.environ else f"{warm_folder}{os.pathsep}{ROOT}"


@pytest.fixture
def warm_processes(warm_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have processes that would import torch be such forks: it takes each of them seconds."""
    monkeypatch.setenv("PYTHONPATH", warm_path)


@pytest.fixture(autouse=True)
def answers_here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What transformers knows is asked in this process: one of its own, which `own_process` asks for, takes seconds."""
    if request.node.get_closest_marker("own_process"):
        return

    def answer(*question: Any) -> Any:
        from tests import models  # only now: most tests do without torch

        return models.answer(*question)

    monkeypatch.setattr("sharding.model_class.architecture.ask_meta_model", answer)


@pytest.fixture
def classic_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do the work of the classic engine's process in this one: what comes out is the same, only what it costs is not."""
    from sharding.core.errors import SourceError
    from sharding.loading.classic_child import load_and_save
    from sharding.loading.costs import ClassicCost
    from sharding.model_class.transformers_class import Unsupported

    def run(folder: Path, out: Path, max_shard_bytes: int, dtype: str | None) -> ClassicCost:
        try:
            load_and_save(folder, out, max_shard_bytes, dtype or "keep")
        except Unsupported as error:
            raise SourceError(str(error), "") from error
        return ClassicCost(0.0, 0, 0)

    monkeypatch.setattr("sharding.loading.classic.run_classic", run)


SLOWEST = ("page", "scenarios", "desk", "loading", "planning", "cli", "report", "storage")
"""Folders of tests in the order in which they are begun: what takes long is not to be the last."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: (*SLOWEST, item.path.parent.name).index(item.path.parent.name))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """With `--dist loadfile`, give what needs a browser to one process too: its servers are then started once."""
    return _Together(config, log) if config.getoption("dist") == "loadfile" else None


class _Together(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return "browser" if _needs_site(nodeid.partition("::")[0]) else super()._split_scope(nodeid)


@cache
def _needs_site(file: str) -> bool:
    """Whether tests of a file use a served page, or a browser."""
    return file.startswith("tests/page/") and bool(_OF_SITE.search((ROOT / file).read_text()))


_OF_SITE = re.compile(r"\b(?:home|space): Site\b")


def pytest_collection() -> None:
    """Look for no garbage while modules are imported: they stay."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Look for garbage from now on, and never again among what was imported: that took half a second each time."""
    gc.freeze()
    gc.enable()


@pytest.fixture
def nothing_stays_on_this_disk(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """A test whose job, done or refused, leaves no file where a job could put one."""
    cwd, temporary = tmp_path_factory.mktemp("cwd"), tmp_path_factory.mktemp("temporary")
    monkeypatch.chdir(cwd)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    before = listing(HOME)
    yield
    assert listing(cwd) == listing(temporary) == {}
    assert listing(HOME) == before


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Callable[..., Server]"]:
    """Start a loopback Hub with the options given; it is stopped at the end."""
    from tests.localhub.conftest import Server

    servers: list[Server] = []

    def start(*options: str, **more: Any) -> "Server":
        servers.append(Server(tmp_path_factory.mktemp("hub"), options).start(**more))
        return servers[-1]

    yield start
    for server in servers:
        if server.process and server.process.poll() is None:
            server.stop()


@pytest.fixture(scope="session")
def cluster() -> Iterator["Cluster"]:
    """A Ray cluster of two nodes, for tests that kill none of them."""
    from tests.clusters import cluster

    with cluster() as running:
        yield running


def new_seed() -> int:
    """Draw a seed for what happens at random, and print it: the variable TEST_SEED has the same happen again."""
    seed = int(os.environ.get("TEST_SEED") or random.randrange(2**32))
    print(f"seed {seed}")
    return seed


def options_of(size: str, choices: Mapping[str, Any]) -> tuple[Options, dict[str, Any]]:
    chosen = {field.name: choices[field.name] for field in fields(Options) if field.name in choices}
    return Options(size, **chosen), {name: choice for name, choice in choices.items() if name not in chosen}


def environment() -> dict[str, str]:
    """An environment in which `sharding` is importable from anywhere, and warnings are shown."""
    return {"PYTHONPATH": str(ROOT), **os.environ, "PYTHONWARNINGS": "default"}


def listing(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def in_a_loop(work: Coroutine[Any, Any, Any]) -> Any:
    """Run `work` in a thread of its own: in this one a browser's loop may run."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()
