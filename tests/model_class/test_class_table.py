"""What the table says of a class is what the installed transformers does with it."""

import json
import re
from typing import Any

import pytest
import torch
import transformers

from sharding.model_class import class_table
from sharding.model_class.class_table import TABLE, known_class
from tests.model_class import table_maker

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
SAMPLE = [
    "BertForMaskedLM", "Glm4MoeForCausalLM", "InstructBlipForConditionalGeneration", "LlavaForConditionalGeneration",
    "MusicgenForConditionalGeneration", "Qwen3MoeForCausalLM", "RwkvForCausalLM", "T5ForConditionalGeneration",
    "ViTModel", "XLNetLMHeadModel", "ZambaForCausalLM",
]  # fmt: skip
ENTRIES: dict[str, Any] = json.loads(TABLE.read_text())["classes"]
BUILT = [name for name, entry in ENTRIES.items() if isinstance(entry, dict)]
SHARE = 8


def kept_by_the_library(model: Any, dtype: torch.dtype) -> set[str]:
    """The names in files of what a checkpoint of `model`, which was built in fp16, has in fp32 once it is loaded."""
    from transformers.core_model_loading import build_glob_alternation, revert_weight_conversion

    plan = model._get_dtype_plan(dtype)
    pattern = build_glob_alternation(list(plan))[0] if plan else re.compile("(?!)")
    state = {name: tensor for name, tensor in table_maker.saved(model).items() if tensor.is_floating_point()}
    kept = {name: tensor for name, tensor in state.items() if tensor.dtype == torch.float32 or pattern.search(name)}
    return set(revert_weight_conversion(model, kept))


def hold_to_the_library(name: str) -> None:
    cls = getattr(transformers, name)
    model = table_maker.built(cls)
    assert model is not None
    assert table_maker.entry_of(cls, model) == ENTRIES[name], name
    known = known_class({**model.config.to_dict(), "architectures": [name]})
    if known is None:  # a part of it is asked of transformers
        return
    assert known.name == name
    floats = table_maker.names_in_files(model)
    for option, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16)):
        kept = re.compile("|".join(known.kept[option]) or "(?!)")
        assert {file for file in floats if kept.search(file)} == kept_by_the_library(model, dtype), (name, option)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_class_is_as_the_table_says(name: str) -> None:
    hold_to_the_library(name)


@pytest.mark.thorough
@pytest.mark.parametrize("start", range(0, SHARE, SHARE // 2))
def test_a_share_of_all_classes_is_as_the_table_says(start: int) -> None:
    for name in BUILT[start::SHARE]:  # all take minutes, and `make class-table` asks all
        hold_to_the_library(name)


def test_the_table_is_of_the_installed_library_and_knows_nearly_all_of_its_classes() -> None:
    assert json.loads(TABLE.read_text())["transformers"] == transformers.__version__
    assert len(BUILT) > 1650 and len(ENTRIES) - len(BUILT) < 80
    assert sum("fp16" in ENTRIES[name] for name in BUILT) > 180
    told = [known_class({"model_type": ENTRIES[name]["type"], "architectures": [name]}) for name in BUILT]
    assert told.count(None) < 15


@pytest.mark.thorough
def test_every_class_of_the_library_is_in_the_table() -> None:
    names = {name for name, _ in table_maker.classes() if not name.endswith(("PreTrainedModel", "PretrainedModel"))}
    assert ENTRIES.keys() == names
    missing = [name for name, entry in ENTRIES.items() if entry is None]  # most want a library that is not there
    assert len(missing) < 80
    for name in missing:
        cls = getattr(transformers, name)
        assert not cls._keep_in_fp32_modules and not cls._keep_in_fp32_modules_strict, name


@pytest.mark.parametrize(
    ("config", "name", "kept"),
    [
        ({"model_type": "t5"}, "T5Model", ("wo",)),
        ({"model_type": "t5", "architectures": ["Mine", "T5EncoderModel"]}, "T5EncoderModel", ("wo",)),
        ({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM", ()),
        # Of a model of several the part says what it is, or it is the usual one.
        ({"model_type": "llava", "text_config": {"model_type": "t5"}}, "LlavaModel", ("wo",)),
        ({"model_type": "kimi_k25"}, "Kimi_K25Model", ("e_score_correction_bias",)),
        ({"model_type": "kimi_k25", "text_config": {"model_type": "llama"}}, "Kimi_K25Model", ()),
    ],
)
def test_a_configuration_tells_its_class(config: dict[str, Any], name: str, kept: tuple[str, ...]) -> None:
    known = known_class(config)
    assert known and known.name == name and known.kept["fp16"] == kept


def nested(depth: int) -> dict[str, Any]:
    """A model inside a model inside a model, none of which says what is in the last."""
    config: dict[str, Any] = {"model_type": "mine"}
    for _ in range(depth):
        config = {"model_type": "llava", "text_config": config}
    return config


@pytest.mark.parametrize(
    "config",
    [
        None, [], {}, {"model_type": 7}, {"model_type": "mine"}, {"model_type": "llama", "auto_map": {}},
        {"model_type": "llama", "auto_map": {}, "architectures": ["Mine"]},
        {"model_type": "llava", "text_config": {"model_type": "mine"}},
        {"model_type": "timm_backbone", "architectures": ["TimmBackbone"]}, nested(400),
    ],
)  # fmt: skip
def test_what_the_table_does_not_have_is_not_known(config: Any) -> None:
    assert known_class(config) is None
    assert not class_table.ties(config)


def test_a_part_that_is_no_configuration_ties_nothing() -> None:
    config = {"model_type": "blip-2", "text_config": ["opt"], "architectures": ["Blip2ForConditionalGeneration", 7]}
    assert class_table.ties(config | {"tie_word_embeddings": True}) is None
