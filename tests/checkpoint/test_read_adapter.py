"""The headers of an adapter are read, and its weights only if nobody states their hash."""

from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from sharding import job
from sharding.core.errors import SourceError, TooManyTensors
from sharding.core.origin import Role
from tests.checkpoint.repos import repo
from tests.conftest import write_checkpoint

SIDE = 16
PLAIN = {"layers.0.q_proj.weight": np.ones((SIDE, SIDE), np.float32)}


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    name = "base_model.model.layers.0.q_proj.lora_{}.weight"
    tensors = {name.format("A"): np.ones((4, SIDE), np.float32), name.format("B"): np.ones((SIDE, 4), np.float32)}
    config = {"peft_type": "LORA", "r": 4, "target_modules": ["q_proj"]}
    return repo(tmp_path / "lora", {"adapter_model.safetensors": tensors, "adapter_config.json": config})


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "base", {"model.safetensors": PLAIN}, False)


def named(base: Path, adapter: Path) -> dict[Role, str]:
    return {"model": str(base), "adapter": str(adapter)}


def test_weights_are_read_only_up_to_a_limit(adapter: Path, base: Path, tmp_path: Path) -> None:
    """A folder states no SHA-256. A head that may be tied is compared with the embeddings."""
    data, inputs = (adapter / "adapter_model.safetensors").read_bytes(), named(base, adapter)
    found = job.inspect_inputs(inputs, most_bytes=len(data)).of("adapter")
    assert found and [file.sha256 for file in found.weight_files] == [sha256(data).hexdigest()]
    with pytest.raises(SourceError, match="SHA-256 of adapter_model.safetensors") as refusal:
        job.inspect_inputs(inputs, most_bytes=len(data) - 1)
    assert "your own machine" in refusal.value.hint
    assert job.inspect_inputs({"model": str(base)}, most_bytes=0).others == ()

    words = np.ones((1000, SIDE), np.float32)
    tied = {**PLAIN, "model.embed_tokens.weight": words, "lm_head.weight": words}
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": True}
    base = repo(tmp_path / "tied", {"model.safetensors": tied, "config.json": config})
    inputs = named(base, adapter)
    assert job.inspect_inputs(inputs, most_bytes=2 * words.nbytes).head_is_copy
    with pytest.raises(SourceError, match="lm_head.weight and model.embed_tokens.weight are equal"):
        job.inspect_inputs(inputs, most_bytes=2 * words.nbytes - 1)


def test_a_header_too_long_for_the_tensors_allowed_is_not_read(adapter: Path, base: Path) -> None:
    name = "base_model.model.layers.{}.q_proj.lora_A.weight"
    many = {name.format(number): np.ones((4, SIDE), np.float32) for number in range(200)}
    save_file(many, adapter / "adapter_model.safetensors")
    with pytest.raises(TooManyTensors, match="lora"):
        job.inspect_inputs(named(base, adapter), most_tensors=100)
