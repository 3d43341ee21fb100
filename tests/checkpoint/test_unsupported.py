"""What cannot be streamed is refused, with what helps."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from sharding import job
from sharding.core.errors import SourceError
from sharding.job import inspect
from tests.conftest import write_checkpoint
from tests.promises import promise

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.mark.parametrize("name", ["consolidated.safetensors", "consolidated.00.pth"])
def test_the_layout_of_mistral_alone_is_refused_with_a_pointer(tmp_path: Path, name: str) -> None:
    (tmp_path / "params.json").write_text("{}")
    save_file({"w": np.ones(3)}, tmp_path / name)
    with pytest.raises(SourceError, match="own layout") as refusal:
        job.inspect(str(tmp_path))
    assert "convert_mistral_weights_to_hf" in refusal.value.hint


@promise("README.md#limits", "docs/formats.md#what-is-refused")
@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("tf_model.h5", "from_tf"),
        ("flax_model.msgpack", "from_flax"),
        ("onnx/model.onnx", "exported from"),
        ("weights.npz", "mlx_lm"),
        ("v1-5.ckpt", "diffusers"),
        ("model.nemo", "NeMo"),
    ],
)
def test_weights_in_another_format_are_refused_with_what_helps(tmp_path: Path, name: str, hint: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(SourceError, match=name) as refusal:
        inspect(str(tmp_path))
    assert hint in refusal.value.hint


def test_two_unrelated_files_are_refused(tmp_path: Path) -> None:
    folder = write_checkpoint(
        tmp_path / "two", {"a.safetensors": {"a": np.zeros(2)}, "b.safetensors": {"b": np.zeros(2)}}, index=False
    )
    with pytest.raises(SourceError, match="no index says which"):
        inspect(str(folder))
