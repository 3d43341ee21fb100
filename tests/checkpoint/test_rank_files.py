"""Runs that saved one file a rank: each tensor is the one that torch gathers, and what does not fit is refused.

`ranks.zip` has files of torch 2.13, made by `python -m tests.scenarios.rank_saver`. Those of torch 2.4 and 2.9 are written
here from their source, because no such version runs here.
"""

import io
import json
import pickle
import shutil
import zipfile
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor

from sharding import job
from sharding.checkpoint.readers import trained_folder
from sharding.core.errors import SourceError, UsageError
from sharding.core.options import Options
from sharding.formats.inert_pickle import InertMachine
from sharding.formats.rank_pieces import box_of
from sharding.formats.torch_globals import PickleRefused
from tests.folders import finish, reshard, said, tensors
from tests.promises import promise

RANK = "model_world_size_3_rank_{}.pt"
WHOLE = ("verl", "hsdp", "tp", "sharded")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    zipfile.ZipFile(Path(__file__).parent / "ranks.zip").extractall(folder)
    for truth in folder.glob("*/truth.safetensors"):
        truth.rename(folder / f"{truth.parent.name}.safetensors")
    return folder


@pytest.fixture
def run(runs: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(runs / "verl", tmp_path / "global_step_70/actor"))


def equal(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
    same = (ours[name].dtype == theirs[name].dtype and torch.equal(ours[name], theirs[name]) for name in theirs)
    return ours.keys() == theirs.keys() and all(same)


@promise("docs/formats.md#what-a-training-run-has-saved", "docs/formats.md#what-happens-to-the-pieces")
@pytest.mark.parametrize("way", WHOLE)
def test_each_tensor_is_the_one_that_torch_gathers(way: str, runs: Path, tmp_path: Path) -> None:
    """Also buffers of integers, which bf16 cannot hold."""
    report = reshard(runs / way, tmp_path / "out", "400B")
    assert equal(tensors(tmp_path / "out"), load_file(runs / f"{way}.safetensors"))
    assert report.source.in_pieces == 14 and (tmp_path / "out/config.json").exists() == (way != "sharded")


@pytest.mark.parametrize("inside", ["", "global_step_70", "global_step_70/actor"])
def test_the_run_the_step_and_the_folder_with_the_files_are_one_source(inside: str, run: Path) -> None:
    run.joinpath("optim_world_size_3_rank_0.pt").touch()
    found = job.inspect(str(run.parent.parent / inside))
    told = {finding.code: finding.message for finding in found.findings}
    assert "(verl or SkyRL, step 70) saved these weights in 3 files" in told["ranks"] or inside.endswith("actor")
    assert "huggingface/config.json is the configuration of its base" in told["ranks"] and "no-base" not in told
    assert len(found.tensors) == 16 and [file.path for file in found.side_files] == ["config.json"]
    with pytest.raises(UsageError, match="configuration of its own"):
        job.inspect(str(run), base=str(run))


def test_where_the_ordinary_model_was_saved_too_it_is_taken() -> None:
    run = ["actor/model_world_size_1_rank_0.pt", "actor/huggingface/config.json"]
    assert trained_folder(run) == "actor/"
    assert trained_folder([*run, "actor/huggingface/model.safetensors"]) == "actor/huggingface/"
    assert trained_folder(["iter_3/model/.metadata", "iter_3/optimizer/.metadata"]) == "iter_3/model/"
    assert trained_folder([*run, "critic/model_world_size_1_rank_0.pt"]) is None
    accelerate = ["pytorch_model_fsdp_0/.metadata", "ema/.metadata", "random_states_0.pkl", "config.json"]
    assert trained_folder(accelerate) == "pytorch_model_fsdp_0/"


def rank_of(folder: Path, number: int) -> Path:
    return folder / RANK.format(number)


def other_buffer(folder: Path) -> None:
    """Write a rank's file again with another record. Its checksum is that of what is in it."""
    with zipfile.ZipFile(rank_of(folder, 1)) as old:
        records = {name: bytes(16) if name.endswith("/data/0") else old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(rank_of(folder, 1), "w") as new:
        for name, data in records.items():
            new.writestr(name, data)


def other_shape(folder: Path) -> None:
    state = torch.load(rank_of(folder, 2), weights_only=False)
    state["model.scale"] = torch.ones(1)
    torch.save(state, rank_of(folder, 2))


def shorter_piece(folder: Path) -> None:
    state = torch.load(rank_of(folder, 0), weights_only=False)
    piece = next(one for one in state.values() if isinstance(one, DTensor))
    piece._local_tensor = piece._local_tensor[:1]
    torch.save(state, rank_of(folder, 0))


def twice(folder: Path) -> None:
    shutil.copy(rank_of(folder, 0), rank_of(folder, 1))


def cut(folder: Path) -> None:
    rank_of(folder, 1).write_bytes(rank_of(folder, 1).read_bytes()[:-400])


def smaller_world(folder: Path) -> None:
    for number in range(2):
        rank_of(folder, number).rename(folder / f"model_world_size_2_rank_{number}.pt")
    rank_of(folder, 2).unlink()


def two_worlds(folder: Path) -> None:
    shutil.copy(rank_of(folder, 0), folder / "model_world_size_1_rank_0.pt")
    (folder / "fsdp_config.json").unlink()


@promise("docs/formats.md#what-happens-to-the-pieces")
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda folder: rank_of(folder, 1).unlink(), "1 of the 3 rank files are missing: model_world_size_3_rank_1.pt"),
        (twice, "rank_1.pt, the file of rank 1, cannot be read: .*(rank 0 saved it|not the file of rank 1)"),
        (cut, "rank_1.pt, the file of rank 1, cannot be read: it has no end record, so it is cut off"),
        (smaller_world, "one of 3 files, but 2 are expected"),
        (two_worlds, "rank files of several saves"),
        (other_buffer, "steps is whole in the file of each rank, but differs in .*rank_0.pt and .*rank_1.pt"),
        (other_shape, "model.scale has another shape or dtype"),
        (shorter_piece, r"the piece of .* is \w+ \[1.*, but its place is "),
    ],
)
def test_ranks_that_do_not_belong_together_are_refused(change: Callable[[Path], None], problem: str, run: Path) -> None:
    change(run)
    with pytest.raises(SourceError, match=problem) as refusal:
        job.inspect(str(run))
    assert refusal.value.hint


def test_of_two_worlds_the_configuration_names_the_one(run: Path) -> None:
    shutil.copy(rank_of(run, 0), run / "model_world_size_1_rank_0.pt")
    assert len(job.inspect(str(run)).weight_files) == 3


def test_a_local_state_dict_is_refused_by_name(runs: Path) -> None:
    with pytest.raises(SourceError, match="LOCAL_STATE_DICT") as refusal:
        job.inspect(str(runs / "flat"))
    assert "SHARDED_STATE_DICT" in refusal.value.hint


class Named(str):
    """A name in a pickle, which need not exist: "module name"."""


class Object:
    """An object in a pickle: made of a class with arguments, or the result of a function, and with a state."""

    def __init__(self, kind: str, arguments: tuple[Any, ...] = (), state: Any = None, is_call: bool = False) -> None:
        self.kind, self.arguments, self.state, self.is_call = Named(kind), arguments, state, is_call


_STORAGES = {torch.float32: "FloatStorage", torch.int32: "IntStorage"}


class _Pickler(pickle._Pickler):
    """Writes names of classes that are not installed. Storages are records by number."""

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        if isinstance(obj, Named):
            self.write(pickle.GLOBAL + "{}\n{}\n".format(*obj.split()).encode())
        elif isinstance(obj, Object):
            self.save(obj.kind)
            self.save(obj.arguments)
            self.write(pickle.REDUCE if obj.is_call else pickle.NEWOBJ)
            if obj.state is not None:
                self.save(obj.state)
                self.write(pickle.BUILD)
        elif isinstance(obj, torch.Tensor):
            kind = Named(f"torch {_STORAGES[obj.dtype]}")
            storage = "storage", kind, str(len(self.records)), "cpu", obj.numel()
            self.records.append(obj.numpy().tobytes())
            self.save(Named("torch._utils _rebuild_tensor_v2"))
            self.write(pickle.MARK)
            self.save(storage)
            self.write(pickle.BINPERSID)
            for value in (0, tuple(obj.shape), obj.stride(), False, {}):
                self.save(value)
            self.write(pickle.TUPLE + pickle.REDUCE)
        else:
            super().save(obj, save_persistent_id)


def pickled(value: Any) -> tuple[bytes, list[bytes]]:
    stream, records = io.BytesIO(), list[bytes]()
    pickler = _Pickler(stream, 2)
    pickler.records = records  # type: ignore[attr-defined]
    pickler.dump(value)
    return stream.getvalue(), records


def write_rank(path: Path, state: dict[str, Any]) -> None:
    data, records = pickled(state)
    with zipfile.ZipFile(path, "w") as file:
        for name, content in {"data.pkl": data, **{f"data/{n}": record for n, record in enumerate(records)}}.items():
            file.writestr(f"archive/{name}", content)


def mesh_2_4(rank: int) -> dict[str, Any]:
    """The state of a DeviceMesh of torch 2.4 to 2.8 over two ranks."""
    ranks = {"mesh": torch.arange(2, dtype=torch.int32), "_flatten_mesh_list": (0, 1), "device_type": "cuda"}
    return {**ranks, "mesh_dim_names": ("fsdp",), "_coordinate_on_dim": [rank], "_dim_group_infos": [("", [0, 1], "0")]}


def mesh_2_9(rank: int) -> dict[str, Any]:
    layout = Object("torch.distributed._mesh_layout _MeshLayout", (), {"shape": (2,), "stride": (1,)})
    ranks = {"_rank_map": torch.arange(2, dtype=torch.int32), "_flatten_rank_map": (0, 1), "_rank": rank}
    return {**ranks, "_layout": layout, "_coordinate_on_dim": [rank]}


@pytest.mark.parametrize(
    ("kind", "where", "mesh"),
    [
        ("torch.distributed._tensor.api DTensor", "torch.distributed._tensor.placement_types", mesh_2_4),
        ("torch.distributed.tensor DTensor", "torch.distributed.tensor.placement_types", mesh_2_4),
        ("torch.distributed.tensor DTensor", "torch.distributed.tensor.placement_types", mesh_2_9),
    ],
)
def test_dtensors_of_older_versions_are_read(kind: str, where: str, mesh: Callable[[int], Any], tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    whole = torch.arange(15.0).reshape(5, 3)
    for rank, local in enumerate(whole.chunk(2)):
        placements = (Object(f"{where} Shard", (), {"dim": 0}),)
        spec = {"mesh": Object("torch.distributed.device_mesh DeviceMesh", (), mesh(rank)), "placements": placements}
        state = None, {"_local_tensor": local, "_spec": Object(f"{where} DTensorSpec", (), spec)}
        made = Named(kind), Named("torch float32"), (5, 3), (3, 1), 0, None, None, False
        arguments = Named("torch._utils _rebuild_wrapper_subclass"), Named(kind), made, state
        tensor = Object("torch._tensor _rebuild_from_type_v2", arguments, is_call=True)
        write_rank(run / f"model_world_size_2_rank_{rank}.pt", {"w": tensor, "note": Object("my.own Thing")})
    reshard(run, tmp_path / "out")
    assert torch.equal(tensors(tmp_path / "out")["w"], whole)
    shutil.copy(run / "model_world_size_2_rank_0.pt", run / "model_world_size_2_rank_1.pt")
    with pytest.raises(SourceError, match="rank 0 saved it|not the file of rank 1"):
        job.inspect(str(run))


@pytest.mark.parametrize(
    "name",
    ["os system", "posix system", "__builtin__ eval", "subprocess Popen", "runpy run_path", "copy_reg add_extension"],
)
def test_nothing_of_pythons_own_library_is_named_in_a_checkpoint(name: str, tmp_path: Path) -> None:
    write_rank(tmp_path / "model_world_size_1_rank_0.pt", {"w": torch.ones(2), "x": Object(name, ("1",), is_call=True)})
    with pytest.raises(SourceError, match=r"model_world_size_1_rank_0\.pt.* asks for '.*', which no checkpoint needs"):
        job.inspect(str(tmp_path))


def test_getattr_is_allowed_for_the_one_class_that_torch_names_with_it() -> None:
    sharded = Named("torch.distributed._shard.sharded_tensor.api ShardedTensor")
    assert InertMachine(pickled(Object("__builtin__ getattr", (sharded, "ProcessGroupState"), is_call=True))[0]).run()
    for arguments in ((sharded, "__init__"), (Named("torch load"), "ProcessGroupState"), ("os", "system")):
        with pytest.raises(PickleRefused, match="getattr"):
            InertMachine(pickled(Object("__builtin__ getattr", arguments, is_call=True))[0]).run()


meshes = st.lists(st.integers(1, 4), min_size=1, max_size=3)


@given(meshes, st.lists(st.integers(0, 9), min_size=1, max_size=3), st.data())
def test_each_piece_lies_where_chunk_after_chunk_leaves_it(
    counts: list[int], shape: list[int], data: st.DataObject
) -> None:
    """Cuts from the first dimension of a mesh on. If the first one is strided, the others come before it."""
    cuts = [data.draw(st.one_of(st.none(), st.integers(0, len(shape) - 1))) for _ in counts]
    order = list(range(len(counts)))
    placements: list[tuple[int | None, int]] = [(cut, 0) for cut in cuts]
    later = [axis for axis in order[1:] if cuts[axis] == cuts[0]]
    if cuts[0] is not None and later and data.draw(st.booleans()):
        placements[0] = cuts[0], prod(counts[axis] for axis in later)
        order = [*order[1:], 0]
    coordinates = [data.draw(st.integers(0, count - 1)) for count in counts]
    whole = torch.arange(prod(shape)).reshape(shape)
    piece = whole
    for axis in order:
        if (cut := cuts[axis]) is not None:
            chunks = piece.chunk(counts[axis], cut)
            piece = (
                chunks[coordinates[axis]] if coordinates[axis] < len(chunks) else piece.narrow(cut, piece.shape[cut], 0)
            )
    offsets, lengths = box_of(tuple(shape), placements, counts, coordinates)
    assert lengths == tuple(piece.shape)
    region = tuple(slice(start, start + length) for start, length in zip(offsets, lengths, strict=True))
    assert torch.equal(whole[region], piece)


def merged(run: Path) -> dict[str, torch.Tensor]:
    """Return what PEFT makes of a run's tensors: alpha is 6 and the rank 2."""
    state = {name.removeprefix("base_model.model."): tensor for name, tensor in load_file(run).items()}
    found = {name.replace(".base_layer", ""): tensor for name, tensor in state.items() if "lora_" not in name}
    for name in (name for name in state if "lora_A" in name):
        module = name.partition(".lora_A")[0]
        found[f"{module}.weight"] = (
            found[f"{module}.weight"] + state[f"{module}.lora_B.default.weight"] @ state[name] * 3
        )
    return found


@promise("docs/formats.md#a-lora-in-a-training-run")
@pytest.mark.parametrize("settings", ["adapter_config.json", "lora_train_meta.json", ""])
def test_a_lora_in_a_run_is_merged_with_its_alpha(settings: str, runs: Path, tmp_path: Path) -> None:
    run = shutil.copytree(runs / "lora", tmp_path / "run")
    if settings != "adapter_config.json":
        shutil.rmtree(run / "lora_adapter")
    if settings == "lora_train_meta.json":
        (run / settings).write_text(json.dumps({"r": 2, "lora_alpha": 6, "task_type": "CAUSAL_LM"}))
    if settings:
        reshard(run, tmp_path / "out")
        with pytest.raises(UsageError, match="lora_alpha is 6, not 8"):
            reshard(run, tmp_path / "other", lora_alpha="8")
    else:
        assert "Nothing beside it says its alpha" in said(run)["run-lora"]
        with pytest.raises(SourceError, match="nothing beside it says its lora_alpha") as refusal:
            reshard(run, tmp_path / "out")
        assert "--lora-alpha" in refusal.value.hint
        reshard(run, tmp_path / "out", lora_alpha="6")
    ours, theirs = tensors(tmp_path / "out"), merged(runs / "lora.safetensors")
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor)
    assert not list((tmp_path / "out").rglob("adapter_*"))


@promise("docs/formats.md#a-lora-in-a-training-run")
def test_a_lora_in_a_run_is_saved_alone_as_peft_saves_it(runs: Path, tmp_path: Path) -> None:
    report = reshard(runs / "lora", tmp_path / "out", save_as="adapter")
    state = load_file(runs / "lora.safetensors")
    lora = {name.replace(".default", ""): tensor for name, tensor in state.items() if "lora_" in name}
    assert equal(load_file(tmp_path / "out/adapter_model.safetensors"), lora)
    assert json.loads((tmp_path / "out/adapter_config.json").read_text())["lora_alpha"] == 6
    assert not (tmp_path / "out/config.json").exists() and report.source.library == "peft"
    with pytest.raises(UsageError, match="not a training run that holds a LoRA"):
        finish(job.shard(str(runs / "verl"), str(tmp_path / "other"), Options(save_as="adapter")))


@promise("docs/formats.md#what-is-refused")
@pytest.mark.parametrize(
    ("files", "what", "way"),
    [
        (["global_step5/mp_rank_00_model_states.pt"], "DeepSpeed, which", "zero_to_fp32"),
        (["bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"], "DeepSpeed, which", "zero_to_fp32"),
        (["global_step5/layer_01-model_00-model_states.pt"], "several model ranks", "ds_to_universal"),
        (["global_step5/mp_rank_01_model_states.pt"], "several model ranks", "ds_to_universal"),
        (["zero/model.norm.weight/fp32.pt"], "universal", "trainer"),
        (["iter_10/mp_rank_00/model_optim_rng.pt"], "Megatron-LM", "AutoBridge"),
        (["iter_10/.metadata", "iter_10/common.pt", "iter_10/metadata.json"], "Megatron-Core or NeMo", "export_ckpt"),
        (["0/_CHECKPOINT_METADATA", "0/manifest.ocdbt", "0/d/3f"], "Orbax", "to_huggingface"),
    ],
)
def test_other_checkpoints_of_training_are_refused_with_their_converter(
    files: list[str], what: str, way: str, tmp_path: Path
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(SourceError, match=what) as refusal:
        job.inspect(str(tmp_path))
    assert way in refusal.value.hint


def one_rank(folder: Path, state: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    torch.save(state, folder / "model_world_size_1_rank_0.pt")
    return folder


OF_OTHER_METHODS = "token_adapter.trainable_tokens_delta.default", "base_layer.weight"


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("decoder.layers.self_attention.linear_qkv.weight", "Megatron-Core"),
        ("layers.0.attention.wq.weight", "torchtitan"),
        *((f"base_model.model.a.{name}", "weights of PEFT that this tool cannot tell") for name in OF_OTHER_METHODS),
    ],
)
def test_tensors_that_no_class_loads_are_refused_by_their_names(name: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=what):
        job.inspect(str(one_rank(tmp_path / "run", {name: torch.ones(2, 2), "b.weight": torch.ones(2)})))


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (lambda: torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8), "a.* is a quantized tensor"),
        (lambda: torch.eye(3).to_sparse(), "a.* is a sparse tensor"),
        (lambda: {"w": torch.ones(3)}, "a.* is a dictionary with tensors in it"),
        (lambda: torch.ones(2, dtype=torch.complex128), "a.* has the dtype complex128"),
    ],
    ids=["quantized", "sparse", "nested", "dtype"],
)
@pytest.mark.filterwarnings("ignore")
def test_no_tensor_of_a_rank_is_left_out_in_silence(entry: Callable[[], Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=problem):
        job.inspect(str(one_rank(tmp_path / "run", {"a.weight": entry(), "b.weight": torch.ones(2)})))


def test_all_tensors_of_a_model_are_weights_whatever_they_are_called(tmp_path: Path) -> None:
    marked = torch.ones(2)
    marked._has_been_cloned = True  # type: ignore[attr-defined]
    state = {"model.a.weight": marked, "model.b.momentum_buffer": torch.zeros(3), "lm_head.weight": torch.ones(3)}
    reshard(one_rank(tmp_path / "run", state), tmp_path / "out")
    assert equal(tensors(tmp_path / "out"), state)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda state, settings: state.pop("base_model.model.a.lora_B.default.weight"), "Half of a pair"),
        (lambda state, settings: settings.update(r=4), "its rank is 4"),
        (lambda state, settings: settings.update(lora_alpha=0), "alpha is 0"),
        (lambda state, settings: settings.update(bias="all"), "trained biases"),
    ],
    ids=["half", "rank", "alpha", "biases"],
)
def test_no_adapter_is_saved_that_peft_would_load_otherwise(
    change: Callable[[dict[str, Any], dict[str, Any]], object], problem: str, tmp_path: Path
) -> None:
    state = {f"base_model.model.a.lora_{half}.default.weight": torch.ones(2, 2) for half in "AB"}
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 6, "target_modules": ["a"]}
    run = one_rank(tmp_path / "run", state)
    (run / "adapter_config.json").write_text(json.dumps(settings))
    reshard(run, tmp_path / "right", save_as="adapter")
    change(state, settings)
    one_rank(run, state)
    (run / "adapter_config.json").write_text(json.dumps(settings))
    with pytest.raises(SourceError, match=problem):
        reshard(run, tmp_path / "out", save_as="adapter")


def test_a_bias_of_a_lora_is_in_the_settings_that_its_names_show(tmp_path: Path) -> None:
    state = {f"base_model.model.a.lora_{half}.default.weight": torch.ones(2, 2) for half in "AB"}
    state["base_model.model.a.lora_B.default.bias"] = torch.ones(2)
    reshard(one_rank(tmp_path / "run", state), tmp_path / "out", save_as="adapter", lora_alpha="4")
    assert json.loads((tmp_path / "out/adapter_config.json").read_text())["lora_bias"] is True
