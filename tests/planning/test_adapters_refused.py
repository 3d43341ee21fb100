"""Adapters that cannot be merged as PEFT would: each is refused before anything is written, and the message says why."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, CLIPVisionModel

from sharding import job
from sharding.core.errors import SourceError, UsageError
from tests.folders import finish, tensors
from tests.lora import (
    CONFIG,
    EVERY,
    WEIGHTS,
    Case,
    Edit,
    configured,
    edited,
    for_each_expert,
    in_turn,
    save_adapter,
    save_base,
)
from tests.promises import promise

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")

PREFIX = "base_model.model."
V_PROJ = f"{PREFIX}model.layers.1.self_attn.v_proj"
EMBED, HEAD = f"{PREFIX}model.embed_tokens", f"{PREFIX}lm_head"
EXPERTS = {"target_modules": ["q_proj"], "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}
CONV_GROUPS = Case("wav2vec2", {"target_modules": r".*pos_conv_embed\.conv"})
MOE = Case("qwen3_moe", {"target_modules": ["q_proj"]})


@dataclass(frozen=True, slots=True)
class Refused:
    """How an adapter, or its base, is spoiled, and the `words` that the message has."""

    words: tuple[str, ...]
    adapter: Edit = lambda folder: None
    base: Edit = lambda folder: None
    case: Case = field(default_factory=Case)
    hint: str = ""


def without(*names: str) -> Edit:
    return edited(lambda tensors: {name: tensor for name, tensor in tensors.items() if name not in names})


def with_more(**more: torch.Tensor) -> Edit:
    return edited(lambda tensors: {**tensors, **more})


def changed(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Edit:
    return edited(lambda tensors: {**tensors, name: change(tensors[name])})


CODES = edited(
    lambda held: (
        {name: each.char() if name.endswith("_proj.weight") else each for name, each in held.items()}
        | {f"{name.removesuffix('weight')}SCB": torch.ones(1) for name in held if name.endswith("_proj.weight")}
    ),
    "model.safetensors",
)
"""Integers with scales beside them, as in 8-bit weights of bitsandbytes."""


def only(*names: str) -> Edit:
    return edited(lambda _: {name: torch.ones(4, 32) for name in names})


def removed(file: str) -> Edit:
    return lambda folder: (folder / file).unlink()


def overwritten(file: str, data: bytes) -> Edit:
    return lambda folder: folder.joinpath(file).write_bytes(data) and None


def in_folders(*places: str) -> Edit:
    def edit(folder: Path) -> None:
        for place in places:
            (folder / place).mkdir()
            for file in (CONFIG, WEIGHTS):
                shutil.copy(folder / file, folder / place)
        for path in folder.iterdir():
            if path.is_file():
                path.unlink()

    return edit


class _Bomb:
    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return exec, ("raise SystemExit('a pickle was run')",)


def unpickling_runs_code(folder: Path) -> None:
    torch.save({V_PROJ: _Bomb()}, folder / "adapter_model.bin")
    (folder / WEIGHTS).unlink()


def base_of(case: Case) -> Edit:
    """Another base than the adapter's."""

    def edit(folder: Path) -> None:
        shutil.rmtree(folder)
        save_base(case, folder)

    return edit


OF_CONFIGURATION = {
    "another kind of adapter": Refused(("LOHA",), configured(peft_type="LOHA")),
    "an initialization that changes the base": Refused(("pissa",), configured(init_lora_weights="pissa")),
    "repeated layers": Refused(("layer_replication",), configured(layer_replication=[[0, 1], [0, 2]])),
    "experts in an order that is unknown": Refused(
        ("order of the columns of lora_B",),
        configured(auto_mapping={"unsloth_fixed": True}),
        case=Case("qwen3_moe", EXPERTS),
        hint="lora_B_layout",
    ),
    "alpha is 0": Refused(("alpha is 0", "down_proj"), configured(lora_alpha=0)),
    "alpha is 0 for some": Refused(("alpha is 0", "v_proj"), configured(alpha_pattern={"v_proj": 0})),
    "alpha is 0 for experts": Refused(("alpha is 0",), configured(lora_alpha=0), case=Case("qwen3_moe", EXPERTS)),
    "no adapter_config.json": Refused((CONFIG,), removed(CONFIG)),
    "adapter_config.json is no JSON": Refused((CONFIG,), overwritten(CONFIG, b"{")),
    "adapter_config.json is a list": Refused((CONFIG,), overwritten(CONFIG, b"[]")),
    "a rank is a word": Refused((CONFIG, "eight"), configured(r="eight")),
    "target_modules is no regular expression": Refused(("target_modules", "("), configured(target_modules="(")),
    "a rank pattern is no regular expression": Refused(("rank_pattern", "("), configured(rank_pattern={"(": 4})),
    "no targets": Refused(("target_modules",), configured(target_modules=None)),
    "another rank": Refused(("4", "5"), configured(r=5)),
    "another rank by a pattern": Refused(("v_proj", "4", "2"), configured(rank_pattern={"v_proj": 2})),
}

OF_KEYS = {
    "no weights": Refused((WEIGHTS,), removed(WEIGHTS)),
    "weights that end early": Refused(
        (WEIGHTS,), lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-9]) and None
    ),
    "a pickle that runs code": Refused(("adapter_model.bin",), unpickling_runs_code),
    "weights that the configuration does not target": Refused(
        ("v_proj",), configured(target_modules=[name for name in EVERY if name != "v_proj"])
    ),
    "weights that it excludes": Refused(("v_proj",), configured(exclude_modules=["v_proj"])),
    "weights of other layers": Refused(("layers.1",), configured(layers_to_transform=[0])),
    "no lora_B": Refused((f"{V_PROJ}.lora_B.weight",), without(f"{V_PROJ}.lora_B.weight")),
    "kohya": Refused(
        ("lora_unet_down_blocks_0_attentions_0_proj_in.lora_down.weight",),
        only(
            "lora_unet_down_blocks_0_attentions_0_proj_in.lora_down.weight",
            "lora_unet_down_blocks_0_attentions_0_proj_in.lora_up.weight",
        ),
    ),
    "a whole weight beside its update": Refused(
        (f"{V_PROJ}.weight", f"{V_PROJ}.base_layer.weight"), with_more(**{f"{V_PROJ}.weight": torch.ones(16, 32)})
    ),
    "the base layer of a module without an update": Refused(
        (f"{PREFIX}model.norm.base_layer.weight",),
        with_more(**{f"{PREFIX}model.norm.base_layer.weight": torch.ones(32)}),
    ),
    "adapters in folders": Refused(("query", "document"), in_folders("query", "document")),
    "use_dora without a magnitude": Refused(("lora_magnitude_vector",), configured(use_dora=True)),
    "a magnitude without use_dora": Refused(
        ("lora_magnitude_vector",), configured(use_dora=False), case=Case(lora={"use_dora": True})
    ),
    "a module to save is not there": Refused(
        ("lm_head",), without(f"{HEAD}.weight"), case=Case(lora={"modules_to_save": ["lm_head"]})
    ),
    "one module to save is not there": Refused(
        ("layers.1.input_layernorm",),
        without(f"{PREFIX}model.layers.1.input_layernorm.weight"),
        case=Case(lora={"modules_to_save": ["norm"]}),
    ),
    "trained tokens are not there": Refused(
        ("trainable_tokens_delta",),
        without(f"{EMBED}.token_adapter.trainable_tokens_delta"),
        case=Case(lora={"trainable_token_indices": [1, 5]}),
    ),
    "trained tokens beyond the vocabulary": Refused(
        ("trainable_token_indices", "96"),
        configured(trainable_token_indices=[1, 96]),
        case=Case(lora={"trainable_token_indices": [1, 5]}),
    ),
    "more trained tokens than are named": Refused(
        ("trainable_token",),
        configured(trainable_token_indices=[1]),
        case=Case(lora={"trainable_token_indices": [1, 5]}),
    ),
}

OF_SHAPES = {
    "of a deeper model": Refused(("model.layers.1.",), base=base_of(Case(changes={"num_hidden_layers": 1}))),
    "of a wider model": Refused(("48", "80"), base=base_of(Case(changes={"intermediate_size": 80}))),
    "lora_A of another width": Refused(
        ("v_proj", "31", "32"), changed(f"{V_PROJ}.lora_A.weight", lambda tensor: tensor[:, :31])
    ),
    "lora_B of another height": Refused(
        ("v_proj", "15", "16"), changed(f"{V_PROJ}.lora_B.weight", lambda tensor: tensor[:15])
    ),
    "lora_A is a vector": Refused(("v_proj",), changed(f"{V_PROJ}.lora_A.weight", lambda tensor: tensor.flatten())),
    "the ranks of a pair differ": Refused(
        ("v_proj", "3", "4"), changed(f"{V_PROJ}.lora_B.weight", lambda tensor: tensor[:, :3])
    ),
    "lora_B of experts is a vector": Refused(
        ("mlp.experts.base_layer.lora_B",),
        changed(f"{PREFIX}model.layers.1.mlp.experts.base_layer.lora_B.weight", lambda tensor: tensor.flatten()),
        case=Case("qwen3_moe", EXPERTS),
    ),
    "lora_A of experts has no rows": Refused(
        ("mlp.experts.base_layer.lora_A",),
        changed(f"{PREFIX}model.layers.1.mlp.experts.base_layer.lora_A.weight", lambda tensor: tensor[:0]),
        case=Case("qwen3_moe", EXPERTS),
    ),
    "a weight of whole numbers": Refused(("v_proj",), changed(f"{V_PROJ}.lora_B.weight", lambda tensor: tensor.int())),
    "a magnitude of another length": Refused(
        ("lora_magnitude_vector", "15", "16"),
        changed(f"{V_PROJ}.lora_magnitude_vector", lambda tensor: tensor[:15]),
        case=Case(lora={"use_dora": True}),
    ),
    "a saved module of another shape": Refused(
        ("model.norm", "31", "32"),
        changed(f"{PREFIX}model.norm.weight", lambda tensor: tensor[:31]),
        case=Case(lora={"modules_to_save": ["norm"]}),
    ),
    "more tokens in the head only": Refused(("96", "101"), without(f"{EMBED}.weight"), case=Case(rows=101)),
    "experts of another number": Refused(
        ("mlp.experts",), base=base_of(Case("qwen3_moe", changes={"num_experts": 8})), case=Case("qwen3_moe", EXPERTS)
    ),
}

OF_MODELS = {
    "a name that fits two tensors": Refused(
        ("encoder.layers.0.self_attn.q_proj",), case=Case("clip", {"target_modules": ["q_proj"]}, auto=CLIPVisionModel)
    ),
    "an update of tied embeddings with ensure_weight_tying": Refused(
        ("ensure_weight_tying",), case=Case("tied", {"target_modules": ["embed_tokens"], "ensure_weight_tying": True})
    ),
    "a quantized base": Refused(
        ("bitsandbytes",),
        base=in_turn(CODES, configured(file="config.json", quantization_config={"quant_method": "bitsandbytes"})),
        hint="the repo that the base was quantized from",
    ),
    "a quantized base, FP8": Refused(
        ("fp8",),
        base=in_turn(CODES, configured(file="config.json", quantization_config={"quant_method": "fp8"})),
        hint="--dequantize",
    ),
    "a convolution in groups": Refused(("pos_conv_embed.conv",), case=CONV_GROUPS),
    "gate without up": Refused(("gate_proj",), for_each_expert({"gate_proj": (24, 32)}), case=MOE),
    "an expert is missing": Refused(("experts.3",), for_each_expert({"down_proj": (32, 24)}, number=3), case=MOE),
    "a rank pattern of experts": Refused(
        ("rank_pattern",),
        in_turn(for_each_expert({"down_proj": (32, 24)}, rank=2), configured(rank_pattern={"down_proj": 2})),
        case=MOE,
    ),
    "an alpha pattern of experts": Refused(
        ("alpha_pattern", "down_proj"),
        in_turn(for_each_expert({"down_proj": (32, 24)}), configured(alpha_pattern={"down_proj": 3})),
        case=MOE,
    ),
    "an alpha pattern of one expert": Refused(
        ("alpha_pattern", "experts.1.down_proj"),
        in_turn(for_each_expert({"down_proj": (32, 24)}), configured(alpha_pattern={"experts.1.down_proj": 3})),
        case=MOE,
    ),
}

REFUSED = OF_CONFIGURATION | OF_KEYS | OF_SHAPES | OF_MODELS


def ready(case: Case, folder: Path) -> tuple[Path, Path]:
    base = save_base(case, folder / "base")
    return base, save_adapter(case, base, folder / "adapter")


@promise("docs/formats.md#which-adapters-are-refused")
@pytest.mark.parametrize("name", REFUSED)
def test_an_adapter_that_would_not_be_merged_as_it_was_trained_is_refused_before_anything_is_written(
    name: str, tmp_path: Path
) -> None:
    refused = REFUSED[name]
    base, adapter = ready(refused.case, tmp_path)
    refused.base(base)
    refused.adapter(adapter)
    options = job.Options("1MB", adapter=str(adapter))
    with pytest.raises((SourceError, UsageError)) as planning:
        job.plan(str(base), options)
    with pytest.raises((SourceError, UsageError)) as sharding:
        finish(job.shard(str(base), str(tmp_path / "out"), options))
    assert sharding.value.message == planning.value.message
    missing = [word for word in refused.words if word not in planning.value.message]
    assert not missing, planning.value.message
    assert refused.hint in planning.value.message + planning.value.hint
    assert not (tmp_path / "out").exists()


ORIGINS = (
    ("base_model: org/plain", "unsloth/model-bnb-4bit", "org/plain"),
    ("base_model: [org/plain]", "", "org/plain"),
    ("base_model: [org/a, org/b]", "", ""),
    ("base_model: 'org/plain](http://x)'", "", ""),
    ("base_model: org/other", "org/plain", "org/plain"),
    ("license: mit", "unsloth/plain-bnb-4bit", ""),
)
"""A card, the base that the adapter names, and what the quantized base was made from."""


def test_what_a_quantized_base_was_made_from_is_named_by_adapter_or_card(tmp_path: Path) -> None:
    base, adapter = ready(Case(), tmp_path)
    in_turn(CODES, configured(file="config.json", quantization_config={"quant_method": "gptq"}))(base)
    for card, adapters_base, origin in ORIGINS:
        configured(base_model_name_or_path=adapters_base)(adapter)
        (base / "README.md").write_text(f"---\n{card}\n---\nA model.")
        with pytest.raises(SourceError) as refused:
            job.plan(str(base), job.Options("1MB", adapter=str(adapter)))
        wanted = f"quantized from, {origin}." if origin else "Its card may name it."
        assert refused.value.hint.endswith(wanted), card


def test_targets_without_weights_stay_as_they_are_and_the_plan_says_so(tmp_path: Path) -> None:
    base, adapter = ready(Case(), tmp_path)
    without(f"{V_PROJ}.lora_A.weight", f"{V_PROJ}.lora_B.weight")(adapter)
    report = finish(job.shard(str(base), str(tmp_path / "out"), job.Options("1MB", adapter=str(adapter))))
    findings = [finding for finding in report.plan.findings if "layers.1.self_attn.v_proj" in finding.message]
    assert [finding.level for finding in findings] == ["warning"]
    name = V_PROJ.removeprefix(PREFIX) + ".weight"
    assert torch.equal(tensors(tmp_path / "out")[name], tensors(base)[name])


def test_settings_that_nobody_knows_are_named_in_a_warning(tmp_path: Path) -> None:
    base, adapter = ready(Case(), tmp_path)
    configured(scale_by_depth=2.5, enable_lora=[True], new_switch=False, new_choice=None)(adapter)
    _, plan = job.plan(str(base), job.Options("1MB", adapter=str(adapter)))
    [finding] = [finding for finding in plan.findings if finding.code == "unknown-settings"]
    assert finding.level == "warning" and "scale_by_depth, enable_lora" in finding.message
    assert "new_switch" not in finding.message and "new_choice" not in finding.message


def test_what_peft_itself_writes_needs_no_warning(tmp_path: Path) -> None:
    base, adapter = ready(Case(lora={"lora_dropout": 0.1, "lora_bias": True, "target_modules": ["q_proj"]}), tmp_path)
    _, plan = job.plan(str(base), job.Options("1MB", adapter=str(adapter)))
    assert "unknown-settings" not in {finding.code for finding in plan.findings}


def test_weights_beside_an_adapter_are_named_in_a_warning(tmp_path: Path) -> None:
    files = {
        "non_lora_trainables.bin": "what LLaVA trained beside its LoRA",
        "new_embeddings.safetensors": "embeddings of new tokens",
        "value_head.bin": "a value head",
        "anything.safetensors": "other weights",
    }
    base, adapter = ready(Case(), tmp_path)
    for name in (*files, "optimizer.pt", "training_args.bin"):
        (adapter / name).write_bytes(b"x")
    checkpoint, _ = job.plan(str(base), job.Options("1MB", adapter=str(adapter)))
    warnings = [finding.message for finding in checkpoint.findings if finding.level == "warning"]
    assert sum(name in text and what in text for text in warnings for name, what in files.items()) == 4 == len(warnings)
    assert not any("optimizer" in text or "training_args" in text for text in warnings)


def test_one_of_several_adapters_is_chosen_by_its_folder(tmp_path: Path) -> None:
    base, adapter = ready(Case(), tmp_path)
    in_folders("query", "document")(adapter)
    finish(job.shard(str(base), str(tmp_path / "out"), job.Options("1MB", adapter=str(adapter / "query"))))
    assert tensors(tmp_path / "out").keys() == tensors(base).keys()


def test_no_adapter_at_that_place_is_an_error_of_the_request(tmp_path: Path) -> None:
    base = save_base(Case(), tmp_path / "base")
    with pytest.raises((SourceError, UsageError), match="nowhere"):
        job.plan(str(base), job.Options("1MB", adapter=str(tmp_path / "nowhere")))


def test_a_classifier_that_would_have_random_weights_is_refused_by_their_names(tmp_path: Path) -> None:
    """A model of masked words has no pooler, which the class for sequences computes its labels from."""
    lora = {"target_modules": ["query"], "task_type": "SEQ_CLS"}
    base, adapter = ready(Case("bert for words", lora, auto=AutoModelForSequenceClassification), tmp_path)
    with pytest.raises(SourceError, match=r"BertForSequenceClassification.*bert\.pooler\.dense\.weight"):
        finish(job.shard(str(base), str(tmp_path / "out"), job.Options("1MB", adapter=str(adapter))))
    assert not (tmp_path / "out").exists()
