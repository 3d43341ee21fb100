"""Models of every kind come out with the same bits, load, and compute the same: the table in the README."""

import pytest

from tests.architectures import ARCHITECTURES
from tests.every_repo import COUNT_DIFFERS, CUT_ELSEWHERE, EQUAL, WAYS, Way, found, found_of_pipeline, in_readme, table

pytestmark = [
    # transformers and diffusers warn about themselves.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
RENAMED = {"gpt_neox", "vit", "beit", "dinov2", "yolos", "audio-spectrogram-transformer"}
FUSED = {"mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v3"}
"""Of these `save_pretrained` cuts elsewhere, as it goes by the names and experts that it has in memory."""


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.title)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_comes_out_with_its_bits_loads_and_computes_the_same(name: str, way: Way) -> None:
    row = found(name, way)
    assert row.bits_equal and row.loads and row.same_logits
    if way.strategy == "size":
        cut_elsewhere = name in RENAMED | FUSED and way.order != "transformers"
        # Buffers are no parameters, but in a single file of a ResNet nothing says which tensors are buffers.
        assert row.layout == (CUT_ELSEWHERE if cut_elsewhere else COUNT_DIFFERS if name == "resnet" else EQUAL)


def test_a_pipeline_comes_out_with_its_bits_loads_and_draws_the_same() -> None:
    row = found_of_pipeline()
    assert row.bits_equal and row.loads and row.same_logits


def test_the_table_in_the_readme_is_what_was_found() -> None:
    assert in_readme() == table()
    assert len(ARCHITECTURES) >= 25
