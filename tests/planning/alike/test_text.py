"""The text model of one that also sees or hears becomes a model of its own, and a tuned one goes back to its place."""

import json
import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from sharding.core.errors import ShardingError
from tests.folders import tensors
from tests.planning.alike.models import (
    FORMS,
    MODELS,
    TEXTS,
    assert_loads,
    build,
    build_text,
    configure,
    load,
    logits,
    published,
    shapes,
    shard,
    unlike,
    words,
)

SAMPLE = ("gemma3", "qwen2_5_vl", "qwen2_5_omni")
EACH = [name if name in SAMPLE else pytest.param(name, marks=pytest.mark.thorough) for name in TEXTS]
FORM = ["published", pytest.param("in memory", marks=pytest.mark.thorough)]


@pytest.mark.parametrize("form", FORM)
@pytest.mark.parametrize("name", EACH)
def test_the_text_model_alone_computes_what_it_computes_in_its_place(name: str, form: str, tmp_path: Path) -> None:
    source = FORMS[form](build(name), tmp_path / "in")
    report = shard(source, tmp_path / "out", text_only=True)
    assert json.loads((tmp_path / "out/config.json").read_text())["architectures"] == [TEXTS[name][1]]
    alone = load(tmp_path / "out", AutoModelForCausalLM)
    assert alone.told == {} and torch.equal(alone.logits, logits(build(name)))
    held, wanted = shapes(tmp_path / "out"), shapes(published(build_text(name), tmp_path / "text"))
    assert held == wanted
    assert f"{len(shapes(source)) - len(held)} tensors of other parts" in words(report)


@pytest.mark.parametrize("name", EACH)
def test_a_tuned_text_model_goes_back_into_the_model_that_sees(name: str, tmp_path: Path) -> None:
    original, mine = published(build(name), tmp_path / "vlm"), published(build_text(name), tmp_path / "mine")
    shard(mine, tmp_path / "out", like=original)
    assert_loads(tmp_path / "out", original, build_text(name), MODELS[name][0])
    changed = unlike(tensors(tmp_path / "out"), tensors(original))
    assert len(changed) == len(tensors(mine))
    assert not re.search("visual|vision|projector|audio_tower|talker", str(changed))


@pytest.mark.parametrize("name", EACH)
def test_there_and_back_again_is_the_same_model(name: str, tmp_path: Path) -> None:
    original = published(build(name), tmp_path / "vlm")
    shard(original, tmp_path / "text", text_only=True)
    shard(tmp_path / "text", tmp_path / "back", like=original)
    assert unlike(tensors(tmp_path / "back"), tensors(original)) == {}
    before, after = (json.loads((tmp_path / place / "config.json").read_text()) for place in ("vlm", "back"))
    assert (after["architectures"], after["model_type"]) == (before["architectures"], before["model_type"])


def test_a_configuration_with_the_numbers_of_the_text_at_its_top_keeps_that_form(tmp_path: Path) -> None:
    """Qwen2.5-VL is published so."""
    original = published(build("qwen2_5_vl"), tmp_path / "vlm")
    config = configure(original)
    text = config.pop("text_config")
    flat = {**text, **config}
    (original / "config.json").write_text(json.dumps(flat))
    shard(original, tmp_path / "text", text_only=True)
    assert not [key for key in configure(tmp_path / "text") if key.startswith(("vision_", "image_", "video_"))]
    assert torch.equal(load(tmp_path / "text", AutoModelForCausalLM).logits, logits(build("qwen2_5_vl")))
    shard(published(build_text("qwen2_5_vl"), tmp_path / "mine"), tmp_path / "out", like=original)
    assert "text_config" not in configure(tmp_path / "out")
    assert torch.equal(load(tmp_path / "out", MODELS["qwen2_5_vl"][0]).logits, logits(build_text("qwen2_5_vl")))


def test_files_of_the_processor_stay_behind_and_the_tokenizer_s_come_along(tmp_path: Path) -> None:
    source = published(build("gemma3"), tmp_path / "in")
    (source / "preprocessor_config.json").write_text("{}")
    (source / "processor_config.json").write_text("{}")
    (source / "tokenizer.json").write_text("{}")
    (source / "chat_template.jinja").write_text("{{ messages }}")
    shard(source, tmp_path / "out", text_only=True)
    there = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"tokenizer.json", "chat_template.jinja"} <= there and not [name for name in there if "processor" in name]


@pytest.mark.parametrize("name", ["llama", "t5", "vit", "clip"])
def test_a_model_without_a_text_model_inside_is_refused(name: str, tmp_path: Path) -> None:
    source = published(build(name), tmp_path / "in")
    with pytest.raises(ShardingError):
        shard(source, tmp_path / "out", text_only=True)
    assert not (tmp_path / "out").exists()
