"""The work of planning a merge grows in step with its adapter; names of modules lead to those that are stored."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from bench.harness import hostile_adapters
from sharding.planning.adapters.merging import ModuleNames

LIMITED = {"ranks by expressions"}
"""Every expression is matched with every module, in a process with limits."""
HOUSE = str(Path(hostile_adapters.__file__).parents[2] / "sharding")


def work(act: Callable[[], object]) -> int:
    """How many lines of this package run, and how many functions of Python are called, by `act`."""
    done = 0

    def count(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal done
        done += 1
        return count if frame.f_code.co_filename.startswith(HOUSE) else None

    before = sys.gettrace()
    sys.settrace(count)
    try:
        act()
    finally:
        sys.settrace(before)
    return done


@pytest.mark.parametrize("kind", [kind for kind in hostile_adapters.KINDS if kind not in LIMITED])
def test_the_work_of_a_merge_grows_in_step_with_its_adapter(kind: str) -> None:
    small, large = (hostile_adapters.build(kind, number) for number in (100, 400))
    first, last = (work(partial(hostile_adapters.plan_merge, held)) for held in (small, large))
    assert last < 4.5 * first


# --- Names ---------------------------------------------------------------------------------------------------

LLAMA = "model.layers.0.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("in_memory", "stored"),
    [
        (LLAMA, LLAMA),
        ("transformer.h.0.attn.c_attn.weight", "h.0.attn.c_attn.weight"),
        ("encoder.layer.0.attention.self.query.weight", "bert.encoder.layer.0.attention.self.query.weight"),
        ("model.language_model.layers.0.mlp.up_proj.weight", "language_model.model.layers.0.mlp.up_proj.weight"),
        ("model.language_model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
        ("model.visual.blocks.0.attn.qkv.weight", "visual.blocks.0.attn.qkv.weight"),
        ("model.vision_tower.layers.0.q_proj.weight", "vision_tower.layers.0.q_proj.weight"),
        ("lm_head.weight", "language_model.lm_head.weight"),
        ("model.layers.0.mlp.experts.0.w1.weight", "model.layers.0.block_sparse_moe.experts.0.w1.weight"),
        ("model.layers.0.block_sparse_moe.gate.weight", "model.layers.0.mlp.gate.weight"),
    ],
)
def test_a_name_in_memory_leads_to_the_stored_one(in_memory: str, stored: str) -> None:
    names = ModuleNames([stored, "other.weight"])
    assert names.find(in_memory) == stored
    assert names.find(in_memory.replace("0", "1") + ".no") is None


def test_the_name_itself_comes_first_and_what_transformers_knows_of_it_before_any_guess() -> None:
    names = ModuleNames(["h.0.weight", "transformer.h.0.weight", "transformer.transformer.h.0.weight"])
    assert names.find("transformer.h.0.weight") == "transformer.h.0.weight"
    assert names.find("h.0.weight") == "h.0.weight"
    known = {"model.a.weight": "b.weight"}
    assert ModuleNames(["a.weight", "b.weight"], known).find("model.a.weight") == "b.weight"
    assert ModuleNames(["a.weight"], known).find("model.a.weight") == "a.weight"
    assert ModuleNames(["bert.a.weight", "vit.a.weight"]).find("a.weight") is None, "it may be either"


def test_a_prefix_that_was_seen_is_put_before_other_names() -> None:
    names = ModuleNames(["h.0.attn.weight", "h.1.attn.weight"])
    assert names.in_memory("h.1.attn") == "h.1.attn"
    names.find("transformer.h.0.attn.weight")
    assert names.in_memory("h.1.attn") == "transformer.h.1.attn"
