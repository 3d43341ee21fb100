"""config.json has the form of the original's, and the values of mine."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from tests.conftest import listing
from tests.planning.alike.models import (
    MODELS,
    build,
    build_text,
    configure,
    load,
    logits,
    published,
    rename,
    shard,
    words,
)

Folders = tuple[Path, Path]


@pytest.fixture
def pair(tmp_path: Path) -> Folders:
    """A tuned text model, and the model that sees."""
    return published(build_text("gemma3"), tmp_path / "mine"), published(build("gemma3"), tmp_path / "original")


def test_values_of_mine_stand_where_the_original_has_them_and_both_are_reported(pair: Folders, tmp_path: Path) -> None:
    mine, original = pair
    configure(mine, max_position_embeddings=777, rms_norm_eps=2e-5, transformers_version="1.0")
    configure(mine, auto_map={"AutoConfig": "own.Own"}, tie_word_embeddings=False)  # and it stores no head
    before = configure(original, text_config__max_position_embeddings=555)
    report = shard(mine, tmp_path / "out", like=original)
    after = configure(tmp_path / "out")
    assert after["text_config"]["max_position_embeddings"] == 777 and after["text_config"]["rms_norm_eps"] == 2e-5
    assert "text_config.max_position_embeddings 777 (original 555)" in words(report)
    for key in ("architectures", "model_type", "transformers_version", "vision_config", "mm_tokens_per_image"):
        assert after[key] == before[key]
    for one, other in ((after, before), (after["text_config"], before["text_config"])):
        assert one.keys() == other.keys() and one["model_type"] == other["model_type"]
        assert one["tie_word_embeddings"] == other["tie_word_embeddings"]


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_without_a_configuration_that_of_the_original_is_taken_with_a_warning(name: str, tmp_path: Path) -> None:
    original, mine = published(build(name), tmp_path / "original"), published(build(name, 1), tmp_path / "mine")
    rename(mine, "^", "module.")
    (mine / "config.json").unlink()
    report = shard(mine, tmp_path / "out", like=original)
    before, after = configure(original), configure(tmp_path / "out")
    assert after == before
    warned = [one for one in report.plan.findings if one.level != "info" and "config.json" in one.message]
    assert warned, words(report)
    assert torch.equal(load(tmp_path / "out", MODELS[name][0]).logits, logits(build(name, 1)))


def test_a_configuration_that_is_the_original_s_is_copied_as_bytes(tmp_path: Path) -> None:
    original, mine = published(build("llama"), tmp_path / "original"), published(build("llama", 1), tmp_path / "mine")
    shard(rename(mine, "^", "module."), tmp_path / "out", like=original)
    assert (tmp_path / "out/config.json").read_bytes() == (original / "config.json").read_bytes()


@pytest.mark.parametrize("says_it", [True, False])
def test_the_dtype_is_that_of_the_weights(says_it: bool, tmp_path: Path) -> None:
    original = published(build("qwen3_moe"), tmp_path / "original")
    deepcopy(build("qwen3_moe", 1)).float().save_pretrained(tmp_path / "mine")
    config = configure(tmp_path / "mine")
    (tmp_path / "mine/config.json").write_text(json.dumps({k: v for k, v in config.items() if says_it or k != "dtype"}))
    shard(rename(tmp_path / "mine", "^", "module."), tmp_path / "out", like=original)
    assert configure(tmp_path / "out")["dtype"] == "float32"
    loaded, _ = MODELS["qwen3_moe"][0].from_pretrained(tmp_path / "out", dtype="auto", output_loading_info=True)
    assert loaded.dtype == torch.float32


def _before_5(folder: Path) -> Path:
    """Write config.json as transformers 4 did."""
    config = configure(folder)
    text = config.get("text_config", config)
    rope = text.pop("rope_parameters")
    if "sliding_attention" in rope:
        text["rope_local_base_freq"], rope = rope["sliding_attention"]["rope_theta"], rope["full_attention"]
    scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
    text |= {"rope_theta": rope["rope_theta"], "rope_scaling": scaling if len(scaling) > 1 else None}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("is_old", [(True, False), (False, True), (False, False), (True, True)])
@pytest.mark.parametrize("kind", ["linear", "default"])
@pytest.mark.parametrize("name", ["gemma3", "qwen2_5_vl", "llama4_vl"])
def test_positions_are_counted_as_in_mine(name: str, kind: str, is_old: tuple[bool, bool], tmp_path: Path) -> None:
    """However both say it, and whatever the original stretches."""
    text = build_text(name)
    config = deepcopy(text.config)
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    rope |= {"rope_theta": 77777.0, "rope_type": kind} | ({"factor": 4.0} if kind == "linear" else {})
    mine = published(type(text)._from_config(config, dtype=torch.bfloat16), tmp_path / "mine")
    original, wanted = (published(build(name), tmp_path / folder) for folder in ("original", "wanted"))
    other = configure(original)["text_config"]["rope_parameters"]
    other = other.get("full_attention", other)
    stretched = {"factor": 8.0, "rope_type": "yarn", "attention_factor": 2.0} if name != "qwen2_5_vl" else {}
    parts = "text_config__rope_parameters" + ("__full_attention" if name == "gemma3" else "")
    configure(wanted, **{parts: {**other, **rope}})
    configure(original, **{parts: {**other, **stretched}})
    for folder, needs in zip((mine, original), is_old, strict=True):
        if needs:
            _before_5(folder)
    shard(mine, tmp_path / "out", like=original)
    ours, theirs = (AutoConfig.from_pretrained(tmp_path / folder).text_config for folder in ("out", "wanted"))
    assert ours.rope_parameters == theirs.rope_parameters


@pytest.mark.parametrize("whole", [True, False])
def test_values_of_every_part_stay_in_their_part(whole: bool, tmp_path: Path) -> None:
    """A thinker gets its talker back, or is taken out."""
    published(build("qwen2_5_omni"), tmp_path / "whole")
    build("qwen2_5_omni", 1).save_pretrained(tmp_path / "thinker")
    mine, original = (tmp_path / name for name in (("thinker", "whole") if whole else ("whole", "thinker")))
    ours, theirs = ("", "thinker_config__") if whole else ("thinker_config__", "")
    values = {"audio_config__dropout": 0.5, "text_config__rms_norm_eps": 2e-3, "vision_config__window_size": 56}
    configure(mine, **{f"{ours}{key}": value for key, value in values.items()})
    shard(mine, tmp_path / "out", like=original)
    after = configure(tmp_path / "out")
    assert after == configure(original, **{f"{theirs}{key}": value for key, value in values.items()})


def test_a_model_of_another_type_with_the_same_names_is_told_apart(tmp_path: Path) -> None:
    original = published(build("llama"), tmp_path / "original")
    mine = published(build("llama", 1), tmp_path / "mine")
    configure(mine, model_type="mistral", sliding_window=8)
    report = shard(mine, tmp_path / "out", like=original)
    assert "mistral" in next(one.message for one in report.plan.findings if one.level == "warning")


FILES: dict[str, Any] = {"tokenizer.json": "{}", "tokenizer_config.json": "{}", "chat_template.jinja": "{{ messages }}"}


@pytest.mark.parametrize("has_its_own", [True, False])
def test_tokenizer_and_template_are_those_of_mine_where_it_has_them(
    has_its_own: bool, pair: Folders, tmp_path: Path
) -> None:
    for folder, mark in zip(pair, ("mine", "original"), strict=True):
        for file, text in FILES.items():
            if has_its_own or mark == "original":
                (folder / file).write_text(text.replace("{}", json.dumps({"made_by": mark})).replace("messages", mark))
    (pair[1] / "preprocessor_config.json").write_text('{"size": 3}')
    shard(pair[0], tmp_path / "out", like=pair[1])
    there, wanted = listing(tmp_path / "out"), listing(pair[0] if has_its_own else pair[1])
    assert {file: there.get(file) for file in FILES} == {file: wanted[file] for file in FILES}
    assert there["preprocessor_config.json"] == b'{"size": 3}'  # nobody else knows how the model sees
