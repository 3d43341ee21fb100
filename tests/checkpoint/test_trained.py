"""What of a training run is weights, what they are called, and what a base says of them."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.numpy import save_file

from sharding import job
from sharding.checkpoint.state_dict import short_names
from sharding.core.errors import SourceError, UsageError
from sharding.core.options import Options
from sharding.formats.names import is_training_state
from sharding.job import inspect
from tests.checkpoint.repos import repo
from tests.conftest import write_checkpoint
from tests.folders import finish, reshard, said
from tests.promises import promise

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["model.model.norm.weight", "model.model.embed_tokens.weight"], ["model.norm.weight", "model.embed_tokens.weight"]),
        (["model.norm.weight", "model.embed_tokens.weight"], ["model.norm.weight", "model.embed_tokens.weight"]),
        (["model.language_model.a", "model.visual.b"], ["model.language_model.a", "model.visual.b"]),
        (["module.a", "b"], ["module.a", "b"]),
        (["module.state_dict.module.a", "module.state_dict.module.b"], ["a", "b"]),
        (["state_dict.model.model.norm.w", "state_dict.model.lm_head.w"], ["model.norm.w", "lm_head.w"]),
        (["module.a._fsdp_wrapped_module._orig_mod.w", "module._checkpoint_wrapped_module.b"], ["a.w", "b"]),
    ],
)  # fmt: skip
def test_what_wrappers_put_into_names_is_taken_off(names: list[str], short: list[str]) -> None:
    assert list(short_names(names).values()) == short


def save(folder: Path, state: dict[str, object]) -> Path:
    """Save `state` as a trainer of one rank does: each number in it is a tensor of three of that."""

    def filled(value: object) -> object:
        return {k: filled(v) for k, v in value.items()} if isinstance(value, dict) else torch.full((3,), value)

    dcp.save(filled(state), storage_writer=dcp.FileSystemWriter(folder), no_dist=True)
    return folder


def rank_file(folder: Path, rank: int, tensors: dict[str, np.ndarray], info: str | None = "{}") -> Path:
    """Save what a rank does in safetensors."""
    metadata = {"DCP_VERSION": "1.0", **({} if info is None else {"DCP_SHARDING_INFO": info})}
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / f"shard-{rank:05d}-model-00001-of-00001.safetensors", metadata=metadata)
    return folder


def piece(folder: Path, rank: int, first: int, dtype: str = "f4") -> None:
    """Save four numbers of `w`, from the one at `first` on."""
    rank_file(folder, rank, {"w": np.ones(4, dtype)}, json.dumps({"w": {"saved_offsets": [first]}}))


def one_file(folder: Path, **tensors: np.ndarray) -> str:
    """Write an ordinary checkpoint."""
    return str(write_checkpoint(folder, {"model.safetensors": tensors}, index=False))


def names_in(folder: Path) -> set[str]:
    return {tensor.name for tensor in inspect(str(folder)).tensors}


W = {"w": 1.0}
ADAM = {"state": {"w": {"exp_avg": 1.0, "step": 1.0}}}


@pytest.mark.parametrize(
    ("state", "names"),
    [
        ({"app": {"model": {"model.w": 1.0}, "optim": {"state": W}}}, {"model.w"}),
        ({"model.layers.0.w": 1.0, "lm_head.w": 1.0}, {"model.layers.0.w", "lm_head.w"}),
        ({"model": {"model.w": 1.0, "model.v": 1.0}, "lr_scheduler": {"x": 1.0}}, {"model.w", "model.v"}),
        ({"state_dict": {"module.w": 1.0}}, {"w"}),
        ({"tok.weight": 1.0, "optimizer.state.tok.weight.step": 1.0}, {"tok.weight"}),
        # Under a key of the trainer's own: AReaL, slime and miles, and one that nobody knows.
        ({"dcp": {"model": {"model.w": 1.0, "lm_head.w": 1.0}, "optim": ADAM}}, {"model.w", "lm_head.w"}),
        ({"model_state": {"model": {"model.w": 1.0}}, "optim_state": {"optim": ADAM}}, {"model.w"}),
        ({"ours": {"model": {"model.w": 1.0}, "adam_of_ours": ADAM}}, {"model.w"}),
        ({"model": W, "my_optimizer": ADAM}, {"w"}),
        # Beside a wrapper.
        ({"model": W, "ema": W}, {"w"}),
        ({"module": W, "ema": {"model": W}, "opt": ADAM}, {"w"}),
        ({"state_dict": W, "opt": ADAM, "scheduler": {"x": 1.0}, "scaler": {"scale": 1.0}}, {"w"}),
        ({"model_state_dict": W, "optimizer_state_dict": ADAM, "step": 1.0}, {"w", "step"}),
        ({"state": {"model": W, "ema": W, "opt": ADAM}}, {"w"}),
        ({"model": W, "optimizer_0": ADAM, "optimizer_1": ADAM}, {"w"}),
        ({"state": W, "ema": W, "opt": ADAM}, {"w"}),
        ({"model": W, "ema_model": W, "scheduler_state_dict": W, "amp": W, "sampler": W}, {"w"}),
        ({"app": {"model": W}, "scheduler": W}, {"w"}),
        # What wrappers have put into names is taken off whatever stands beside them.
        ({"model": {"module.a.w": 1.0, "module.b.w": 1.0}, "step": 1.0}, {"a.w", "b.w", "step"}),
        ({"state_dict": {"model.model.w": 1.0, "model.lm_head.w": 1.0}, "step": 1.0}, {"model.w", "lm_head.w", "step"}),
        ({"model": {"_orig_mod.module.w": 1.0}, "module.step": 1.0}, {"w", "module.step"}),
        # Inside the model.
        ({"model": {"w": 1.0, "scheduler": W, "optim": W}}, {"w", "scheduler.w", "optim.w"}),
        ({"model": {"ema": W, "opt": W, "rng": W}, "ema": W}, {"ema.w", "opt.w", "rng.w"}),
        ({"app": {"module": {"scheduler": {"linear.w": 1.0}}}}, {"scheduler.linear.w"}),
        ({"state_dict": {"optimizer.w": 1.0, "scheduler.w": 1.0}, "optimizer": ADAM}, {"optimizer.w", "scheduler.w"}),
        ({"model": {"model": W, "lm_head": W}}, {"model.w", "lm_head.w"}),
        # No wrapper tells what the model is: what trainers alone call so is not the model's.
        ({"embed": W, "scheduler": W, "opt": W, "ema": W}, {"embed.w", "scheduler.w", "opt.w", "ema.w"}),
        ({"embed.w": 1.0, "scheduler.w": 1.0, "lr_scheduler": W, "optimizer": ADAM}, {"embed.w", "scheduler.w"}),
        ({"model.w": 1.0, "scheduler.w": 1.0, "ema.w": 1.0}, {"model.w", "scheduler.w", "ema.w"}),
        ({"ema": W, "optimizer": ADAM}, {"ema.w"}),
    ],
)
def test_weights_are_told_from_the_state_of_the_training(
    state: dict[str, object], names: set[str], tmp_path: Path
) -> None:
    assert names_in(save(tmp_path, state)) == names
    total = len(dcp.FileSystemReader(tmp_path).read_metadata().state_dict_metadata)
    assert any("training state" in message for message in said(tmp_path).values()) == (len(names) < total)


@pytest.mark.parametrize(
    "state", [{"optimizer": ADAM}, {"scheduler": W}, {"app": {"opt": ADAM, "scaler": W}}, {"rng": W}]
)
def test_nothing_but_the_state_of_a_training_is_no_model(state: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no weights, only training state"):
        inspect(str(save(tmp_path, state)))


@pytest.mark.parametrize(
    ("state", "names"),
    [
        ({"model": {"a.w": 1.0}, "ema": {"a.w": 1.0}, "optimizer": ADAM}, {"model.a.w"}),
        ({"model": W, "opt": ADAM}, {"model.w"}),
        ({"model": W, "lm_head": W, "scheduler": W, "optimizer": ADAM}, {"model.w", "lm_head.w", "scheduler.w"}),
    ],
)
def test_where_only_whole_names_are_noted_they_tell_the_state(
    state: dict[str, object], names: set[str], tmp_path: Path
) -> None:
    """Which keys lead to each tensor, planners of other kinds leave out."""
    metadata = dcp.FileSystemReader(save(tmp_path, state)).read_metadata()
    metadata.planner_data = None
    (tmp_path / ".metadata").write_bytes(pickle.dumps(metadata))
    assert names_in(tmp_path) == names


@pytest.mark.parametrize(
    ("state", "first", "second"),
    [
        ({"model": W, "module": W}, "model.w", "module.w"),
        ({"state_dict": W, "model": W}, "state_dict.w", "model.w"),
        ({"model": {"w": 1.0, "v": 1.0}, "w": 2.0}, "model.w", "w"),
        ({"state": {"model": W}, "module": W}, "state.model.w", "module.w"),
        ({"state": W, "model": W}, "state.w", "model.w"),
        ({"model": {"a._orig_mod.w": 1.0, "a.w": 2.0}}, "model.a._orig_mod.w", "model.a.w"),
    ],
)
def test_two_tensors_that_would_get_one_name_are_refused(
    state: dict[str, object], first: str, second: str, tmp_path: Path
) -> None:
    with pytest.raises(SourceError, match=f"{first} and {second}|{second} and {first}") as refusal:
        inspect(str(save(tmp_path, state)))
    assert refusal.value.hint


def test_the_names_in_rank_files_tell_the_state_of_an_optimizer_and_are_there_once(tmp_path: Path) -> None:
    one = np.ones(4, "f4")
    rank_file(tmp_path, 1, {"scheduler.w": one, "a.w": one, "optimizer.state.a.w.exp_avg": one})
    assert names_in(tmp_path) == {"scheduler.w", "a.w"}
    assert "1 tensor of training state" in said(tmp_path)["training-state"]
    rank_file(tmp_path, 1, {"a._orig_mod.w": one, "a.w": one})
    with pytest.raises(SourceError, match=r"a\._orig_mod\.w and a\.w"):
        inspect(str(tmp_path))


def test_the_pieces_of_a_state_are_counted_together(tmp_path: Path) -> None:
    for rank, length in enumerate((4, 3, 2), start=1):
        state = {"optimizer.a": np.ones(length, "f4"), "rng.b": np.ones(1, "f2"), "a": np.ones(4, "f4")}
        rank_file(tmp_path, rank, state, json.dumps({"a": {"saved_offsets": [4 * (rank - 1)]}}))
    assert said(tmp_path)["training-state"] == "Left out: 2 tensors of training state (42 B; optimizer.a and 1 more)."


def test_with_a_base_the_last_rank_may_be_missing_of_nothing_that_is_cut(tmp_path: Path) -> None:
    """What one rank holds whole tells nothing; one tensor in pieces that is all there tells that no rank is missing."""
    at = one_file(tmp_path / "base", a=np.ones((8, 2), "f4"), b=np.ones((8, 2), "f4"), c=np.ones(3, "f4"))
    for name, lengths in {"short": (3, 3), "one": (4, 3), "whole": (4, 4)}.items():
        for rank in (0, 1):
            pieces = {"a": np.ones((lengths[0], 2), "f4"), "b": np.ones((lengths[1], 2), "f4")}
            info = {"a": {"saved_offsets": [lengths[0] * rank, 0]}, "b": {"saved_offsets": [lengths[1] * rank, 0]}}
            if not rank:
                pieces["c"], info["c"] = np.ones(3, "f4"), {"saved_offsets": [0]}
            rank_file(tmp_path / name, rank + 1, pieces, json.dumps(info))
    with pytest.raises(SourceError, match=r"files of a rank are missing. a is \[6, 2\] here and \[8, 2\] in the base"):
        inspect(str(tmp_path / "short"), base=at)
    for name in ("one", "whole"):
        codes = {found.code for found in inspect(str(tmp_path / name), base=at).findings}
        assert ("base-shapes" in codes) == (name == "one")


@pytest.mark.parametrize(
    ("ours", "is_refused"),
    [
        (["layers.0.wq", "layers.0.wk"], True),
        (["model.a", "model.b2"], True),
        (["model.a", "model.b", "score_head.weight"], False),
        (["model.a", "model.b", "lm_head.weight"], False),
        (["model.a"], False),
    ],
)
def test_names_that_no_class_of_the_base_loads_are_refused(ours: list[str], is_refused: bool, tmp_path: Path) -> None:
    run = str(rank_file(tmp_path / "run", 1, {name: np.ones(2, "f4") for name in ours}))
    base = one_file(tmp_path / "base", **dict.fromkeys(("model.a", "model.b"), np.ones(2, "f4")))
    if not is_refused:
        assert inspect(run, base=base).tensors
        return
    with pytest.raises(SourceError, match=r"have names that the folder base does not have"):
        finish(job.shard(run, str(tmp_path / "out"), Options(base=base)))
    assert not (tmp_path / "out").exists()


def test_every_difference_from_a_base_is_a_finding_and_the_same_is_none(tmp_path: Path) -> None:
    ours = {"a": np.ones(4, "f4"), "b": np.ones((2, 3), "f4"), "my_head.weight": np.ones(1, "f4")}
    theirs = {"a": np.ones(4, "f2"), "b": np.ones((3, 2), "f2"), "one": np.ones(1, "f2"), "two": np.ones(1, "f2")}
    run = str(rank_file(tmp_path / "run", 1, ours))
    base, same_base = one_file(tmp_path / "base", **theirs), one_file(tmp_path / "same", **ours)
    told = {found.code: found for found in inspect(run, base=base).findings}
    assert "2 of the 4 tensors of the folder base are missing: one, two." in told["base-lacks"].message
    assert "the folder base does not have 1 tensor of this checkpoint: my_head.weight." in told["base-adds"].message
    shapes = "The shape of 1 tensor differs from the folder base. For example, b is [2, 3] here and [3, 2] there"
    assert shapes in told["base-shapes"].message
    assert "The weights are F32 here and F16 in the folder base" in told["base-dtype"].message
    levels = {code: told[f"base-{code}"].level for code in ("lacks", "adds", "shapes", "dtype")}
    assert levels == {"lacks": "warning", "adds": "info", "shapes": "warning", "dtype": "info"}
    same = {found.code for found in inspect(run, base=same_base).findings}
    assert not [code for code in same if code.startswith("base-")] and "no-base" not in same
    assert "no-base" in said(tmp_path / "run")


@promise("docs/formats.md#name-the-base-model")
def test_a_base_is_only_for_what_ranks_have_saved(checkpoint: Path, tmp_path: Path) -> None:
    base = one_file(tmp_path / "base", w=np.ones(3, "f4"))
    with pytest.raises(UsageError):
        inspect(str(checkpoint), base=base)
    (checkpoint / "config.json").unlink()
    with pytest.raises(UsageError):
        finish(job.shard(str(checkpoint), str(tmp_path / "out"), Options(base=base)))
    assert not (tmp_path / "out").exists()


def test_files_that_only_training_needs_are_known_by_name() -> None:
    state = ["optimizer_0/__0_0.distcp", "random_states_3.pkl", "scheduler.bin", "rng_state_1.pth", "optimizer.pt"]
    assert all(map(is_training_state, [*state, "trainer_state.json", "training_args.bin"]))
    assert not any(map(is_training_state, ["config.json", "model.safetensors", "tokenizer.json", "optimizer.py"]))


@pytest.mark.parametrize(
    ("info", "problem"),
    [
        (None, "the name of a rank file but no DCP_SHARDING_INFO"),
        ("{", "is not a JSON object"),
        ("[" * 100_000, "is not a JSON object"),
        ("[]", "is not a JSON object"),
        ('{"w": 3}', "where its piece of w begins"),
        ('{"w": {"saved_offsets": [-1]}}', "where its piece of w begins"),
        ('{"w": {"saved_offsets": [1.5]}}', "where its piece of w begins"),
        ('{"w": {"saved_offsets": [true]}}', "where its piece of w begins"),
        ('{"w": {"saved_offsets": [0, 0]}}', "different numbers of dimensions"),
        ('{"w": {"saved_offsets": [9223372036854775807]}}', "are missing|overflows"),
    ],
)
def test_what_a_header_says_of_its_pieces_must_make_sense(info: str | None, problem: str, tmp_path: Path) -> None:
    rank_file(tmp_path, 1, {"w": np.ones(4, "f4")}, info)
    with pytest.raises(SourceError, match=problem):
        inspect(str(tmp_path))


def test_pieces_of_two_dtypes_are_refused(tmp_path: Path) -> None:
    piece(tmp_path, 1, 0)
    piece(tmp_path, 2, 4, "f2")
    with pytest.raises(SourceError, match="w is F32 in shard-00001.* and F16 in shard-00002"):
        inspect(str(tmp_path))


def test_a_rank_that_held_nothing_of_a_number_is_told(tmp_path: Path) -> None:
    piece(tmp_path, 1, 0)
    piece(tmp_path, 3, 4)
    assert "shard-00002-model-00001-of-00001" in said(tmp_path)["ranks-uneven"]
    assert inspect(str(tmp_path)).tensors[0].shape == (8,)


def test_an_ordinary_checkpoint_beside_files_of_ranks_is_the_one_taken(tmp_path: Path) -> None:
    one_file(tmp_path, w=np.zeros(3, "f4"))
    piece(tmp_path, 1, 0)
    checkpoint = inspect(str(tmp_path))
    assert [file.path for file in checkpoint.weight_files] == ["model.safetensors"] and not checkpoint.of_ranks


def test_the_consolidated_model_beside_the_files_of_ranks_is_not_taken_twice(tmp_path: Path) -> None:
    """As `save_pretrained(distributed_checkpoint=True)` leaves it on a Hub."""
    piece(tmp_path / "run", 1, 0)
    one_file(tmp_path / "run/consolidated", w=np.ones(4, "f4"))
    reshard(tmp_path / "run", tmp_path / "out")
    assert not (tmp_path / "out/consolidated").exists()


def test_what_the_weights_of_the_base_are_called_says_nothing_of_those_that_were_trained(tmp_path: Path) -> None:
    run = save(tmp_path / "run", {"model": W})
    config = {"transformers_weights": "mine.safetensors"}
    base = repo(tmp_path / "base", {"mine.safetensors": {"w": np.ones(3, "f4")}, "config.json": config})
    assert [tensor.name for tensor in inspect(str(run), base=str(base)).tensors] == ["w"]
