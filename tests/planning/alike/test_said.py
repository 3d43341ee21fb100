"""What is wrong with a checkpoint is said in words, with the command that mends it, and what became of it is explained."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sharding import job
from sharding.core.options import Options
from sharding.drawing.map_svg import draw_map
from sharding.drawing.model_map import map_of_plan
from tests.commands import invoke
from tests.planning.alike.models import (
    MODELS,
    Tensors,
    build,
    configure,
    edit,
    in_memory,
    load,
    published,
    rename,
    shapes,
    shard,
)
from tests.planning.alike.test_filled import add_head


def turned(folder: Path) -> Path:
    return edit(folder, lambda held: {n: t.transpose(1, 2) if "experts" in n else t for n, t in held.items()})


def joined(folder: Path) -> Path:
    def join(held: Tensors) -> Tensors:
        ups = [name for name in held if name.endswith("up_proj.weight")]
        both = {up: (held.pop(up.replace("up_proj", "gate_proj")), held.pop(up)) for up in ups}
        return held | {up.replace("up_proj", "gate_up_proj"): torch.cat(pair) for up, pair in both.items()}

    return edit(folder, join)


def tied(folder: Path) -> None:
    configure(edit(folder, lambda held: {n: held[n] for n in held if "lm_head" not in n}), tie_word_embeddings=True)


WRONG: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "fused": ("qwen3_moe", lambda folder: in_memory(build("qwen3_moe", 1), folder), "are in one tensor"),
    "a prefix too many": ("llama", lambda folder: rename(folder, "^", "_orig_mod."), "_orig_mod."),
    "a prefix too few": (
        "gemma3",
        lambda folder: rename(folder, "^language_model.", ""),
        "have nothing in front. The original has 'language_model.' there",
    ),
    "one too many": (
        "llama",
        lambda folder: edit(folder, lambda held: held | {"v": held["lm_head.weight"]}),
        "Not in the original: 1 tensor",
    ),
    "turned": ("qwen3_vl_moe", turned, "the experts of 2 layers have inputs and outputs the other way round"),
    "joined": ("llama", joined, "gate and up are in one tensor in 4 weights"),
    "names in memory": ("vit", lambda folder: in_memory(build("vit", 1), folder), "other names here"),
    "a tied head": ("llama", tied, "lm_head.weight is missing, because it is the embeddings here"),
    "no head": ("deepseek_v3", lambda folder: None, "model.layers.2"),
}


@pytest.mark.parametrize("case", WRONG)
def test_diff_says_why_a_model_does_not_load_and_prints_the_command_that_mends_it(case: str, tmp_path: Path) -> None:
    name, spoil, says = WRONG[case]
    original, mine = published(build(name), tmp_path / "original"), published(build(name, 1), tmp_path / "mine")
    if case == "no head":
        add_head(name, original)
    spoil(mine)
    done = invoke("diff", mine, original)
    told = " ".join(done.output.split())
    assert done.exit_code == 1 and says in told, done.output
    command = re.search(r"shard-my-repo (shard \S+ \S+ --like \S+)", told)
    assert command, done.output
    _, mine_said, _, _, original_said = shlex.split(command[1])
    mended = invoke("shard", mine_said, tmp_path / "out", "--like", original_said)
    assert mended.exit_code == 0, mended.output
    assert shapes(tmp_path / "out") == shapes(original)
    assert name == "vit" or "missing_keys" not in load(tmp_path / "out", MODELS[name][0]).told
    again = invoke("diff", tmp_path / "out", original)
    assert "--like" not in again.output, again.output


def test_diff_finds_nothing_wrong_with_another_training_of_the_same_model(tmp_path: Path) -> None:
    original, mine = (published(build("qwen3_moe", seed), tmp_path / f"{seed}") for seed in (0, 1))
    done = invoke("diff", mine, original)
    assert "model.norm.weight" in done.output and "--like" not in done.output, done.output


def test_diff_names_a_hole_and_prints_no_command_that_would_be_refused(tmp_path: Path) -> None:
    original, mine = published(build("llama"), tmp_path / "original"), published(build("llama", 1), tmp_path / "mine")
    hole = "model.layers.1.self_attn.k_proj.weight"
    edit(mine, lambda state: {name: state[name] for name in state if name != hole})
    done = invoke("diff", mine, original)
    assert "k_proj" in done.output and "--like" not in done.output, done.output


def test_a_plan_explains_where_each_tensor_comes_from(tmp_path: Path) -> None:
    original = add_head("qwen3_next", published(build("qwen3_next"), tmp_path / "original"))
    mine = in_memory(build("qwen3_next", 1), tmp_path / "mine")
    done = invoke("plan", mine, "--like", original, "--explain", "*", "--json")
    assert done.exit_code == 0, done.output
    recipes = json.loads(done.stdout)["recipes"]
    assert recipes.keys() == shapes(original).keys()
    filled = {name for name in recipes if name.startswith("mtp.")}
    assert all(("original" in recipes[name]) is (name in filled) for name in recipes)
    drawn = map_of_plan(*job.plan(str(mine), Options(like=str(original))))
    for is_of_original in (lambda cell: cell.title.endswith(", is filled"), lambda cell: cell.today is None):
        assert {cell.tensor.name for cell in drawn.cells if cell.tensor and is_of_original(cell)} == filled
    assert f"filled: {len(filled)} of {len(recipes)} tensors" in draw_map(drawn, "A copy")


def test_the_report_lists_what_became_of_what(tmp_path: Path) -> None:
    original = add_head("deepseek_v3", published(build("deepseek_v3"), tmp_path / "original"))
    mine = in_memory(build("deepseek_v3", 1), tmp_path / "mine")
    edit(mine, lambda state: {f"module.{name}": state[name] for name in state} | {"value.weight": torch.ones(1, 32)})
    configure(mine, rms_norm_eps=2e-5)
    shard(mine, tmp_path / "out", like=original)
    [change] = json.loads((tmp_path / "out/sharding_report.json").read_text())["plan"]["made"]
    head = sum(name.startswith("model.layers.2.") for name in shapes(original))
    listed = {
        "prefix": "module. becomes none (",
        "separated": "the experts of 1 layer",
        "settings": "rms_norm_eps 2e-05",
    }
    listed |= {"filled": f"model.layers.2 ({head} tensors)", "dropped": "1 tensor, value.weight"}
    assert change["details"].keys() == listed.keys() and change["by"]["role"] == "like"
    assert all(text in change["details"][what] for what, text in listed.items())
