"""A base that ties its head to its embeddings, or says so in one place only, is merged as PEFT merges it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoModelForSpeechSeq2Seq

from sharding.core.errors import SourceError
from tests.folders import bits, reshard, tensors
from tests.lora import (
    DTYPES,
    MODEL,
    MODELS,
    Case,
    Edit,
    build,
    configured,
    each_one,
    save_adapter,
    save_base,
    save_both,
)
from tests.scenarios.architectures import D_MODEL, TOKENS

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")

SEQ2SEQ = {**D_MODEL, **TOKENS}
WHISPER = {**SEQ2SEQ, "max_source_positions": 16, "max_target_positions": 16, "num_mel_bins": 8}
OTHERS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "whisper": (AutoModelForSpeechSeq2Seq, "whisper", WHISPER),
    "bart": (AutoModelForSeq2SeqLM, "bart", SEQ2SEQ),
    "m2m_100": (AutoModelForSeq2SeqLM, "m2m_100", SEQ2SEQ),
}
Q = ["q_proj"]
VLMS = ("gemma3", "llava", "qwen2_5_vl")


@pytest.fixture(autouse=True)
def with_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, model in OTHERS.items():
        monkeypatch.setitem(MODELS, name, model)


def only_in(place: str) -> Edit:
    """Return what makes the configuration of a base say in one `place` only that its head is tied."""

    def edit(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        for key, part in (("top", config), ("text_config", config["text_config"])):
            part.pop("tie_word_embeddings", None)
            part |= {"tie_word_embeddings": True} if key == place else {}
        (folder / "config.json").write_text(json.dumps(config))

    return edit


def all_in(dtype: str) -> Edit:
    """Return what stores every tensor of a base in `dtype`, as a checkpoint that was not saved by its class is."""
    return each_one(lambda _, tensor: tensor.to(DTYPES[dtype]), MODEL)


def vlm(model: str, lora: dict[str, Any], place: str = "text_config", **more: Any) -> Case:
    tied = {"tie_word_embeddings": True}
    changes = {**tied, "text_config": {**MODELS[model][2]["text_config"], **tied}}
    return Case(model, {"target_modules": Q, **lora}, "fp32", changes, edit=only_in(place), **more)


def same_as_peft(case: Case, folder: Path) -> None:
    """The result loads whole, and with the weights that PEFT's merged model has in memory."""
    from peft import PeftModel

    base, adapter = save_both(case, folder)
    reshard(base, folder / "out", "1GB", adapter=str(adapter))
    theirs = PeftModel.from_pretrained(case.load(base), adapter).merge_and_unload().state_dict()
    model, told = case.loader.from_pretrained(folder / "out", dtype="auto", output_loading_info=True)
    assert {kind: keys for kind, keys in told.items() if keys} == {}
    ours = model.state_dict()
    assert ours.keys() == theirs.keys()
    assert [name for name, tensor in theirs.items() if bits(ours[name]) != bits(tensor)] == []


CASES = {
    **{f"{m}, embeddings, said in {place}": vlm(m, {"modules_to_save": ["embed_tokens"]}, place)
       for m in VLMS for place in ("text_config", "top") if (m, place) != ("gemma3", "text_config")},
    **{f"{m}, head saved": vlm(m, {"modules_to_save": ["lm_head"]}) for m in VLMS[:2]},
    **{f"{m}, head adapted": vlm(m, {"target_modules": ["q_proj", "lm_head"]}) for m in VLMS[1:]},
    **{f"{m}, more tokens": vlm(m, {"modules_to_save": ["embed_tokens", "lm_head"]}, rows=101) for m in VLMS[:2]},
    **{f"{m}, more tokens, still tied": vlm(
        m, {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}, rows=101) for m in VLMS[:2]},
    "whisper, head saved": Case("whisper", {"target_modules": Q, "modules_to_save": ["proj_out"]}, "fp32"),
    "whisper, head adapted": Case("whisper", {"target_modules": ["q_proj", "proj_out"]}, "fp32"),
    "whisper, embeddings": Case("whisper", {"target_modules": Q, "modules_to_save": ["embed_tokens"]}, "fp32"),
    **{f"t5, wo as it was, {dtype}": Case("t5", {"target_modules": ["q"]}, dtype, edit=all_in(dtype)) for dtype in ("fp16", "bf16")},
    "t5, wo saved, fp16": Case("t5", {"target_modules": ["q"], "modules_to_save": ["wo"]}, "fp16", edit=all_in("fp16")),
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.thorough if "llava" in n and "said" not in n else ()) for n in CASES]
)
def test_a_merged_model_has_the_weights_of_peft_s_in_memory(name: str, tmp_path: Path) -> None:
    same_as_peft(CASES[name], tmp_path)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_what_a_class_keeps_in_fp32_is_merged_and_stored_in_fp32(dtype: str, tmp_path: Path) -> None:
    base, adapter, peft = build(Case("t5", {"target_modules": ["q", "wo"]}, dtype, edit=all_in(dtype)), tmp_path)
    reshard(base, tmp_path / "out", "1GB", adapter=str(adapter))
    ours, theirs = tensors(tmp_path / "out"), tensors(peft)
    assert ours.keys() == theirs.keys()
    assert [name for name, tensor in theirs.items() if bits(ours[name]) != bits(tensor)] == []
    wo = {tensor.dtype for name, tensor in ours.items() if ".wo." in name}
    assert wo == {torch.float32 if dtype == "fp16" else torch.bfloat16}


REFUSED = {
    "shared of bart": (Case("bart", {"target_modules": Q, "modules_to_save": ["shared"]}), "embed_tokens"),
    "shared of m2m_100": (Case("m2m_100", {"target_modules": Q, "modules_to_save": ["shared"]}), "embed_tokens"),
    "head of bart": (Case("bart", {"target_modules": Q, "modules_to_save": ["lm_head"]}), "embed_tokens"),
    "head of bert": (Case("bert for words", {"target_modules": ["query"], "modules_to_save": ["decoder"]}), "decoder.bias"),
    "not known": (
        Case("tied", {"target_modules": Q, "modules_to_save": ["lm_head"]}, edit=configured("config.json", auto_map={"AutoConfig": "x.Y"})),
        "not known whether",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_merge_that_would_load_at_random_is_refused(name: str, tmp_path: Path) -> None:
    case, words = REFUSED[name]
    base = save_base(case, tmp_path / "base")
    loadable = save_base(Case(case.model), tmp_path / "loadable")
    adapter = save_adapter(case, loadable, tmp_path / "adapter")
    with pytest.raises(SourceError, match=words):
        reshard(base, tmp_path / "out", "1GB", adapter=str(adapter))
