"""Adapters that cannot be merged as PEFT would: each is refused before anything is written, and the message says why."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, CLIPVisionModel

from sharding import job
from sharding.core.errors import SourceError, UsageError
from sharding.core.values import Content, Plan
from sharding.report.schema import Report
from tests import lora
from tests.folders import finish, tensors
from tests.lora import CONFIG, EVERY, WEIGHTS, Case, Edit, configured, edited, in_turn, save_adapter, save_base
from tests.promises import promise

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")

Ready = Callable[..., tuple[Path, Path]]
PREFIX = "base_model.model."
V_PROJ = f"{PREFIX}model.layers.1.self_attn.v_proj"
UNITED = f"{PREFIX}model.layers.1.mlp.experts.base_layer"
V_NORM = f"{PREFIX}model.layers.1.input_layernorm.weight"
EMBED, HEAD, NORM = f"{PREFIX}model.embed_tokens", f"{PREFIX}lm_head", f"{PREFIX}model.norm"
DELTA = f"{EMBED}.token_adapter.trainable_tokens_delta"
UPDATED = {"target_modules": ["q_proj"], "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}
EXPERTS, MOE = Case("qwen3_moe", UPDATED), Case("qwen3_moe", {"target_modules": ["q_proj"]})
DORA, SAVED_NORM = Case(lora={"use_dora": True}), Case(lora={"modules_to_save": ["norm"]})
TOKENS = Case(lora={"trainable_token_indices": [1, 5]})
IN_GROUPS = Case("wav2vec2", {"target_modules": r".*pos_conv_embed\.conv"})
TIED = Case("tied", {"target_modules": ["embed_tokens"], "ensure_weight_tying": True})


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


def quantized(method: str) -> Edit:
    """Integers with scales beside them, as in 8-bit weights of bitsandbytes."""
    codes = edited(
        lambda held: (
            {name: each.char() if name.endswith("_proj.weight") else each for name, each in held.items()}
            | {f"{name.removesuffix('weight')}SCB": torch.ones(1) for name in held if name.endswith("_proj.weight")}
        ),
        "model.safetensors",
    )
    return in_turn(codes, configured(file="config.json", quantization_config={"quant_method": method}))


def removed(file: str) -> Edit:
    return lambda folder: (folder / file).unlink()


def ending_early(folder: Path) -> None:
    os.truncate(folder / WEIGHTS, (folder / WEIGHTS).stat().st_size - 9)


def of_experts(part: str, shape: tuple[int, int], number: int = 4, rank: int = 4, **settings: Any) -> Edit:
    return in_turn(lora.for_each_expert({part: shape}, number=number, rank=rank), configured(**settings))


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


REFUSED = {
    "another kind of adapter": Refused(("LOHA",), configured(peft_type="LOHA")),
    "alpha is 0 for some": Refused(("alpha is 0", "v_proj"), configured(alpha_pattern={"v_proj": 0})),
    "alpha is 0 for experts": Refused(("alpha is 0",), configured(lora_alpha=0), case=EXPERTS),
    "no adapter_config.json": Refused((CONFIG,), removed(CONFIG)),
    "adapter_config.json is no JSON": Refused((CONFIG,), lambda folder: (folder / CONFIG).write_text("{") and None),
    "target_modules is no regular expression": Refused(("target_modules", "("), configured(target_modules="(")),
    "a rank pattern is no regular expression": Refused(("rank_pattern", "("), configured(rank_pattern={"(": 4})),
    "no targets": Refused(("target_modules",), configured(target_modules=None)),
    "another rank": Refused(("4", "5"), configured(r=5)),
    "another rank by a pattern": Refused(("v_proj", "4", "2"), configured(rank_pattern={"v_proj": 2})),
    "no weights": Refused((WEIGHTS,), removed(WEIGHTS)),
    "weights that end early": Refused((WEIGHTS,), ending_early),
    "a pickle that runs code": Refused(("adapter_model.bin",), unpickling_runs_code),
    "weights that it does not target": Refused(("v_proj",), configured(target_modules=sorted({*EVERY} - {"v_proj"}))),
    "weights that it excludes": Refused(("v_proj",), configured(exclude_modules=["v_proj"])),
    "weights of other layers": Refused(("layers.1",), configured(layers_to_transform=[0])),
    "no lora_B": Refused((f"{V_PROJ}.lora_B.weight",), without(f"{V_PROJ}.lora_B.weight")),
    "a whole weight beside its update": Refused(
        (f"{V_PROJ}.weight", f"{V_PROJ}.base_layer.weight"), with_more(**{f"{V_PROJ}.weight": torch.ones(16, 32)})
    ),
    "the base layer of a module without an update": Refused(
        (f"{NORM}.base_layer.weight",), with_more(**{f"{NORM}.base_layer.weight": torch.ones(32)})
    ),
    "adapters in folders": Refused(("query", "document"), in_folders("query", "document")),
    "use_dora without a magnitude": Refused(("lora_magnitude_vector",), configured(use_dora=True)),
    "a magnitude without use_dora": Refused(("lora_magnitude_vector",), configured(use_dora=False), case=DORA),
    "a module to save is not there": Refused(
        ("lm_head",), without(f"{HEAD}.weight"), case=Case(lora={"modules_to_save": ["lm_head"]})
    ),
    "one module to save is not there": Refused(("layers.1.input_layernorm",), without(V_NORM), case=SAVED_NORM),
    "trained tokens are not there": Refused(("trainable_tokens_delta",), without(DELTA), case=TOKENS),
    "trained tokens beyond the vocabulary": Refused(
        ("trainable_token_indices", "96"), configured(trainable_token_indices=[1, 96]), case=TOKENS
    ),
    "more trained tokens than are named": Refused(
        ("trainable_token",), configured(trainable_token_indices=[1]), case=TOKENS
    ),
    "of a deeper model": Refused(("model.layers.1.",), base=base_of(Case(changes={"num_hidden_layers": 1}))),
    "of a wider model": Refused(("48", "80"), base=base_of(Case(changes={"intermediate_size": 80}))),
    "lora_A of another width": Refused(("v_proj", "31", "32"), changed(f"{V_PROJ}.lora_A.weight", lambda a: a[:, :31])),
    "lora_B of another height": Refused(("v_proj", "15", "16"), changed(f"{V_PROJ}.lora_B.weight", lambda b: b[:15])),
    "lora_A is a vector": Refused(("v_proj",), changed(f"{V_PROJ}.lora_A.weight", torch.flatten)),
    "the ranks of a pair differ": Refused(("v_proj", "3", "4"), changed(f"{V_PROJ}.lora_B.weight", lambda b: b[:, :3])),
    "lora_B of experts is a vector": Refused(
        (f"{UNITED}.lora_B",), changed(f"{UNITED}.lora_B.weight", torch.flatten), case=EXPERTS
    ),
    "lora_A of experts has no rows": Refused(
        (f"{UNITED}.lora_A",), changed(f"{UNITED}.lora_A.weight", lambda a: a[:0]), case=EXPERTS
    ),
    "a weight of whole numbers": Refused(("v_proj",), changed(f"{V_PROJ}.lora_B.weight", torch.Tensor.int)),
    "a magnitude of another length": Refused(
        ("lora_magnitude_vector", "15", "16"), changed(f"{V_PROJ}.lora_magnitude_vector", lambda m: m[:15]), case=DORA
    ),
    "a saved module of another shape": Refused(
        ("model.norm", "31", "32"), changed(f"{NORM}.weight", lambda norm: norm[:31]), case=SAVED_NORM
    ),
    "more tokens in the head only": Refused(("96", "101"), without(f"{EMBED}.weight"), case=Case(rows=101)),
    "experts of another number": Refused(
        ("mlp.experts",), base=base_of(Case("qwen3_moe", changes={"num_experts": 8})), case=EXPERTS
    ),
    "a name that fits two tensors": Refused(
        ("encoder.layers.0.self_attn.q_proj",), case=Case("clip", {"target_modules": ["q_proj"]}, auto=CLIPVisionModel)
    ),
    "an update of tied embeddings with ensure_weight_tying": Refused(("ensure_weight_tying",), case=TIED),
    "a quantized base": Refused(
        ("quanto",), base=quantized("quanto"), hint="the repo that the base was quantized from"
    ),
    "a quantized base, FP8": Refused(("fp8",), base=quantized("fp8"), hint="--dequantize"),
    "a convolution in groups": Refused(("pos_conv_embed.conv",), case=IN_GROUPS),
    "gate without up": Refused(("gate_proj",), of_experts("gate_proj", (24, 32)), case=MOE),
    "an expert is missing": Refused(("experts.3",), of_experts("down_proj", (32, 24), number=3), case=MOE),
    "a rank pattern of experts": Refused(
        ("rank_pattern",), of_experts("down_proj", (32, 24), rank=2, rank_pattern={"down_proj": 2}), case=MOE
    ),
    "an alpha pattern of experts": Refused(
        ("alpha_pattern", "down_proj"), of_experts("down_proj", (32, 24), alpha_pattern={"down_proj": 3}), case=MOE
    ),
}


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Ready:
    """Put the base of a case and its adapter into a folder; each is made once."""
    made = dict[str, Path]()

    def copied(folder: Path, case: Case | None = None) -> tuple[Path, Path]:
        case = case or Case()
        if repr(case) not in made:
            place = made[repr(case)] = tmp_path_factory.mktemp("case")
            save_adapter(case, save_base(case, place / "base"), place / "adapter")
        shutil.copytree(made[repr(case)], folder, dirs_exist_ok=True)
        return folder / "base", folder / "adapter"

    return copied


def merge(base: Path, adapter: Path, out: Path) -> Report:
    return finish(job.shard(str(base), str(out), job.Options("1MB", adapter=str(adapter))))


def planned(base: Path, adapter: Path) -> tuple[Content, Plan]:
    return job.plan(str(base), job.Options("1MB", adapter=str(adapter)))


@promise("docs/formats.md#which-adapters-are-refused")
@pytest.mark.parametrize("name", REFUSED)
def test_an_adapter_that_would_not_be_merged_as_it_was_trained_is_refused_before_anything_is_written(
    name: str, ready: Ready, tmp_path: Path
) -> None:
    refused = REFUSED[name]
    base, adapter = ready(tmp_path, refused.case)
    refused.base(base)
    refused.adapter(adapter)
    with pytest.raises((SourceError, UsageError)) as sharding:
        merge(base, adapter, tmp_path / "out")
    missing = [word for word in refused.words if word not in sharding.value.message]
    assert not missing, sharding.value.message
    assert refused.hint in sharding.value.message + sharding.value.hint
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


def test_what_a_quantized_base_was_made_from_is_named_by_adapter_or_card(ready: Ready, tmp_path: Path) -> None:
    base, adapter = ready(tmp_path)
    quantized("gptq")(base)
    for card, adapters_base, origin in ORIGINS:
        configured(base_model_name_or_path=adapters_base)(adapter)
        (base / "README.md").write_text(f"---\n{card}\n---\nA model.")
        with pytest.raises(SourceError) as refused:
            planned(base, adapter)
        wanted = f"quantized from, {origin}." if origin else "Its card may name it."
        assert refused.value.hint.endswith(wanted), card


def test_targets_without_weights_stay_as_they_are_and_the_plan_says_so(ready: Ready, tmp_path: Path) -> None:
    base, adapter = ready(tmp_path)
    without(f"{V_PROJ}.lora_A.weight", f"{V_PROJ}.lora_B.weight")(adapter)
    report = merge(base, adapter, tmp_path / "out")
    findings = [finding for finding in report.plan.findings if "layers.1.self_attn.v_proj" in finding.message]
    assert [finding.level for finding in findings] == ["warning"]
    name = V_PROJ.removeprefix(PREFIX) + ".weight"
    assert torch.equal(tensors(tmp_path / "out")[name], tensors(base)[name])


def test_settings_that_nobody_knows_are_named_in_a_warning(ready: Ready, tmp_path: Path) -> None:
    peft = Case(lora={"lora_dropout": 0.1, "lora_bias": True, "target_modules": ["q_proj"]})
    base, adapter = ready(tmp_path, peft)
    _, plan = planned(base, adapter)
    assert "unknown-settings" not in {finding.code for finding in plan.findings}, "PEFT itself writes these"
    configured(scale_by_depth=2.5, enable_lora=[True], new_switch=False, new_choice=None)(adapter)
    _, plan = planned(base, adapter)
    [finding] = [finding for finding in plan.findings if finding.code == "unknown-settings"]
    assert finding.level == "warning" and "scale_by_depth, enable_lora" in finding.message
    assert "new_switch" not in finding.message and "new_choice" not in finding.message


def test_weights_beside_an_adapter_are_named_in_a_warning(ready: Ready, tmp_path: Path) -> None:
    files = {
        "non_lora_trainables.bin": "what LLaVA trained beside its LoRA",
        "new_embeddings.safetensors": "embeddings of new tokens",
        "value_head.bin": "a value head",
        "anything.safetensors": "other weights",
    }
    base, adapter = ready(tmp_path)
    for name in (*files, "optimizer.pt", "training_args.bin"):
        (adapter / name).write_bytes(b"x")
    checkpoint, _ = planned(base, adapter)
    warnings = [finding.message for finding in checkpoint.findings if finding.level == "warning"]
    assert sum(name in text and what in text for text in warnings for name, what in files.items()) == 4 == len(warnings)
    assert not any("optimizer" in text or "training_args" in text for text in warnings)


def test_one_of_several_adapters_is_chosen_by_its_folder_and_there_must_be_one(ready: Ready, tmp_path: Path) -> None:
    base, adapter = ready(tmp_path)
    in_folders("query", "document")(adapter)
    merge(base, adapter / "query", tmp_path / "out")
    assert tensors(tmp_path / "out").keys() == tensors(base).keys()
    with pytest.raises((SourceError, UsageError), match="nowhere"):
        planned(base, tmp_path / "nowhere")


def test_a_classifier_that_would_have_random_weights_is_refused_by_their_names(ready: Ready, tmp_path: Path) -> None:
    """A model of masked words has no pooler, which the class for sequences computes its labels from."""
    lora = {"target_modules": ["query"], "task_type": "SEQ_CLS"}
    case = Case("bert for words", lora, auto=AutoModelForSequenceClassification)
    with pytest.raises(SourceError, match=r"BertForSequenceClassification.*bert\.pooler\.dense\.weight"):
        merge(*ready(tmp_path, case), tmp_path / "out")
    assert not (tmp_path / "out").exists()
