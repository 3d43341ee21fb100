"""One job on several machines makes what one machine makes, in a folder that they share and on a Hub, or is refused."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
import torch

from sharding import __version__
from tests.clusters import ROOT, Cluster, cluster, of_session, wait_until
from tests.conftest import random_tensors, write_checkpoint
from tests.fleets import Event, alone, assert_same_folders, assert_same_repos, fleet, refusal, slow_parts, variables
from tests.ggufs import model
from tests.hubs import exists, hub_over_http, push
from tests.inhouse import InHouse
from tests.lora import Case, save_both
from tests.quantized import FORMS, save_form
from tests.scenarios.test_trained import small_model, trained

NUMBERS = count(1000)
PIECES: list[Path] = []
SIZE = "1.3MB"
hub = hub_over_http
Make = Callable[[Path], tuple[Path, list[str]]]


def in_safetensors(place: Path) -> Path:
    """A checkpoint in two files, of six shards; no other one's bytes, which workers would know to be in a store."""
    tensors = random_tensors(12, 150_000, next(NUMBERS))
    names = list(tensors)
    halves = (names[:6], names[6:])
    files = {f"model-0000{n}-of-00002.safetensors": {name: tensors[name] for name in halves[n - 1]} for n in (1, 2)}
    return write_checkpoint(place / "in", files)


def plain(place: Path) -> tuple[Path, list[str]]:
    return in_safetensors(place), ["-s", SIZE]


def cast(place: Path) -> tuple[Path, list[str]]:
    return in_safetensors(place), ["-s", "700kB", "--dtype", "bf16"]


def pickled(place: Path) -> tuple[Path, list[str]]:
    """A `.bin` file with tensors that do not lie in order, and some that share their bytes."""
    whole = [torch.from_numpy(np.random.default_rng(n).random((500, 300), np.float32)) for n in range(6)]
    views = {f"layers.{n}.turned": tensor.t() for n, tensor in enumerate(whole)}
    parts = {f"layers.{n}.part": tensor[::2, 3:90] for n, tensor in enumerate(whole)}
    source = write_checkpoint(place / "in", {}, index=False)
    torch.save({**views, **parts, "again": whole[0]}, source / "pytorch_model.bin")
    return source, ["-s", SIZE]


def in_pieces(place: Path) -> tuple[Path, list[str]]:
    """What the ranks of a training run have saved, and the model that was trained."""
    if not PIECES:  # once: it takes as many processes as ranks
        PIECES.append(place)
        trained(small_model(place / "base"), place / "ranks", 2, "columns")
    (made,) = PIECES
    return made / "ranks/columns", ["-s", "20kB", "--base", str(made / "base")]


def gguf(place: Path) -> tuple[Path, list[str]]:
    return model(place / "in"), ["-s", "10kB"]


def packed(place: Path) -> tuple[Path, list[str]]:
    """A pipeline with a component in every format. All of them become ordinary ones."""
    folder = place / "in"
    for number, form in enumerate(FORMS):
        save_form(form, folder / f"part{number}")
    index = {f"part{number}": ["transformers", "T"] for number in range(len(FORMS))}
    (folder / "model_index.json").write_text(json.dumps({"_class_name": "P", **index}))
    return folder, ["-s", "20kB", "--dequantize"]


def adapted(place: Path) -> tuple[Path, list[str]]:
    """A model, and an adapter to merge into it."""
    base, adapter = save_both(Case(), place)
    return base, ["-s", "30kB", "--adapter", str(adapter)]


def assert_told(events: list[Event], cluster: Cluster, is_slow: bool = False) -> None:
    """Each shard was told of once, and who was at what: both nodes, where one alone could not be quicker."""
    names = {node.name for node in cluster.nodes}
    report = events[-1]
    told = report["fleet"]
    assert told["engine"].startswith("ray ") and told["repeated"] == []
    assert all(
        node["parts"] and node["bytes"] and node["seconds"] and node["peak_anon_bytes"] for node in told["nodes"]
    )
    files = [shard["file"] for shard in report["shards"]]
    assert sorted(event["file"] for event in events if event["event"] == "shard-finished") == sorted(files)
    at_work = [worker for event in events if event["event"] == "progress" for worker in event["workers"]]
    for found in ({node["node"] for node in told["nodes"]}, {worker["node"] for worker in at_work}):
        assert found == names if is_slow else found <= names  # once a second somebody says who is at what
    assert {worker["file"] for worker in at_work} & set(files) or not is_slow
    assert all(worker["pid"] and worker["anon_bytes"] for worker in at_work)


@pytest.mark.parametrize("make", [plain, *(pytest.param(one, marks=pytest.mark.thorough) for one in (packed, gguf))])
def test_a_folder_becomes_what_one_machine_makes_of_it(make: Make, cluster: Cluster, tmp_path: Path) -> None:
    source, words = make(tmp_path)
    with fleet(variables(cluster, None), source, tmp_path / "ours/out", *words) as job:
        job.finish()
    alone(variables(None, None), source, tmp_path / "alone/out", *words)
    assert_same_folders(tmp_path / "ours/out", tmp_path / "alone/out")
    assert_told(job.events, cluster)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("make", "is_private"),
    [(plain, True), (cast, True), (pickled, False), (in_pieces, False), (adapted, True), (gguf, False)],
)
def test_a_repo_becomes_what_one_machine_makes_of_it(
    make: Make, is_private: bool, cluster: Cluster, hub: InHouse, tmp_path: Path
) -> None:
    folder, words = make(tmp_path)
    number = next(NUMBERS)
    source = push(hub, folder, f"alice/source-{number}", private=is_private)
    if "--base" in words or "--adapter" in words:
        words[-1] = push(hub, Path(words[-1]), f"alice/beside-{number}", private=is_private)
    with (
        slow_parts(hub) if make is plain else nullcontext(),
        fleet(variables(cluster, hub), source, f"alice/fleet-{number}", *words) as job,
    ):
        job.finish()
    alone(variables(None, hub), source, f"alice/alone-{number}", *words)
    assert_same_repos(hub, f"alice/fleet-{number}", f"alice/alone-{number}", tmp_path)
    assert_told(job.events, cluster, is_slow=make is plain)


@pytest.mark.thorough
@pytest.mark.parametrize(("proof", "outcome"), [("read", "identical"), ("stated", "stated")])
def test_a_folder_goes_to_a_hub(proof: str, outcome: str, cluster: Cluster, hub: InHouse, tmp_path: Path) -> None:
    (source, words), number = plain(tmp_path), next(NUMBERS)
    words += ["--proof", proof]
    with fleet(variables(cluster, hub), source, f"alice/fleet-{number}", *words) as job:
        verification = job.finish()["verification"]
    assert verification["outcome"] == outcome and verification["evidence"]["xet"] == (proof == "stated")
    alone(variables(None, hub), source, f"alice/alone-{number}", *words)
    assert_same_repos(hub, f"alice/fleet-{number}", f"alice/alone-{number}", tmp_path)


@pytest.mark.thorough
def test_without_a_cluster_one_of_this_machine_is_started_and_ends_with_the_job(hub: InHouse, tmp_path: Path) -> None:
    source, words = plain(tmp_path)
    with fleet(variables(None, None), source, tmp_path / "ours/out", *words) as job:
        report = job.finish()
        wait_until(lambda: not of_session(job.process.pid))
    alone(variables(None, None), source, tmp_path / "alone/out", *words)
    assert_same_folders(tmp_path / "ours/out", tmp_path / "alone/out")
    (node,) = report["fleet"]["nodes"]
    assert node["node"].startswith("127.0.0.1 (")


@pytest.mark.thorough
def test_another_version_on_a_node_is_refused_and_both_are_named(hub: InHouse, tmp_path: Path) -> None:
    package = copytree(ROOT / "sharding", tmp_path / "other/sharding")
    text = (package / "__init__.py").read_text()
    assert __version__ in text
    (package / "__init__.py").write_text(text.replace(__version__, "0.0.7"))
    folder, words = plain(tmp_path)
    with cluster(other=package.parent) as mixed, slow_parts(hub):  # else the first node may have done all of it
        status, said = refusal(variables(mixed, hub), folder, "alice/refused", *words)
        assert status == 3, said
        assert mixed.nodes[1].name in said and "0.0.7" in said and __version__ in said
    assert not exists(hub, "alice/refused")
