"""Whole parts that only the original has are taken from it, byte by byte; holes are named and refused."""

import re
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest
import torch

from sharding.core.errors import ShardingError
from tests import quantized
from tests.folders import tensors
from tests.lora import MODEL
from tests.planning.alike.models import (
    FORMS,
    MODELS,
    Tensors,
    assert_loads,
    build,
    configure,
    edit,
    in_memory,
    published,
    rename,
    shapes,
    shard,
    unlike,
    words,
)

HEADS = {"deepseek_v3": "model.layers.2", "glm4_moe": "model.layers.2", "qwen3_next": "mtp", "qwen3_5": "mtp"}
"""By model: where its head that foresees more tokens is."""
EACH = [name if name != "qwen3_5" else pytest.param(name, marks=pytest.mark.thorough) for name in HEADS]


def add_head(name: str, folder: Path, **given: object) -> Path:
    """Add the head that is published beside a model and that transformers does not build."""
    place, generator = HEADS[name], torch.Generator().manual_seed(7)
    inner = f"{place}.layers.0" if place == "mtp" else place

    def add(state: Tensors) -> Tensors:
        layer = max(re.findall(r"\blayers\.\d+", " ".join(key for key in state if "visual" not in key)))
        body = {key: tensor for key, tensor in state.items() if f"{layer}." in key and "visual" not in key}
        head = {re.sub(rf".*{layer}", inner, key): tensor for key, tensor in body.items()}
        ends = ("fc.weight", "norm.weight") if place == "mtp" else ("eh_proj.weight", "enorm.weight", "hnorm.weight")
        head |= {
            f"{place}.{end}": torch.zeros(32, 64) if "_proj" in end or "fc" in end else torch.zeros(32) for end in ends
        }
        if place != "mtp":
            words_of_it = next(tensor for key, tensor in state.items() if key.endswith("embed_tokens.weight"))
            head |= {f"{place}.embed_tokens.weight": words_of_it, f"{place}.shared_head.head.weight": words_of_it}
        return state | {
            key: torch.randn(tensor.shape, generator=generator).to(torch.bfloat16) for key, tensor in head.items()
        }

    if place != "mtp":
        configure(folder, num_nextn_predict_layers=1)
    return edit(folder, add)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", EACH)
def test_a_head_that_foresees_more_tokens_comes_from_the_original_byte_by_byte(
    name: str, form: str, tmp_path: Path
) -> None:
    original = add_head(name, published(build(name), tmp_path / "original"))
    mine = FORMS[form](build(name, 1), tmp_path / "mine")
    report = shard(mine, tmp_path / "out", like=original)
    before = tensors(original)
    head = {key: tensor for key, tensor in before.items() if key.startswith(f"{HEADS[name]}.")}
    body = tensors(published(build(name, 1), tmp_path / "wanted"))
    assert len(head) > 10 and unlike(tensors(tmp_path / "out"), body | head) == {}
    assert_loads(tmp_path / "out", original, build(name, 1), MODELS[name][0])
    assert str(len(head)) in words(report) and HEADS[name] in words(report)
    assert report.plan.made[0].changed == len(head)


def test_a_head_that_is_filled_is_counted_and_has_the_words_of_the_original(tmp_path: Path) -> None:
    original = add_head("deepseek_v3", published(build("deepseek_v3"), tmp_path / "original"))
    model = deepcopy(build("deepseek_v3", 1))
    model.resize_token_embeddings(100, mean_resizing=False)
    mine = published(model, tmp_path / "mine")
    configure(mine, num_nextn_predict_layers=0)
    report = shard(mine, tmp_path / "out", like=original)
    assert configure(tmp_path / "out")["num_nextn_predict_layers"] == 1 and "nextn" not in words(report)
    by_hand = shard(mine, tmp_path / "by hand", fill="model.layers.2.*", fill_from=original)
    for told in map(words, (report, by_hand)):
        assert re.search(r"model\.layers\.2\.embed_tokens\.weight.* 96 rows.* 100 words", told)


def test_a_head_that_is_left_out_is_not_counted(tmp_path: Path) -> None:
    original, mine = (published(build("deepseek_v3", seed), tmp_path / f"{seed}") for seed in (0, 1))
    configure(original, num_nextn_predict_layers=0)
    shard(add_head("deepseek_v3", mine), tmp_path / "out", like=original)
    assert configure(tmp_path / "out")["num_nextn_predict_layers"] == 0


@pytest.mark.parametrize(("name", "part"), [("gemma3", "vision_tower."), ("llava_next", "image_newline")])
def test_a_tower_that_was_left_out_comes_from_the_original(name: str, part: str, tmp_path: Path) -> None:
    original, whole = (published(build(name, seed), tmp_path / f"{seed}") for seed in (0, 1))
    tower = {key: tensor for key, tensor in tensors(original).items() if key.startswith(part)}
    wanted = tensors(whole) | tower
    mine = edit(whole, lambda state: {key: state[key] for key in state.keys() - tower.keys()})
    if name == "gemma3":  # pickled, and not in the order of a file
        turned = {key: held.mT.contiguous().mT if held.ndim > 1 else held for key, held in tensors(original).items()}
        (original / MODEL).unlink()
        torch.save(turned, original / "pytorch_model.bin")
    shard(mine, tmp_path / "out", like=original)
    assert tower and unlike(tensors(tmp_path / "out"), wanted) == {}


def test_nothing_is_filled_where_nothing_is_missing(tmp_path: Path) -> None:
    """Mine wins wherever it has a tensor."""
    original, mine = (add_head("deepseek_v3", published(build("deepseek_v3", n), tmp_path / f"{n}")) for n in (0, 1))
    mine = edit(mine, lambda state: {key: tensor * 2 for key, tensor in state.items()})
    report = shard(mine, tmp_path / "out", like=original)
    assert unlike(tensors(tmp_path / "out"), tensors(mine)) == {} and report.plan.made[0].changed == 0


def test_a_head_of_a_quantized_original_is_filled_as_ordinary_weights(tmp_path: Path) -> None:
    original = quantized.save_fp8("deepseek_v3", tmp_path / "original")
    edit(original, lambda held: held | {n.replace("layers.1.", "layers.2."): held[n] for n in held if "layers.1." in n})
    configure(original, num_nextn_predict_layers=1)
    shard(original, tmp_path / "ordinary", "10MB", dequantize=True)
    head = {name: held for name, held in tensors(tmp_path / "ordinary").items() if "layers.2." in name}
    quantized.build("deepseek_v3", tmp_path / "mine")
    mine = edit(tmp_path / "mine", lambda held: {name: tensor * 2 for name, tensor in held.items()})
    wanted = tensors(mine) | head
    shard(rename(mine, "^", "module."), tmp_path / "out", "10MB", like=original)
    assert head and unlike(tensors(tmp_path / "out"), wanted) == {}
    assert "quantization_config" not in configure(tmp_path / "out")


K_PROJ, UP = "model.layers.1.self_attn.k_proj.weight", "model.layers.1.mlp.experts.3.up_proj.weight"
HOLES: dict[str, tuple[str, Callable[[str], object], str]] = {
    "a tensor of a layer": ("llama", lambda key: key == K_PROJ, r"layers\.1\.self_attn\.k_proj"),
    "a layer": ("llama", lambda key: "layers.1." in key, r"layers\.1\b"),
    "an expert's half": ("qwen3_moe", lambda key: key == UP, r"layers\.1\.mlp\.experts"),
    "an expert": ("qwen3_moe", lambda key: "layers.1.mlp.experts.3." in key, r"layers\.1\.mlp\.experts"),
    "a part of the tower": ("gemma3", lambda key: "layers.0.self_attn.q_proj.bias" in key, r"q_proj\.bias"),
    "the embedding": ("llama", lambda key: "embed_tokens" in key, "embed_tokens"),
    "a head of its own": ("llama", lambda key: "lm_head" in key, "lm_head"),
    "a part of the head": ("deepseek_v3", lambda key: key == "model.layers.2.enorm.weight", r"layers\.2\.enorm"),
}
"""What is missing of which model, and how it is named."""


@pytest.mark.parametrize(
    ("hole", "form"), [(hole, form) for hole in HOLES for form in FORMS if "expert" in hole or form == "published"]
)
def test_a_hole_is_named_and_refused_and_leaves_nothing(hole: str, form: str, tmp_path: Path) -> None:
    name, is_missing, named = HOLES[hole]
    original, mine = published(build(name), tmp_path / "original"), published(build(name, 1), tmp_path / "mine")
    if hole == "a part of the head":
        original, mine = add_head(name, original), add_head(name, mine)
    edit(mine, lambda state: {key: tensor for key, tensor in state.items() if not is_missing(key)})
    if form == "in memory":  # what is separate in mine is to be fused
        in_memory(build(name), original)
    assert shapes(mine) != shapes(original)
    with pytest.raises(ShardingError, match=named):
        shard(mine, tmp_path / "out", like=original)
    assert not (tmp_path / "out").exists()
