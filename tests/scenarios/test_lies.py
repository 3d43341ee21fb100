"""A Hub that sends other bytes than it lists, whatever the reason, is caught before anything is published."""

import json
import re
import warnings
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import constants
from safetensors.numpy import save_file

from sharding import job
from sharding.core.errors import SourceError
from sharding.core.events import Planned
from sharding.core.options import Options
from sharding.job import Event
from sharding.storage.hub.client import Hub
from tests import models
from tests.conftest import random_tensors, write_checkpoint
from tests.folders import compared, ended, flip, until_shard, write_ranks
from tests.hubs import TOKEN, blob, branches, exists, files_of, push, shard
from tests.inhouse import InHouse, hub_in_house
from tests.promises import promise
from tests.quantized import save_fp8
from tests.scenarios.conftest import SOURCE

LFS_WARNS = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # huggingface_hub's own, in its LFS upload
HEADER_BYTES = 64 << 10
"""What a job reads first of a file; the rest is asked for later."""

ALONE = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
pytestmark = [pytest.mark.usefixtures("nothing_stays_on_this_disk"), LFS_WARNS, ALONE]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InHouse]:
    """A Hub without Xet that has the source, in one file of 260 kB, and what something is made of."""
    place = tmp_path_factory.mktemp("in")
    weights = in_one_file(place / "source")
    with hub_in_house(tmp_path_factory.mktemp("hub"), xet=False) as hub:
        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(action="ignore"):
            patch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # the Hub's own client would want it
            shard(hub, str(weights), SOURCE, "1GB", private=False)
            for number, (save, _) in enumerate(MADE_OF.values()):
                repo_id = f"{SOURCE}-{number}"
                hub.api().create_repo(repo_id)
                hub.api().upload_file(path_or_fileobj=IN_STORE, path_in_repo=".gitattributes", repo_id=repo_id)
                hub.api().upload_folder(repo_id=repo_id, folder_path=save(place / str(number)))
        yield hub


@pytest.fixture
def lfs(stores: InHouse) -> Iterator[InHouse]:
    """That Hub, whose store is as before in the end."""
    assert stores.hub
    before = {
        path: path.read_bytes() for path in Path(stores.folder).rglob("*") if re.fullmatch("[0-9a-f]{64}", path.name)
    }
    yield stores
    for path, data in before.items():
        path.chmod(0o644)
        path.write_bytes(data)


def begin(hub: InHouse, source: str, place: str, options: Options | str) -> Generator[Event, None, None]:
    return job.shard(source, place, options, endpoint=hub.address, token=TOKEN)


@pytest.mark.parametrize("place", ["hub", "folder"])
def test_wrong_bytes_of_weights_beside_the_model_are_not_published(
    lfs: InHouse, name: str, tmp_path: Path, place: str
) -> None:
    folder = in_one_file(tmp_path / "checkpoint")
    (folder / "lora").mkdir()
    file = "lora/adapter_model.safetensors"
    save_file({"lora_A.weight": np.arange(9000)}, folder / file)
    made, source = name if place == "hub" else str(tmp_path / "out"), f"{name}-source"
    shard(lfs, str(folder), source, "1GB", private=False)
    mend = flip(blob(lfs, file, source), 500)
    with pytest.raises(SourceError, match=f"{file} arrived damaged"):
        shard(lfs, source, made)
    assert not (exists(lfs, name) and files_of(lfs, name) - {".gitattributes"})
    assert not (tmp_path / "out/model.safetensors.index.json").exists()
    mend()
    assert shard(lfs, source, made).verification.identical


def test_wrong_bytes_out_of_the_xet_store_are_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hub, "least_xet_bytes", 10_000)
    with hub_in_house(tmp_path / "hub") as hub:
        push(hub, in_one_file(tmp_path / "checkpoint"), SOURCE)
        assert hub.hub and hub.hub.xet
        hub.api().get_safetensors_metadata(SOURCE)  # now the Hub has the header elsewhere as well
        files = [path for path in hub.hub.xet.folder.glob("xet/xorbs/xorbs/default.*") if path.suffix != ".tagset"]
        flip(max(files, key=lambda path: path.stat().st_size), HEADER_BYTES * 2)
        assert "SHA-256 that the Hub states" in ended(begin(hub, SOURCE, "alice/made", "60kB"))
        assert hub.asked("xet-read-token")
        assert not exists(hub, "alice/made")


@pytest.mark.parametrize("path", ["config.json", "README.md"])
def test_a_side_file_that_arrives_damaged_is_not_published(lfs: InHouse, name: str, path: str) -> None:
    rule, says = f"corrupt@GET .*/resolve/.*/{path}", f"{path} arrived damaged"
    with lfs.failing(rule), pytest.raises(SourceError, match=says) as refusal:
        shard(lfs, SOURCE, name)
    assert refusal.value.hint
    assert not exists(lfs, name) or branches(lfs, name) != {"main"}
    assert shard(lfs, SOURCE, name).verification.identical


@pytest.mark.parametrize("path", ["model.safetensors", "config.json"])
def test_an_answer_that_says_it_is_of_another_commit_ends_the_job(lfs: InHouse, name: str, path: str) -> None:
    with lfs.failing(f"other@GET .*/resolve/.*/{path}"), pytest.raises(SourceError, match="no longer the file that"):
        shard(lfs, SOURCE, name)
    assert not exists(lfs, name)


# --- What is made of the source's bytes --------------------------------------------------------------------


def save_bin(folder: Path) -> Path:
    """The same weights as `torch.save` writes them, with a view among them."""
    tensors = {name: torch.from_numpy(array) for name, array in random_tensors().items()}
    tensors["turned"] = torch.arange(30_000, dtype=torch.float32).reshape(100, 300).t()
    folder.mkdir()
    torch.save(tensors, folder / "pytorch_model.bin")
    (folder / "config.json").write_text("{}")
    return folder


def in_one_file(folder: Path) -> Path:
    return write_checkpoint(folder, {"model.safetensors": random_tensors()}, index=False)


MADE_OF: dict[str, tuple[Callable[[Path], Path], Options]] = {
    "a copy": (in_one_file, Options("20kB")),
    "a cast": (in_one_file, Options("60kB", dtype="bf16")),
    "a .bin file": (save_bin, Options("60kB")),
    "a training run": (write_ranks, Options("60kB")),
    "FP8": (lambda folder: save_fp8("qwen3", folder), Options("300kB", dequantize=True)),
}


ENDS = ("safetensors", "bin", "distcp")
IN_STORE = "".join(f"*.{end} filter=lfs diff=lfs merge=lfs -text\n" for end in ENDS).encode()
Made = tuple[InHouse, str, Options, Path]


@pytest.fixture(params=MADE_OF)
def making(request: pytest.FixtureRequest, lfs: InHouse) -> Made:
    """A Hub, a source there of which something is made, the options for that, and where it keeps the largest file."""
    source = f"{SOURCE}-{list(MADE_OF).index(request.param)}"
    entries = [entry for entry in lfs.api().list_repo_tree(source) if getattr(entry, "lfs", None)]
    largest = max(entries, key=lambda entry: entry.size)  # type: ignore[union-attr]
    return lfs, source, MADE_OF[request.param][1], blob(lfs, largest.path, source)


READ_WRONGLY = "an earlier read of it does not match the file on the Hub"
AS_THEY_ARE, COMPUTED = "a .bin file", "FP8"
"""A recipe of numbers as they are, and one of numbers that are computed."""


def middle(file: Path) -> int:
    return file.stat().st_size // 2


@pytest.mark.parametrize("making", [kind for kind in MADE_OF if kind != "a copy"], indirect=True)
def test_what_is_made_and_what_is_compared_is_held_to_what_the_hub_states_of_the_source(
    making: Made, name: str
) -> None:
    hub, source, options, file = making
    proof = shard(hub, source, name, options).verification
    assert proof.identical and not proof.unstated
    assert "read whole once more" in proof.method and "have the hash that the Hub states" in proof.method

    asked = {"dtype": options.dtype, "dequantize": options.dequantize}
    proof = compared(source, name, endpoint=hub.address, token=TOKEN, **asked)
    assert proof.identical and not proof.unstated
    assert re.search(
        "files have the SHA-256 that the Hub.*once more: they have the hash that the Hub states", proof.method
    )
    flip(file, middle(file))
    assert not compared(source, name, endpoint=hub.address, token=TOKEN, **asked).identical


@promise("docs/formats.md#what-identical-means", "docs/security.md#what-is-trusted")
def test_what_is_made_of_wrong_bytes_is_not_published(making: Made, name: str, tmp_path: Path) -> None:
    hub, source, options, file = making
    flip(file, middle(file))
    out = str(tmp_path / "out") if options.dtype == "keep" else name
    assert re.search("SHA-256|hash", ended(begin(hub, source, out, options)))
    assert not exists(hub, name) or files_of(hub, name) == {".gitattributes"}
    assert not list((tmp_path / "out").glob("*.safetensors"))


@pytest.mark.parametrize("making", [AS_THEY_ARE, COMPUTED], indirect=True)
def test_what_is_made_of_bytes_that_were_wrong_only_then_is_not_published(making: Made, name: str) -> None:
    hub, source, options, file = making
    mend = flip(file, middle(file))
    events = begin(hub, source, name, options)
    until_shard(events, 0)
    mend()
    assert READ_WRONGLY in ended(events)
    assert not exists(hub, name)
    assert shard(hub, source, name, options).verification.identical


@pytest.mark.parametrize("making", ["a copy", AS_THEY_ARE, COMPUTED], indirect=True)
def test_what_an_earlier_run_made_of_wrong_bytes_is_not_published(making: Made, name: str) -> None:
    hub, source, options, file = making
    mend = flip(file, middle(file))
    until_shard(begin(hub, source, name, options), 0, stop=True)
    mend()
    again = begin(hub, source, name, options)
    assert until_shard(again).kept
    assert re.search(f"{READ_WRONGLY}|SHA-256 that the Hub states", ended(again))
    assert not exists(hub, name)


@pytest.mark.parametrize("making", [COMPUTED], indirect=True)
def test_what_a_damaged_shard_was_made_of_is_asked_of_those_that_stay_too(
    making: Made, name: str, tmp_path: Path
) -> None:
    hub, source, options, file = making
    data = file.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    scales = [entry for name, entry in json.loads(data[8:start]).items() if name.endswith("_scale_inv")]
    # All are read at once, for the first shard; the last is that of the last shard.
    mend = flip(file, start + max(entry["data_offsets"][1] for entry in scales) - 1)
    until_shard(begin(hub, source, str(tmp_path / "out"), options), 0, stop=True)
    mend()
    (first,) = (tmp_path / "out").rglob("model-00001-of-*.safetensors.part")
    flip(first, middle(first))
    again = begin(hub, source, str(tmp_path / "out"), options)
    assert until_shard(again).kept
    assert READ_WRONGLY in ended(again)
    assert not list((tmp_path / "out").glob("*.safetensors"))


def test_a_copy_whose_store_gives_other_bytes_differs(lfs: InHouse, name: str) -> None:
    report = shard(lfs, SOURCE, name, "1GB")
    assert lfs.hub
    # The same bytes as the source's are the same blob: both sides are wrong in the same way.
    flip(lfs.hub.blobs.path(report.shards[0].sha256), HEADER_BYTES * 2)
    assert "SHA-256 that the Hub states" in " ".join(
        one.problem for one in compared(SOURCE, name, endpoint=lfs.address, token=TOKEN).mismatches
    )


def test_a_small_file_in_git_is_held_to_its_name_there(
    lfs: InHouse, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    source = f"{name}-source"
    lfs.api().create_repo(source)
    lfs.api().upload_file(path_or_fileobj=b"# none", path_in_repo=".gitattributes", repo_id=source)
    lfs.api().upload_folder(repo_id=source, folder_path=save_bin(tmp_path / "source"))
    assert not lfs.api().get_paths_info(source, "pytorch_model.bin")[0].lfs  # type: ignore[union-attr]
    events = begin(lfs, source, name, "60kB")
    next(event for event in events if isinstance(event, Planned))
    with lfs.failing("corrupt@GET .*/resolve/.*bin#1"):
        until_shard(events, 0)
    assert READ_WRONGLY in ended(events)
    proof = shard(lfs, source, name, restart=True).verification
    assert proof.identical and not proof.unstated


def test_the_part_of_one_rank_only_matches_what_was_read(lfs: InHouse, name: str, tmp_path: Path) -> None:
    shard(lfs, str(models.save("llama", tmp_path / "llama", "1GB", layers=3)), name, "1GB", private=False)
    options = Options("1GB", strategy="pp:2", rank=0)
    proof = shard(lfs, name, str(tmp_path / "part"), options).verification
    assert proof.identical and proof.unstated
