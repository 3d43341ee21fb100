"""What cannot be told, or does not belong together, is refused by name; what contradicts itself is wrong usage."""

import json
import re
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from sharding.core.errors import SourceError
from tests import pipelines, quantized
from tests.commands import invoke
from tests.conftest import listing
from tests.folders import tensors
from tests.planning.alike.models import build, configure, edit, in_memory, published, rename, shard, words, write
from tests.planning.alike.test_filled import add_head
from tests.quantized import save_fp8

Edit = Callable[[Path], object]
K_PROJ = "model.layers.1.self_attn.k_proj.weight"


def spoil(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Edit:
    return lambda folder: edit(folder, lambda held: held | {name: change(held[name])})


def wrapped(prefix: str, folder: Path) -> None:
    """One tensor stands there twice, with a prefix and without."""
    edit(folder, lambda held: {f"{prefix}{name}": held[name] for name in held} | {K_PROJ: held[K_PROJ] * 2})


def wide(pattern: str) -> Edit:
    return lambda folder: edit(
        folder, lambda held: {n: t.float() if re.search(pattern, n) else t for n, t in held.items()}
    )


def one_layer(folder: Path) -> None:
    edit(folder, lambda held: {name: held[name] for name in held if "layers.1." not in name})
    configure(folder, num_hidden_layers=1)


def without_biases(folder: Path) -> None:
    edit(folder, lambda held: {name: held[name] for name in held if not name.endswith(".bias")})
    configure(folder, attention_bias=False)


def with_lora(folder: Path) -> None:
    name = K_PROJ.replace(".weight", ".lora_A.default.weight")
    edit(folder, lambda held: held | {name: held[K_PROJ]})
    rename(folder, "^", "base_model.model.")


def without(pattern: str) -> Edit:
    return lambda folder: edit(folder, lambda held: {n: held[n] for n in held if not re.search(pattern, n)})


def with_dense(place: str) -> Edit:
    return lambda folder: edit(folder, lambda held: held | {f"{place}.dense.weight": torch.ones(32, 32).bfloat16()})


def tower_alone(folder: Path) -> None:
    place = "vision_model."
    layers = f"{place}encoder.layers."
    edit(folder, lambda held: {n.removeprefix(place): held[n] for n in held if n.startswith(layers)})


def with_prefix(folder: Path) -> None:
    rename(folder, "^", "module.")


def spoiled_and_prefixed(folder: Path) -> None:
    spoil(K_PROJ, lambda held: held[:, :30])(folder)
    with_prefix(folder)


def of_nobody(folder: Path) -> None:
    configure(folder, architectures=["NobodysForCausalLM"], model_type="nobodys")


def with_head(folder: Path) -> None:
    add_head("qwen3_next", folder)


def with_head_of_another_name(folder: Path) -> None:
    rename(rename(add_head("qwen3_next", folder), r"^mtp\.layers\.0", "model.layers.9"), "^mtp", "model.foresight")


REFUSED: dict[str, tuple[str, str, dict[str, Edit], str]] = {
    "another model": ("gpt2", "llama", {}, "another model|different models"),
    "another kind of model": ("vit", "qwen3_moe", {}, "another model|different models"),
    "another size": ("large", "llama", {}, "different models|no rule"),
    "another shape": ("llama", "llama", {"mine": spoil(K_PROJ, lambda held: held[:, :30])}, r"layers\.1\.self_attn\.k_proj"),
    "another shape behind a prefix": ("llama", "llama", {"mine": spoiled_and_prefixed}, "no rule explains"),
    "turned": ("llama", "llama", {"mine": spoil(K_PROJ, lambda held: held.T)}, r"layers\.1\.self_attn\.k_proj"),
    "fewer layers": ("llama", "llama", {"mine": one_layer}, r"layers\.1|num_hidden_layers"),
    "more layers": ("llama", "llama", {"original": one_layer}, "is 2 in the folder mine, and 1 in"),
    "a pipeline": ("llama", "llama", {"original": pipelines.save}, "one component"),
    "a bias that is called like a constant": (
        "gpt2", "gpt2", {"original": lambda it: edit(it, lambda held: held | {"h.1.attn.bias": torch.ones(32)})}, r"attn\.bias",
    ),
    "biases that would be lost": ("llama", "llama", {"original": without_biases}, r"8 biases.*--keep-extra"),
    "a part of another name": (
        "llama", "llama", {"mine": with_dense("classifier"), "original": with_dense("pooler")}, r"pooler\.dense",
    ),
    "layers that fit in two towers": (
        "clip", "clip", {"mine": tower_alone}, "(?s)text_model.*vision_model|vision_model.*text_model",
    ),
    "a lora beside its weights": ("llama", "llama", {"mine": with_lora}, "LoRA"),
    "an expert that is missing": ("qwen3_moe", "qwen3_moe", {"mine": without(r"experts\.2\.up_proj")}, r"up_proj.*expert 2"),
    "gate and up of two dtypes": (
        "qwen3_moe", "qwen3_moe", {"mine": wide("gate_proj"), "original": lambda it: in_memory(build("qwen3_moe"), it)}, "dtypes",
    ),
    "experts of two dtypes": ("qwen3_moe", "qwen3_moe", {"mine": wide(r"experts\.3")}, "one shape and dtype"),
    "two tensors for one, one in a wrapper": ("llama", "llama", {"mine": partial(wrapped, "_orig_mod.")}, "k_proj"),
    "a hole in a tower": ("gemma3", "gemma3", {"mine": without(r"vision_tower\.encoder")}, r"vision_tower\.encoder"),
    "a head of another name": (
        "qwen3_next", "qwen3_next", {"mine": with_head_of_another_name, "original": with_head}, r"mtp .*layers\.9",
    ),
    "two tensors for one": ("llama", "llama", {"mine": partial(wrapped, "module.")}, "k_proj"),
    "quantized": (
        "llama", "llama", {"mine": partial(save_fp8, "qwen3"), "original": partial(quantized.build, "qwen3")}, "quantized",
    ),
    "a class that nobody knows": ("llama", "llama", {"mine": with_prefix, "original": of_nobody}, "[Nn]obodys"),
}  # fmt: skip
"""Which model is to be like which, what is done to both before, and what the message names."""


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_by_name_before_anything_is_written(
    case: str, tmp_path: Path, nothing_stays_on_this_disk: None
) -> None:
    ours, theirs, changes, named = REFUSED[case]
    mine, original = published(build(ours, 1), tmp_path / "mine"), published(build(theirs), tmp_path / "original")
    for place, change in changes.items():
        change(tmp_path / place)
    before = listing(tmp_path)
    with pytest.raises(SourceError) as refusal:
        shard(mine, tmp_path / "out", like=original)
    assert re.search(named, f"{refusal.value.message} {refusal.value.hint}") and refusal.value.hint
    assert not refusal.value.message.startswith("the folder")
    assert listing(tmp_path) == before


def test_an_original_that_is_not_there_is_named(tmp_path: Path) -> None:
    mine = published(build("llama"), tmp_path / "mine")
    with pytest.raises(SourceError, match="nothing-here"):
        shard(mine, tmp_path / "out", like=tmp_path / "nothing-here")


def test_a_quantized_original_gives_an_ordinary_copy_without_scales(tmp_path: Path) -> None:
    original = save_fp8("qwen3", tmp_path / "original")
    plain = configure(original)
    del plain["quantization_config"]
    model = {name: tensor for name, tensor in tensors(original).items() if not name.endswith("_scale_inv")}
    mine = write(tmp_path / "mine", {f"module.{n}": torch.ones_like(t.bfloat16()) for n, t in model.items()})
    (mine / "config.json").write_text(json.dumps(plain))
    report = shard(mine, tmp_path / "out", "10MB", like=original)
    assert tensors(tmp_path / "out").keys() == model.keys() and "are quantized" in words(report)
    assert "quantization_config" not in configure(tmp_path / "out")
    shard(rename(original, "^", "module."), tmp_path / "ordinary", "10MB", like=tmp_path / "out", dequantize=True)
    assert tensors(tmp_path / "ordinary").keys() == model.keys()


CONTRADICTIONS = (
    "--like ./o --text-only", "--like ./o --experts fused", "--like ./o --only model.*", "--like ./o --drop model.*",
    "--like ./o --rename a.=b.", "--like ./o --fill mtp.* --from ./o", "--keep-extra", "--fill mtp.*", "--from ./o",
    "--rename a.", "--experts joined", "--like ./o --like ./p", "--like ./o --engine classic",
)  # fmt: skip


@pytest.mark.parametrize("words", CONTRADICTIONS)
def test_options_that_contradict_one_another_are_wrong_usage(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for place in ("i", "o", "p"):
        published(build("llama"), tmp_path / place)
    before = listing(tmp_path)
    done = invoke("shard", "./i", "./out", *shlex.split(words), "--json")
    assert done.exit_code == 2, done.output
    error = json.loads(done.stdout)["error"]
    assert error["kind"] == "UsageError" and error["message"] and error["hint"]
    assert listing(tmp_path) == before
