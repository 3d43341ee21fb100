"""What a load is predicted to take is near what it takes."""

from pathlib import Path

import pytest

from sharding.loading.measure import Load, predict, probe


@pytest.fixture(scope="module")
def heavy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose weights are as heavy as the libraries."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(hidden_size=1024, intermediate_size=2816, num_hidden_layers=6, num_attention_heads=8)
    config.vocab_size, config.pad_token_id = 30_000, None
    folder = tmp_path_factory.mktemp("heavy") / "model"
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is told apart in /proc")
@pytest.mark.parametrize(
    ("dtype", "with_mapping"),
    [
        pytest.param(None, True, marks=pytest.mark.thorough),
        pytest.param("float32", True, marks=pytest.mark.thorough),
        pytest.param(None, False, marks=pytest.mark.thorough),
    ],
)
def test_the_predicted_memory_is_near_the_measured(dtype: str | None, with_mapping: bool, heavy: Path) -> None:
    size = (heavy / "model.safetensors").stat().st_size
    expected = predict({"BF16": size}, size, dtype, with_mapping=with_mapping)
    found = probe(heavy, Load(dtype=dtype, with_mapping=with_mapping))
    assert found.peak_anon_bytes == pytest.approx(expected.peak_anon_bytes, rel=0.1)
    assert found.peak_file_bytes == pytest.approx(expected.peak_file_bytes, rel=0.2)
