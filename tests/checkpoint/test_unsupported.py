"""What cannot be streamed, or is only a part or a folder above it, is refused, with what helps."""

import shutil
from pathlib import Path

import pytest

from sharding import job
from sharding.core.errors import SourceError
from tests.checkpoint.repos import ones, repo
from tests.folders import reshard, write_ranks
from tests.promises import promise

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")


def refusal(folder: Path) -> SourceError:
    with pytest.raises(SourceError) as refused:
        job.inspect(str(folder))
    return refused.value


@promise("README.md#limits", "docs/formats.md#what-is-refused")
@pytest.mark.parametrize(
    ("name", "problem", "hint"),
    [
        ("consolidated.safetensors", "own layout", "convert_mistral_weights_to_hf"),
        ("consolidated.00.pth", "own layout", "convert_mistral_weights_to_hf"),
        ("tf_model.h5", "tf_model.h5", "from_tf"),
        ("flax_model.msgpack", "flax_model.msgpack", "from_flax"),
        ("onnx/model.onnx", "onnx/model.onnx", "exported from"),
        ("weights.npz", "weights.npz", "mlx_lm"),
        ("v1-5.ckpt", "v1-5.ckpt", "diffusers"),
        ("model.nemo", "model.nemo", "NeMo"),
    ],
)
def test_weights_in_another_format_are_refused_with_what_helps(
    tmp_path: Path, name: str, problem: str, hint: str
) -> None:
    repo(
        tmp_path,
        {name: ones("w") if "safetensors" in name else "x", **({"params.json": {}} if "consolidated" in name else {})},
    )
    told = refusal(tmp_path)
    assert problem in told.message and hint in told.hint


def test_two_unrelated_files_are_refused(tmp_path: Path) -> None:
    repo(tmp_path, {"a.safetensors": ones("a"), "b.safetensors": ones("b")})
    assert "no index says which" in refusal(tmp_path).message


def test_a_folder_above_two_checkpoints_names_both_and_how_to_choose(checkpoint: Path, tmp_path: Path) -> None:
    above = tmp_path / "run"
    for step in ("checkpoint-100", "checkpoint-200"):
        shutil.copytree(checkpoint, above / step)
    told = refusal(above)
    assert "checkpoint-100" in told.message and "checkpoint-200" in told.message
    assert "SOURCE/checkpoint-100" in told.hint
    reshard(above / "checkpoint-100", tmp_path / "out")


def test_several_models_of_one_run_are_never_taken_for_the_first(tmp_path: Path) -> None:
    above = tmp_path / "run"
    write_ranks(above / "pytorch_model_fsdp_0")
    assert job.inspect(str(above)).tensors
    write_ranks(above / "pytorch_model_fsdp_1")
    told = refusal(above)
    assert "pytorch_model_fsdp_0" in told.message and "pytorch_model_fsdp_1" in told.message
    assert "SOURCE/pytorch_model_fsdp_0" in told.hint
    assert job.inspect(str(above / "pytorch_model_fsdp_1")).tensors


def test_pieces_without_what_locates_them_are_told(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"__{rank}_0.distcp").write_bytes(b"x")
    told = refusal(tmp_path)
    assert "__0_0.distcp" in told.message and ".metadata" in told.message and "dot" in told.hint
