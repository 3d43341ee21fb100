"""A Hub that sends other bytes than it lists, whatever the reason, is caught before anything is published."""

import io
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from huggingface_hub import constants
from rich.console import Console
from safetensors.numpy import save_file

from sharding import job
from sharding.cli.terminal import Terminal
from sharding.core.errors import SourceError
from sharding.core.events import Planned, ShardFinished, Verified
from sharding.core.options import Options
from sharding.core.values import Verification
from sharding.job import Event
from sharding.report.schema import Report
from sharding.storage.hub import retry
from sharding.storage.hub.client import Hub
from sharding.storage.hub.source import HubSource
from tests import models
from tests.conftest import listing, random_tensors, write_checkpoint
from tests.hubs import TOKEN, branches, exists, files_of, push, shard
from tests.inhouse import InHouse, hub_in_house
from tests.promises import promise
from tests.quantized import save_fp8

LFS_WARNS = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # huggingface_hub's own, in its LFS upload
SOURCE, MADE = "alice/source", "alice/made"
HEADER_BYTES = 64 << 10
"""What a job reads first of a file; the rest is asked for later."""

ALONE = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
pytestmark = [pytest.mark.usefixtures("nothing_stays_on_this_disk"), LFS_WARNS, ALONE]


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "NETWORK_WAIT_SECONDS", 0.001)


@pytest.fixture
def lfs(tmp_path: Path) -> Iterator[InHouse]:
    """A Hub without Xet that has the source, in one file of 260 kB, and a side file in git."""
    folder = write_checkpoint(tmp_path / "checkpoint", {"model.safetensors": random_tensors()}, index=False)
    with hub_in_house(tmp_path / "hub", xet=False) as hub:
        shard(hub, str(folder), SOURCE, "1GB", private=False)
        yield hub


@pytest.fixture
def xet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InHouse]:
    """The same with Xet; all but headers is read through it."""
    monkeypatch.setattr(Hub, "least_xet_bytes", 10_000)
    folder = write_checkpoint(tmp_path / "checkpoint", {"model.safetensors": random_tensors()}, index=False)
    with hub_in_house(tmp_path / "hub") as hub:
        push(hub, folder, SOURCE)
        yield hub


def blob(hub: InHouse, file: str = "model.safetensors") -> Path:
    """Where the Hub keeps the bytes of the source's weights."""
    (entry,) = hub.api().get_paths_info(SOURCE, file)
    assert hub.hub
    return hub.hub.blobs.path(entry.lfs.sha256)  # type: ignore[union-attr]


def flip(path: Path, at_byte: int) -> Callable[[], None]:
    """Turn a bit of a file; return what turns it back."""
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[at_byte] ^= 1
    path.write_bytes(data)
    return lambda: flip(path, at_byte) and None


def problems(report: Report) -> str:
    assert not report.verification.identical
    return " ".join(mismatch.problem for mismatch in report.verification.mismatches)


@promise("docs/formats.md#what-identical-means", "docs/security.md#what-is-trusted")
def test_wrong_bytes_over_http_are_not_published(lfs: InHouse) -> None:
    flip(blob(lfs), HEADER_BYTES * 2)
    assert "SHA-256 that the Hub states" in problems(shard(lfs, SOURCE, MADE))
    assert not exists(lfs, MADE)


def test_wrong_bytes_do_not_come_into_a_folder(lfs: InHouse, tmp_path: Path) -> None:
    flip(blob(lfs), HEADER_BYTES * 2)
    assert "SHA-256 that the Hub states" in problems(shard(lfs, SOURCE, str(tmp_path / "out")))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("place", ["hub", "folder"])
def test_wrong_bytes_of_weights_beside_the_model_are_not_published(tmp_path: Path, place: str) -> None:
    folder = write_checkpoint(tmp_path / "checkpoint", {"model.safetensors": random_tensors()}, index=False)
    (folder / "lora").mkdir()
    file = "lora/adapter_model.safetensors"
    save_file({"lora_A.weight": np.arange(9000)}, folder / file)
    made = MADE if place == "hub" else str(tmp_path / "out")
    with hub_in_house(tmp_path / "hub", xet=False) as hub:
        shard(hub, str(folder), SOURCE, "1GB", private=False)
        mend = flip(blob(hub, file), 500)
        with pytest.raises(SourceError, match=f"{file} arrived damaged"):
            shard(hub, SOURCE, made)
        assert not (exists(hub, MADE) and files_of(hub, MADE) - {".gitattributes"})
        assert not (tmp_path / "out/model.safetensors.index.json").exists()
        mend()
        assert shard(hub, SOURCE, made).verification.identical


def test_wrong_bytes_out_of_the_xet_store_are_not_published(xet: InHouse) -> None:
    assert xet.hub and xet.hub.xet
    xet.api().model_info(SOURCE)  # now the Hub has the header elsewhere as well
    stored = [path for path in xet.hub.xet.folder.glob("xet/xorbs/xorbs/default.*") if path.suffix != ".tagset"]
    flip(max(stored, key=lambda path: path.stat().st_size), HEADER_BYTES * 2)
    assert "SHA-256 that the Hub states" in problems(shard(xet, SOURCE, MADE))
    assert xet.asked("xet-read-token")
    assert not exists(xet, MADE)


def test_bytes_that_were_wrong_in_an_earlier_run_are_not_published_by_a_later_one(lfs: InHouse) -> None:
    mend = flip(blob(lfs), HEADER_BYTES)
    events = job.shard(SOURCE, MADE, "20kB", endpoint=lfs.address, token=TOKEN)
    for event in events:
        if isinstance(event, ShardFinished) and event.number == event.shards - 1:
            events.close()
    mend()
    again = list(job.shard(SOURCE, MADE, "20kB", endpoint=lfs.address, token=TOKEN))
    assert [event for event in again if isinstance(event, ShardFinished) and event.kept]
    report = again[-1]
    assert isinstance(report, Report)
    assert "SHA-256 that the Hub states" in problems(report)
    assert not exists(lfs, MADE)
    assert shard(lfs, SOURCE, MADE, "20kB").verification.identical


@pytest.mark.parametrize(
    ("text", "offset", "says"),
    [
        pytest.param(b"norm.steps", 9, "has changed since it was first read", id="a name as good as the right one"),
        pytest.param(b'"format":"pt"', 11, "since the headers were first", id="metadata as good as the right ones"),
    ],
)
def test_a_header_that_was_read_wrongly_is_not_published(lfs: InHouse, text: bytes, offset: int, says: str) -> None:
    mend = flip(blob(lfs), blob(lfs).read_bytes().index(text) + offset)
    events = job.shard(SOURCE, MADE, "60kB", endpoint=lfs.address, token=TOKEN)
    next(event for event in events if isinstance(event, ShardFinished))
    mend()
    *_, report = events
    assert isinstance(report, Report)
    assert says in problems(report)
    assert not exists(lfs, MADE)


@pytest.mark.parametrize("path", ["config.json", "README.md"])
def test_a_side_file_that_arrives_damaged_is_not_published(lfs: InHouse, path: str) -> None:
    with (
        lfs.failing(f"corrupt@GET .*/resolve/.*/{path}"),
        pytest.raises(SourceError, match=f"{path} arrived damaged") as refusal,
    ):
        shard(lfs, SOURCE, MADE)
    assert refusal.value.hint
    assert not exists(lfs, MADE) or branches(lfs, MADE) != {"main"}
    assert shard(lfs, SOURCE, MADE).verification.identical


def test_a_small_file_in_git_is_checked_by_its_name_there(xet: InHouse, tmp_path: Path) -> None:
    with xet.failing("corrupt@GET .*/resolve/.*/config.json"), pytest.raises(SourceError, match="damaged"):
        shard(xet, SOURCE, str(tmp_path / "out"))
    shard(xet, SOURCE, str(tmp_path / "out"))
    assert listing(tmp_path / "out")["config.json"] == listing(tmp_path / "checkpoint")["config.json"]


@pytest.mark.parametrize("path", ["model.safetensors", "config.json"])
def test_an_answer_that_says_it_is_of_another_commit_ends_the_job(lfs: InHouse, path: str) -> None:
    with lfs.failing(f"other@GET .*/resolve/.*/{path}"), pytest.raises(SourceError, match="no longer the file that"):
        shard(lfs, SOURCE, MADE)
    assert not exists(lfs, MADE)


def test_what_is_proved_is_said(lfs: InHouse, tmp_path: Path) -> None:
    method = shard(lfs, SOURCE, MADE).verification.method
    assert "1 of the source's files, put together again from the result, have the SHA-256" in method
    folder = shard(lfs, str(tmp_path / "checkpoint"), str(tmp_path / "out")).verification
    assert "Hub" not in folder.method  # a folder states nothing


# --- What is made of the source's bytes --------------------------------------------------------------------


def save_bin(folder: Path) -> Path:
    """The same weights as `torch.save` writes them, with a view among them."""
    tensors = {name: torch.from_numpy(array) for name, array in random_tensors().items()}
    tensors["turned"] = torch.arange(30_000, dtype=torch.float32).reshape(100, 300).t()
    folder.mkdir()
    torch.save(tensors, folder / "pytorch_model.bin")
    (folder / "config.json").write_text("{}")
    return folder


def save_ranks(folder: Path) -> Path:
    """The same weights as a training run saves them."""
    tensors = {name: torch.from_numpy(array) for name, array in random_tensors().items()}
    dcp.save(tensors, storage_writer=dcp.FileSystemWriter(folder), no_dist=True)
    return folder


MADE_OF: dict[str, tuple[Callable[[Path], Path], Options]] = {
    "a cast": (
        lambda folder: write_checkpoint(folder, {"model.safetensors": random_tensors()}, index=False),
        Options("20kB", dtype="bf16"),
    ),
    "a .bin file": (save_bin, Options("20kB")),
    "a training run": (save_ranks, Options("20kB")),
    "FP8": (lambda folder: save_fp8("qwen3", folder), Options("300kB", dequantize=True)),
}


@pytest.fixture
def without_xet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Hub's own client uploads to a Hub that has no Xet."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)


@pytest.fixture(params=MADE_OF)
def making(
    request: pytest.FixtureRequest, tmp_path: Path, without_xet: None
) -> Iterator[tuple[InHouse, Options, Path]]:
    """A Hub with a source of which something is made, the options for that, and where it keeps the largest file."""
    save, options = MADE_OF[request.param]
    with hub_in_house(tmp_path / "hub", xet=False) as hub:
        hub.api().create_repo(SOURCE)
        in_store = "".join(f"*.{end} filter=lfs diff=lfs merge=lfs -text\n" for end in ("safetensors", "bin", "distcp"))
        hub.api().upload_file(path_or_fileobj=in_store.encode(), path_in_repo=".gitattributes", repo_id=SOURCE)
        hub.api().upload_folder(repo_id=SOURCE, folder_path=save(tmp_path / "source"))
        entries = [entry for entry in hub.api().list_repo_tree(SOURCE) if getattr(entry, "lfs", None)]
        largest = max(entries, key=lambda entry: entry.size)  # type: ignore[union-attr]
        assert hub.hub
        yield hub, options, hub.hub.blobs.path(largest.lfs.sha256)  # type: ignore[union-attr]


Made = tuple[InHouse, Options, Path]


def middle(file: Path) -> int:
    return file.stat().st_size // 2


def ended(events: Iterator[Event]) -> str:
    """What is wrong with the result, or why there is none."""
    try:
        *_, last = events
    except SourceError as error:
        return error.message
    assert isinstance(last, Report)
    return problems(last)


def test_what_is_made_is_held_to_what_the_hub_states_of_the_source(making: Made) -> None:
    hub, options, _ = making
    proof = shard(hub, SOURCE, MADE, options).verification
    assert proof.identical and not proof.unstated
    assert "read whole once more" in proof.method and "have the hash that the Hub states" in proof.method


@promise("docs/formats.md#what-identical-means")
@pytest.mark.parametrize("to_hub", [True, False])
def test_what_is_made_of_wrong_bytes_is_not_published(making: Made, to_hub: bool, tmp_path: Path) -> None:
    hub, options, file = making
    flip(file, middle(file))
    out = MADE if to_hub else str(tmp_path / "out")
    assert re.search("SHA-256|hash", ended(job.shard(SOURCE, out, options, endpoint=hub.address, token=TOKEN)))
    assert not exists(hub, MADE) or files_of(hub, MADE) == {".gitattributes"}
    assert not list((tmp_path / "out").glob("*.safetensors"))


def test_what_is_made_of_bytes_that_were_wrong_only_then_is_not_published(making: Made) -> None:
    hub, options, file = making
    mend = flip(file, middle(file))
    events = job.shard(SOURCE, MADE, options, endpoint=hub.address, token=TOKEN)
    next(event for event in events if isinstance(event, ShardFinished) and event.number == event.shards)
    mend()
    assert "an earlier read of it does not match the file on the Hub" in ended(events)
    assert not exists(hub, MADE)
    assert shard(hub, SOURCE, MADE, options).verification.identical


def test_what_an_earlier_run_made_of_wrong_bytes_is_not_published(making: Made) -> None:
    hub, options, file = making
    mend = flip(file, middle(file))
    events = job.shard(SOURCE, MADE, options, endpoint=hub.address, token=TOKEN)
    for event in events:
        if isinstance(event, ShardFinished) and event.number == event.shards:
            events.close()
    mend()
    again = job.shard(SOURCE, MADE, options, endpoint=hub.address, token=TOKEN)
    assert next(event for event in again if isinstance(event, ShardFinished)).kept
    assert "an earlier read of it does not match the file on the Hub" in ended(again)
    assert not exists(hub, MADE)


@pytest.mark.parametrize("making", ["FP8"], indirect=True)
def test_what_a_damaged_shard_was_made_of_is_asked_of_those_that_stay_too(making: Made, tmp_path: Path) -> None:
    hub, options, file = making
    data = file.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    scales = [entry for name, entry in json.loads(data[8:begin]).items() if name.endswith("_scale_inv")]
    # All are read at once, for the first shard; the last is that of the last shard.
    mend = flip(file, begin + max(entry["data_offsets"][1] for entry in scales) - 1)
    events = job.shard(SOURCE, str(tmp_path / "out"), options, endpoint=hub.address, token=TOKEN)
    for event in events:
        if isinstance(event, ShardFinished) and event.number == event.shards:
            events.close()
    mend()
    (first,) = (tmp_path / "out").rglob("model-00001-of-*.safetensors.part")
    flip(first, middle(first))
    again = job.shard(SOURCE, str(tmp_path / "out"), options, endpoint=hub.address, token=TOKEN)
    assert next(event for event in again if isinstance(event, ShardFinished)).kept
    assert "an earlier read of it does not match the file on the Hub" in ended(again)
    assert not list((tmp_path / "out").glob("*.safetensors"))


def test_where_two_are_compared_both_are_held_to_what_the_hub_states(making: Made) -> None:
    hub, options, file = making
    shard(hub, SOURCE, MADE, options)

    def compare() -> Verification:
        asked = {"dtype": options.dtype, "dequantize": options.dequantize}
        *_, last = job.verify(SOURCE, MADE, endpoint=hub.address, token=TOKEN, **asked)  # type: ignore[arg-type]
        assert isinstance(last, Verified)
        return last.verification

    proof = compare()
    assert (
        proof.identical
        and not proof.unstated
        and re.search("were read whole and compared with the Hub's hash.*with the Hub's SHA-256", proof.method)
    )
    flip(file, middle(file))
    assert not compare().identical


def test_a_copy_whose_store_gives_other_bytes_differs(lfs: InHouse) -> None:
    report = shard(lfs, SOURCE, MADE, "1GB")
    assert lfs.hub
    # The same bytes as the source's are the same blob: both sides are wrong in the same way.
    flip(lfs.hub.blobs.path(report.shards[0].sha256), HEADER_BYTES * 2)
    *_, last = job.verify(SOURCE, MADE, endpoint=lfs.address, token=TOKEN)
    assert isinstance(last, Verified)
    assert "SHA-256 that the Hub states" in " ".join(one.problem for one in last.verification.mismatches)


def test_a_small_file_in_git_is_held_to_its_name_there(tmp_path: Path, without_xet: None) -> None:
    with hub_in_house(tmp_path / "hub", xet=False) as hub:
        hub.api().create_repo(SOURCE)
        hub.api().upload_file(path_or_fileobj=b"# none", path_in_repo=".gitattributes", repo_id=SOURCE)
        hub.api().upload_folder(repo_id=SOURCE, folder_path=save_bin(tmp_path / "source"))
        assert not hub.api().get_paths_info(SOURCE, "pytorch_model.bin")[0].lfs  # type: ignore[union-attr]
        proof = shard(hub, SOURCE, MADE).verification
        assert proof.identical and not proof.unstated
        hub.api().delete_repo(MADE)
        events = job.shard(SOURCE, MADE, "20kB", endpoint=hub.address, token=TOKEN)
        next(event for event in events if isinstance(event, Planned))
        with hub.failing("corrupt@GET .*/resolve/.*bin#1"):
            next(event for event in events if isinstance(event, ShardFinished) and event.number == event.shards)
        assert "an earlier read of it does not match the file on the Hub" in ended(events)


# --- What nobody states ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["keep", "bf16"])
def test_where_the_hub_states_no_hash_the_result_only_matches_what_was_read(
    lfs: InHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    listed = HubSource._list
    unhashed = {"sha256": None, "git_sha1": None}
    monkeypatch.setattr(HubSource, "_list", lambda source: [replace(file, **unhashed) for file in listed(source)])
    report = shard(lfs, SOURCE, MADE, Options("60kB", dtype=dtype))
    assert report.verification.identical and report.verification.unstated
    card = Path(lfs.api().hf_hub_download(MADE, "README.md", local_dir=tmp_path / "card")).read_text()
    assert "Not all files of the original were compared with a hash that the Hub states" in " ".join(card.split())
    told = io.StringIO()
    Terminal(Console(file=told, width=200), Console(file=io.StringIO())).verification(report.verification)
    assert told.getvalue().startswith("Matches what was read") and "Identical" not in told.getvalue()


def test_the_part_of_one_rank_only_matches_what_was_read(without_xet: None, lfs: InHouse, tmp_path: Path) -> None:
    push(lfs, models.save("llama", tmp_path / "llama", "1GB"), "alice/llama")
    options = Options("1GB", strategy="pp:2", rank=0)
    proof = shard(lfs, "alice/llama", str(tmp_path / "part"), options).verification
    assert proof.identical and proof.unstated
