"""Models of every kind come out with the same bits, load, and compute the same: the table in the docs."""

from typing import Any

import pytest

from tests.scenarios.architectures import ARCHITECTURES
from tests.scenarios.every_repo import (
    CASES,
    COUNT_DIFFERS,
    CUT_ELSEWHERE,
    EQUAL,
    Way,
    found,
    found_of_pipeline,
    in_docs,
)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
RENAMED = {"gpt_neox", "vit", "beit", "dinov2", "yolos", "audio-spectrogram-transformer"}
FUSED = {"mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v3"}
"""Of these `save_pretrained` cuts elsewhere, as it goes by the names and experts that it has in memory."""
SAMPLE = {"vit", "resnet", "whisper", "clip", "mamba"}
"""One of every kind that is not in test_fidelity.py; the others are for `make thorough`."""


def case(name: str, way: Way) -> Any:
    is_quick = name == "mixtral" or (name in SAMPLE and way == Way())
    return pytest.param(name, way, id=f"{name}: {way.title}", marks=[] if is_quick else pytest.mark.thorough)


@pytest.mark.parametrize(("name", "way"), [case(*one) for one in CASES])
def test_every_architecture_comes_out_with_its_bits_loads_and_computes_the_same(name: str, way: Way) -> None:
    row = found(name, way)
    assert row.line(name, ARCHITECTURES[name].kind, way) in in_docs()
    assert row.bits_equal and row.loads and row.same_logits
    if way.strategy == "size":
        cut_elsewhere = name in RENAMED | FUSED and way.order != "transformers" and way.source != ".bin"
        # Buffers are no parameters, but in a single file of a ResNet nothing says which tensors are buffers.
        assert row.layout == (CUT_ELSEWHERE if cut_elsewhere else COUNT_DIFFERS if name == "resnet" else EQUAL)


def test_a_pipeline_comes_out_with_its_bits_loads_and_draws_the_same() -> None:
    row = found_of_pipeline()
    assert row.line("stable-diffusion", "diffusers", Way()) in in_docs()
    assert row.bits_equal and row.loads and row.same_logits


def test_the_table_in_the_docs_has_every_case_and_says_no_to_none() -> None:
    cases = [tuple(line.split(" | ")[0::2])[:2] for line in in_docs()]
    assert cases == [(f"| {name}", way.title) for name, way in (*CASES, ("stable-diffusion", Way()))]
    assert not [line for line in in_docs() if " no |" in line or "different" in line]
    assert len(ARCHITECTURES) >= 25
