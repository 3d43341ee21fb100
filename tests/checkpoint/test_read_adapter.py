"""The headers of an adapter are read, and its weights only if nobody states their hash."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from sharding import job
from sharding.core.errors import SourceError, TooManyTensors
from tests.conftest import write_checkpoint

SIDE = 16


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    folder = tmp_path / "lora"
    folder.mkdir()
    name = "base_model.model.layers.0.q_proj"
    tensors = {f"{name}.lora_A.weight": np.ones((4, SIDE)), f"{name}.lora_B.weight": np.ones((SIDE, 4))}
    save_file(
        {name: tensor.astype(np.float32) for name, tensor in tensors.items()}, folder / "adapter_model.safetensors"
    )
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4, "target_modules": ["q_proj"]}))
    return folder


def test_weights_are_read_only_up_to_a_limit(adapter: Path, tmp_path: Path) -> None:
    """A folder states no SHA-256. A head that may be tied is compared with the embeddings."""
    plain = {"layers.0.q_proj.weight": np.ones((SIDE, SIDE), np.float32)}
    base = write_checkpoint(tmp_path / "base", {"model.safetensors": plain}, False)
    size = (adapter / "adapter_model.safetensors").stat().st_size
    assert job.inspect(str(base), adapter=str(adapter), most_bytes=size).adapter
    with pytest.raises(SourceError, match="SHA-256 of adapter_model.safetensors") as refusal:
        job.inspect(str(base), adapter=str(adapter), most_bytes=size - 1)
    assert "your own machine" in refusal.value.hint
    assert job.inspect(str(base), most_bytes=0).adapter is None

    words = np.ones((1000, SIDE), np.float32)
    tied = {**plain, "model.embed_tokens.weight": words, "lm_head.weight": words}
    base = write_checkpoint(tmp_path / "tied", {"model.safetensors": tied}, False)
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, "model_type": "llama", "tie_word_embeddings": True}))
    known = job.inspect(str(base), adapter=str(adapter), most_bytes=2 * words.nbytes).adapter
    assert known and known.head_is_copy
    with pytest.raises(SourceError, match="lm_head.weight and model.embed_tokens.weight are equal"):
        job.inspect(str(base), adapter=str(adapter), most_bytes=2 * words.nbytes - 1)


def test_a_header_too_long_for_the_tensors_allowed_is_not_read(adapter: Path, tmp_path: Path) -> None:
    plain = {"layers.0.q_proj.weight": np.ones((SIDE, SIDE), np.float32)}
    base = write_checkpoint(tmp_path / "base", {"model.safetensors": plain}, False)
    name = "base_model.model.layers.{}.q_proj.lora_A.weight"
    many = {name.format(number): np.ones((4, SIDE), np.float32) for number in range(200)}
    save_file(many, adapter / "adapter_model.safetensors")
    with pytest.raises(TooManyTensors, match="lora"):
        job.inspect(str(base), adapter=str(adapter), most_tensors=100)
