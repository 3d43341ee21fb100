"""`.bin` checkpoints: what comes out is what torch loads, and what transformers saves of it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from sharding import job
from sharding.checkpoint.readers.torch_bin import read_archive
from sharding.core.values import Content
from sharding.report.schema import PlanSummary
from sharding.storage.folder_source import open_folder
from tests import models
from tests.folders import bits, compared, reshard, tensors, weights
from tests.formats.test_torch_hostile import read
from tests.fuzz.seeds import rezipped, saved
from tests.hubs import TOKEN, push, shard
from tests.localhub.conftest import Server
from tests.promises import promise

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
State = dict[str, Any]


def tensors_of_all_kinds() -> State:
    torch.manual_seed(0)
    matrix = torch.randn(30, 20)
    return {
        "plain": torch.randn(4, 5),
        "matrix": matrix,
        "transposed": matrix.t(),
        "permuted": torch.randn(4, 5, 6).bfloat16().permute(2, 0, 1),
        "rows": matrix[10:20],
        "columns": matrix[:, 3:7],
        "every other": matrix[::2, ::3],
        "expanded": torch.randn(1, 7).expand(5, 7),
        "one long": torch.randn(3, 1, 4).transpose(0, 1),
        "scalar": torch.tensor(3.5),
        "empty": torch.zeros(0, 4),
        "bool": torch.rand(5) > 0.5,
        "parameter": torch.nn.Parameter(torch.randn(2, 2)),
        "complex": torch.randn(3, dtype=torch.complex64),
        **{str(dtype): torch.arange(7).to(dtype) for dtype in (torch.int64, torch.int32, torch.int16, torch.int8)},
        **{str(dtype): torch.arange(7).to(dtype) for dtype in (torch.uint8, torch.float64, torch.float16)},
    }


def tensors_of_new_dtypes() -> State:
    """What old files cannot hold."""
    small = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
    new = {str(dtype): torch.arange(7).to(dtype) for dtype in (*small, torch.uint16, torch.uint32, torch.uint64)}
    return {**new, "view": torch.ones(3, 4).to(torch.float8_e5m2).t()}


def write_bin(folder: Path, data: bytes, name: str = "pytorch_model.bin") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(data)
    return folder


def codes(found: Content | PlanSummary) -> set[str]:
    return {finding.code for finding in found.findings}


def bits_of(state: State) -> dict[str, Any]:
    return {name: bits(tensor) for name, tensor in state.items()}


FORMS: dict[str, Callable[[State], bytes]] = {
    "zip": saved,
    "zip that torch did not pack": lambda state: rezipped(saved(state)),
    "older than torch 1.6": lambda state: saved(state, _use_new_zipfile_serialization=False),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_bit_is_the_one_that_torch_loads(form: str, tmp_path: Path) -> None:
    state = tensors_of_all_kinds() | (tensors_of_new_dtypes() if "older" not in form else {})
    source = write_bin(tmp_path / "source", FORMS[form](state))
    report = reshard(source, tmp_path / "out", "1kB")
    assert {"pickled", "views"} <= codes(report.plan)
    assert bits_of(tensors(tmp_path / "out")) == bits_of(torch.load(source / "pytorch_model.bin", weights_only=True))
    assert compared(source, tmp_path / "out").identical


def test_a_dtype_that_torch_cannot_load_from_safetensors_keeps_its_bytes(tmp_path: Path) -> None:
    state = {"w": torch.arange(4).to(torch.float8_e8m0fnu)}
    reshard(write_bin(tmp_path / "source", saved(state)), tmp_path / "out", "1kB")
    with safe_open(tmp_path / "out/model.safetensors", framework="numpy") as file:
        assert file.get_slice("w").get_dtype() == "F8_E8M0"
    assert (tmp_path / "out/model.safetensors").read_bytes().endswith(bits(state["w"])[2])


@promise("docs/formats.md#what-a-repo-may-hold")
@pytest.mark.parametrize("name", ["llama", "llama-tied", "gpt2", "t5"])
def test_the_result_is_byte_for_byte_what_loading_and_saving_writes(name: str, tmp_path: Path) -> None:
    model = models.build(name, layers=4)
    model.config.save_pretrained(tmp_path / "source")
    torch.save(model.state_dict(), tmp_path / "source/pytorch_model.bin")
    report = reshard(tmp_path / "source", tmp_path / "out", "30kB")
    theirs = type(model).from_pretrained(tmp_path / "source", dtype="auto").eval()
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="30kB")
    assert weights(tmp_path / "out") == weights(tmp_path / "theirs")
    assert ("tied" in codes(report.plan)) == (name != "llama")
    loaded = type(model).from_pretrained(tmp_path / "out").eval()
    assert torch.equal(models.logits(loaded), models.logits(theirs))
    assert not list((tmp_path / "out").glob("*.bin*"))


@promise("docs/formats.md#tied-weights")
@pytest.mark.parametrize(
    ("kept", "names"),
    {
        "transformer.wte.weight": ("transformer.wte.weight", "lm_head.weight"),
        "shared.weight": ("shared.weight", "encoder.embed_tokens.weight", "lm_head.weight"),
        "roberta.embeddings.weight": ("lm_head.decoder.weight", "roberta.embeddings.weight"),
        "lm_head.bias": ("lm_head.bias", "lm_head.decoder.bias"),
    }.items(),
)
def test_tied_weights_are_written_once_under_the_name_that_transformers_keeps(
    kept: str, names: tuple[str, ...]
) -> None:
    one = torch.randn(6)
    found = read(saved({**dict.fromkeys(names, one), "other": one.clone()}))
    assert {entry.name for entry in found.tensors} == {kept, "other"}
    assert found.tied == {name: kept for name in names if name != kept}


def test_a_view_of_the_same_bytes_in_another_shape_is_a_tensor_of_its_own() -> None:
    one = torch.randn(2, 3)
    assert {entry.name for entry in read(saved({"a": one, "b": one.view(6), "c": one[:1]})).tensors} == {"a", "b", "c"}


def write_sharded(folder: Path, state: State) -> Path:
    """Write `state` as two `.bin` files with an index, as transformers did before safetensors."""
    folder.mkdir(exist_ok=True)
    names = list(state)
    weight_map = {}
    for number, part in enumerate((names[:2], names[2:]), start=1):
        file = f"pytorch_model-0000{number}-of-00002.bin"
        torch.save({name: state[name] for name in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def some(count: int = 4) -> State:
    return {f"layer.{number}.weight": torch.full((3, 3), float(number)) for number in range(count)}


@pytest.mark.parametrize("with_index", [True, False])
def test_sharded_bin_files_are_read_together(with_index: bool, tmp_path: Path) -> None:
    source = write_sharded(tmp_path / "source", some())
    if not with_index:
        (source / "pytorch_model.bin.index.json").unlink()
    report = reshard(source, tmp_path / "out", "50B")
    assert bits_of(tensors(tmp_path / "out")) == bits_of(some())
    assert ("no-index" in codes(report.plan)) != with_index
    assert not list((tmp_path / "out").glob("*.bin*"))


def test_an_index_that_lists_a_tied_name_is_right(tmp_path: Path) -> None:
    one = torch.randn(3)
    source = write_sharded(tmp_path / "source", {"wte.weight": one, "lm_head.weight": one, "b": one.clone()})
    (source / "config.json").write_text('{"model_type": "gpt2"}')
    assert codes(job.inspect(str(source))) == {"pickled", "tied"}


def test_an_index_whose_files_were_all_deleted_is_passed_over(tmp_path: Path) -> None:
    source = write_sharded(tmp_path / "source", some())
    for path in source.glob("*.bin"):
        path.unlink()
    save_file(some(), source / "model-00001-of-00001.safetensors")
    assert len(job.inspect(str(source)).tensors) == 4


def test_safetensors_come_first_and_the_single_file_before_the_index_as_in_transformers(tmp_path: Path) -> None:
    source = write_sharded(tmp_path / "source", some())
    write_bin(source, saved({"single": torch.ones(1)}))
    assert [tensor.name for tensor in job.inspect(str(source)).tensors] == ["single"]
    save_file({"safe": torch.ones(1)}, source / "model.safetensors")
    checkpoint = job.inspect(str(source))
    assert [tensor.name for tensor in checkpoint.tensors] == ["safe"]
    assert any("pytorch_model.bin" in finding.message for finding in checkpoint.findings)


def test_a_training_checkpoint_gives_its_state_dict_and_says_what_is_left_out(tmp_path: Path) -> None:
    state = {"epoch": 3, "state_dict": {**some(), "steps": 7}, "ema": {"w": torch.ones(2)}, "scale": torch.ones(1)}
    report = reshard(write_bin(tmp_path / "source", saved(state)), tmp_path / "out", "1kB")
    assert tensors(tmp_path / "out").keys() == some().keys()
    (said,) = [finding.message for finding in report.plan.findings if finding.code == "no-tensors"]
    assert (
        said == "The tensors are under state_dict. Left out: steps, epoch, ema and 1 more (beside it, or not a tensor)."
    )


@pytest.mark.usefixtures("nothing_stays_on_this_disk")
def test_it_streams_from_hub_to_hub_and_plans_from_a_few_kilobytes(
    served: Callable[..., Server], tmp_path_factory: pytest.TempPathFactory
) -> None:
    hub, folder = served(), tmp_path_factory.mktemp("bin")
    state = {f"layer.{number}.weight": torch.randn(300, 300) for number in range(12)}
    state["last"] = state["layer.3.weight"].t()
    push(hub, write_bin(folder / "source", saved(state)), "alice/pickled")
    _, plan = job.plan("alice/pickled", "1MB", endpoint=hub.address, token=TOKEN)
    assert len(plan.shards) == 7
    report = shard(hub, "alice/pickled", "alice/safe", "1MB")
    assert report.verification.identical
    assert report.resources.disk_bytes_written == 0
    copy = Path(hub.api().snapshot_download("alice/safe", local_dir=folder / "out", cache_dir=folder / "cache"))
    assert bits_of(tensors(copy)) == bits_of(state)
    assert not list(copy.glob("*.bin"))


def test_an_old_file_of_one_tensor_that_ends_where_the_tensor_ends_is_no_safetensors_file(
    served: Callable[..., Server], tmp_path: Path
) -> None:
    hub = served()
    torch.save({"w": torch.randn(9)}, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    push(hub, tmp_path, "alice/old")
    assert shard(hub, "alice/old", "alice/new", "1MB").verification.identical


def test_only_the_directory_and_the_pickle_are_read_to_plan(tmp_path: Path) -> None:
    state = {f"layer.{number}.weight": torch.randn(300, 300) for number in range(12)}
    source = open_folder(str(write_bin(tmp_path / "source", saved(state))))
    found = read_archive(source, source.files[0])
    assert len(found.tensors) == 12
    assert source.requests <= 3
    assert source.bytes_read < 200_000 < source.files[0].bytes
