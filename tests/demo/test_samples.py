"""The command `localhub --samples` fills a Hub with models that load."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sharding import job
from sharding.core.options import Options
from sharding.demo import samples, whole_job
from tests.localhub.conftest import Server
from tests.promises import promise

COMMAND = ("sharding", "localhub")


@promise("README.md#try-it")
@pytest.mark.filterwarnings("ignore")
def test_the_model_of_the_demo_continues_a_poem(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    folder = samples.build_mistral(tmp_path / "poet")
    text = whole_job.generate(folder)
    assert text.startswith("Beautiful is better than ugly.\nExplicit is better than")
    assert "random" not in (folder / "README.md").read_text().lower()


def test_reading_the_poem_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    sys.modules.pop("this", None)
    text = samples._read_zen()
    assert text.startswith("Beautiful is better than ugly.\nExplicit") and not any(capfd.readouterr())


@pytest.mark.thorough
def test_the_samples_are_there_and_load(served: Callable[..., Server], tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    own = served("--samples", entry=COMMAND)
    api = own.api()
    assert {model.id for model in api.list_models()} >= {
        "samples/mistral-60m",
        "samples/t5-tiny",
        "samples/gpt2-tied",
        "samples/qwen3-fp8",
        "samples/t5-tiny-ranks",
        "samples/t5-tiny-run",
        "samples/llama-gated",
        "alice/llama-private",
    }
    assert sum(name.endswith(".safetensors") for name in api.list_repo_files("samples/mistral-60m")) == 2
    assert api.model_info("samples/llama-gated").gated == "auto"
    assert own.ask("GET", "/alice/llama-private/resolve/main/config.json", token="hf_bob").status == 404
    import torch

    path = api.hf_hub_download("samples/gpt2-tied", "pytorch_model.bin", local_dir=tmp_path)
    weights = torch.load(path, weights_only=True)
    assert weights["lm_head.weight"].data_ptr() == weights["transformer.wte.weight"].data_ptr()
    assert_quantized_and_trained_samples_become_ordinary(own, tmp_path)
    before = api.model_info("samples/t5-tiny").sha
    own.stop()
    own.start(entry=COMMAND)
    assert own.api().model_info("samples/t5-tiny").sha == before


def assert_quantized_and_trained_samples_become_ordinary(own: Server, place: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    at: dict[str, Any] = {"endpoint": own.address, "token": "hf_alice"}
    *_, plain = job.shard("samples/qwen3-fp8", str(place / "plain"), Options("2MB", dequantize=True), **at)
    *_, whole = job.shard("samples/t5-tiny-ranks", str(place / "whole"), Options("2MB", base="samples/t5-tiny"), **at)
    *_, run = job.shard("samples/t5-tiny-run", str(place / "run"), Options("2MB"), **at)
    assert all(report.verification.identical for report in (plain, whole, run))  # type: ignore[union-attr]
    assert AutoModelForCausalLM.from_pretrained(place / "plain").dtype == torch.bfloat16
    base = AutoModelForSeq2SeqLM.from_pretrained(own.api().snapshot_download("samples/t5-tiny", cache_dir=place))
    for made in ("whole", "run"):
        trained = AutoModelForSeq2SeqLM.from_pretrained(place / made).state_dict()
        assert all(torch.equal(tensor, trained[name]) for name, tensor in base.state_dict().items())
