"""What a Hub states of each file is held against each, of either side; what it does not state is said."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import CommitOperationAdd, constants
from safetensors.numpy import save_file

from sharding import job
from sharding.core.errors import SourceError
from sharding.core.events import ShardFinished
from sharding.core.options import Options
from sharding.core.values import FileEntry
from sharding.core.verification import Mismatch, Verification
from sharding.report.schema import Report
from sharding.storage.hub import answers as retry
from sharding.storage.hub.source import HubSource
from sharding.storage.hub.staging import STAGING_BRANCH
from tests.conftest import in_two_files, random_tensors, write_checkpoint
from tests.folders import compared, finish, kept, until_shard
from tests.hubs import TOKEN, blob, exists, files_of, push, shard
from tests.inhouse import InHouse, hub_in_house
from tests.lora import Case, save_adapter, save_base
from tests.promises import promise

SOURCE, MADE = "alice/source", "alice/made"
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX, ADAPTER = "model.safetensors.index.json", "lora/adapter_model.safetensors"
PARTS = ("text_encoder/model.safetensors", "unet/diffusion_pytorch_model.safetensors")
LFS = "*.safetensors filter=lfs diff=lfs merge=lfs -text\n"
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # huggingface_hub's own, in its LFS upload


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InHouse]:
    """A Hub without Xet, which keeps every weight file of the source in two files by its SHA-256."""
    monkeypatch.setattr(retry, "NETWORK_WAIT_SECONDS", 0.001)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    (in_two_files(tmp_path / "in") / "config.json").write_text("{}")
    with hub_in_house(tmp_path / "hub", xet=False) as hub:
        yield hub


def put(hub: InHouse, folder: Path, repo_id: str = SOURCE) -> str:
    (folder / ".gitattributes").write_text(LFS)
    return push(hub, folder, repo_id)


def write_pipeline(folder: Path) -> Path:
    """A pipeline of two components, whose files are too large to be read with their headers."""
    for number, path in enumerate(PARTS):
        (folder / path).parent.mkdir(parents=True)
        arrays = {f"w{n}": np.full(20_000, n + number, np.float32) for n in range(2)}
        save_file(arrays, folder / path, metadata={"format": "pt"})
        (folder / path).with_name("config.json").write_text("{}")
    named = {path.split("/")[0]: ["transformers", "CLIPTextModel"] for path in PARTS}
    (folder / "model_index.json").write_text(json.dumps({"_class_name": "StableDiffusionPipeline", **named}))
    return folder


def change(path: Path, was: bytes, becomes: bytes) -> Callable[..., object]:
    """Put other bytes of the same size in the place of the first `was`; return what undoes that."""
    path.chmod(0o644)
    data = path.read_bytes()
    assert was in data and len(was) == len(becomes)
    path.write_bytes(data.replace(was, becomes, 1))
    return lambda _: path.write_bytes(data)


def compare(hub: InHouse, one: object, other: object, **choices: object) -> Verification:
    return compared(one, other, endpoint=hub.address, token=TOKEN, **choices)


def made(hub: InHouse, options: Options | str = "60kB", meanwhile: Callable[..., object] = repr) -> Report:
    """Run a job to its end; do something with what it tells of its first shard, once that is finished."""
    events = job.shard(SOURCE, MADE, options, endpoint=hub.address, token=TOKEN)
    meanwhile(until_shard(events))
    return finish(events)


@pytest.fixture
def unstated(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have the Hub state no hash of the files of these names."""

    def forget(*paths: str) -> None:
        listed = HubSource._list

        def told(source: HubSource) -> list[FileEntry]:
            files = listed(source)
            return [replace(one, sha256=None, git_sha1=None) if one.path in paths else one for one in files]

        monkeypatch.setattr(HubSource, "_list", told)

    return forget


# --- Headers -----------------------------------------------------------------------------------------------


F32, I32 = b'"dtype":"F32"', b'"dtype":"I32"'
CHANGED = "its header has changed since it was first read"
METADATA = b'"format":"pt"', b'"format":"tf"', "it has changed since the headers were first read"


@pytest.mark.parametrize(
    ("file", "was", "becomes", "problem"),
    [
        (FIRST, F32, I32, CHANGED),
        (SECOND, b'"shape":[9,3]', b'"shape":[3,9]', CHANGED),
        *((part, *METADATA) for part in PARTS),
    ],
)
def test_what_was_read_wrongly_in_the_header_of_any_file_is_not_published(
    hub: InHouse, tmp_path: Path, file: str, was: bytes, becomes: bytes, problem: str
) -> None:
    put(hub, write_pipeline(tmp_path / "pipeline") if file in PARTS else tmp_path / "in")
    mend = change(blob(hub, file), was, becomes)
    (wrong,) = made(hub, meanwhile=mend).verification.mismatches
    assert wrong.problem == problem
    assert wrong.tensor == (f"{file.split('/')[0]}/__metadata__" if file in PARTS else file)
    assert not exists(hub, MADE)
    assert made(hub).verification.identical


def test_a_staged_shard_whose_header_somebody_replaces_is_not_published(hub: InHouse, tmp_path: Path) -> None:
    """Put together again, its bytes still give the hashes of the source: only its header is another."""

    def replace_header(shown: ShardFinished) -> None:
        path = hub.api().hf_hub_download(MADE, shown.file, revision=STAGING_BRANCH, local_dir=tmp_path / "staged")
        data = Path(path).read_bytes()
        assert F32 in data
        operation = CommitOperationAdd(shown.file, data.replace(F32, I32, 1))
        hub.api().create_commit(MADE, [operation], commit_message="Mine", revision=STAGING_BRANCH)

    put(hub, tmp_path / "in")
    (wrong,) = made(hub, meanwhile=replace_header).verification.mismatches
    assert wrong.problem == "its header is not the one that was planned"
    assert not exists(hub, MADE) or INDEX not in files_of(hub, MADE)


# --- What is not stated is said, what is proved is said ---------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "paths"), [("keep", (FIRST,)), ("bf16", (SECOND,)), ("keep", ()), ("bf16", ())], ids=str
)
def test_one_file_without_a_hash_makes_a_result_unstated(
    hub: InHouse, tmp_path: Path, unstated: Callable[..., None], dtype: str, paths: tuple[str, ...]
) -> None:
    put(hub, tmp_path / "in")
    unstated(*paths)
    proof = made(hub, Options("60kB", dtype=dtype)).verification
    assert proof.identical and proof.unstated is bool(paths)
    if paths:
        assert "put together again" not in proof.method
    if paths or dtype == "bf16":
        assert f"{2 - len(paths)} of the source's 2 files were read whole once more: they have the hash" in proof.method
    else:
        assert "2 of the source's files, put together again from the result, have the SHA-256" in proof.method


@pytest.mark.parametrize("paths", [(SECOND,), (FIRST, SECOND), ()], ids=["second", "both", "none"])
def test_a_comparison_with_one_file_without_a_hash_on_either_side_is_unstated(
    hub: InHouse, tmp_path: Path, unstated: Callable[..., None], paths: tuple[str, ...]
) -> None:
    put(hub, tmp_path / "in")
    unstated(*paths)
    for pair in ((SOURCE, tmp_path / "in"), (tmp_path / "in", SOURCE), (SOURCE, SOURCE)):
        proof = compare(hub, *pair)
        assert proof.identical and proof.unstated is bool(paths)
    assert not compare(hub, tmp_path / "in", tmp_path / "in").unstated


@pytest.mark.parametrize("place", ["hub", "folder"])
def test_what_an_earlier_run_left_is_said_to_be_compared_with_a_folder_alone(
    hub: InHouse, tmp_path: Path, place: str
) -> None:
    put(hub, tmp_path / "in")
    source, out = SOURCE if place == "hub" else str(tmp_path / "in"), str(tmp_path / "out")
    until_shard(job.shard(source, out, "60kB", endpoint=hub.address, token=TOKEN), 2, stop=True)
    events = list(job.shard(source, out, "60kB", endpoint=hub.address, token=TOKEN))
    said, number = finish(events).verification.method, kept(events)
    assert number > 1
    compared = f"; {number} shards of an earlier run compared with the source's tensors first"
    assert (compared in said) is (place == "folder")
    assert "earlier run" not in shard(hub, source, str(tmp_path / "fresh")).verification.method


def test_two_repos_differ_in_their_numbers_as_two_folders_do(hub: InHouse, tmp_path: Path) -> None:
    one, other = tmp_path / "in", tmp_path / "other"
    write_checkpoint(other, {"model.safetensors": random_tensors(seed=1)}, index=False)
    found = compare(hub, one, other, numeric=True).differences
    assert found and len(found) == 13
    repos = put(hub, one), put(hub, other, "alice/other")
    for pair in (repos, (repos[0], other), (one, repos[1])):
        assert compare(hub, *pair, numeric=True).differences == found


# --- Weights beside the weights ----------------------------------------------------------------------------


@pytest.fixture
def beside(hub: InHouse, tmp_path: Path) -> InHouse:
    """Two copies on the Hub with an adapter each, of the same size and with other bytes."""
    for name, first in (("one", 0), ("other", 1)):
        folder = tmp_path / name
        *_, _ = job.shard(str(tmp_path / "in"), str(folder), "60kB")
        (folder / "lora").mkdir()
        save_file({"lora_A.weight": np.arange(first, 9000 + first)}, folder / ADAPTER)
        put(hub, folder, f"alice/{name}")
    return hub


def test_a_quick_look_compares_the_hashes_that_a_hub_states_of_weights_beside(beside: InHouse, tmp_path: Path) -> None:
    hub, open_end = beside, "the bytes of weight files beside the weights"
    for pair in (("alice/one", "alice/other"), ("alice/other", "alice/one")):
        for quick in (True, False):
            assert compare(hub, *pair, quick=quick).mismatches == (Mismatch(ADAPTER, "its bytes differ"),)
    same = compare(hub, "alice/one", "alice/one", quick=True)
    assert same.identical and open_end not in same.unchecked
    # A folder states nothing: whichever of both it is, the bytes were not compared.
    for pair in (("alice/one", tmp_path / "other"), (tmp_path / "one", "alice/other"), (tmp_path / "one",) * 2):  # type: ignore[assignment]
        looked = compare(hub, *pair, quick=True)
        assert looked.identical and looked.unchecked[-1] == open_end
        assert open_end not in compare(hub, *pair).unchecked


@pytest.mark.parametrize("repo_id", ["alice/one", "alice/other"])
def test_weights_beside_that_arrive_otherwise_than_stated_end_the_comparison(
    beside: InHouse, tmp_path: Path, repo_id: str
) -> None:
    folder = tmp_path / repo_id.split("/")[1]
    change(blob(beside, ADAPTER, repo_id), np.arange(500, 502).tobytes(), np.arange(2).tobytes())
    for pair in ((repo_id, folder), (folder, repo_id)):
        with pytest.raises(SourceError, match=f"{ADAPTER} arrived damaged") as refusal:
            compare(beside, *pair)
        assert refusal.value.hint


# --- Inputs in several places --------------------------------------------------------------------------------


@pytest.fixture
def places(hub: InHouse, tmp_path: Path) -> dict[str, str]:
    """A base on a disk and on the Hub, and an adapter there that is too large to be read with its header."""
    case = Case(lora={"target_modules": ["q_proj"], "r": 1024})
    base = save_base(case, tmp_path / "base")
    put(hub, save_adapter(case, base, tmp_path / "lora"), "alice/lora")
    return {"folder": str(base), "hub": put(hub, base, "alice/base")}


def merged(hub: InHouse, base: str, out: Path) -> Verification:
    options = Options("1MB", adapter="alice/lora")
    return finish(job.shard(base, str(out), options, endpoint=hub.address, token=TOKEN)).verification


@promise("docs/security.md#get-other-bytes-of-an-adapter")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("base", ["folder", "hub"])
def test_an_adapter_whose_bytes_are_not_those_that_its_hub_states_is_not_merged(
    hub: InHouse, places: dict[str, str], base: str, tmp_path: Path
) -> None:
    path = blob(hub, "adapter_model.safetensors", "alice/lora")
    change(path, path.read_bytes()[-8:], bytes(8))
    proof = merged(hub, places[base], tmp_path / "out")
    assert not proof.identical and "adapter_model.safetensors" in str(proof.mismatches)
    assert not (tmp_path / "out").exists()


@promise("docs/security.md#get-other-bytes-of-an-adapter")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("base", ["folder", "hub"])
def test_an_adapter_of_which_its_hub_states_nothing_is_said_to_be_unstated_wherever_its_base_is(
    hub: InHouse, places: dict[str, str], unstated: Callable[..., None], base: str, tmp_path: Path
) -> None:
    unstated(*(file.name for folder in (tmp_path / "lora", tmp_path / "base") for file in folder.iterdir()))
    assert merged(hub, places[base], tmp_path / "out").unstated
    assert compare(hub, places[base], tmp_path / "out", adapter="alice/lora").unstated
