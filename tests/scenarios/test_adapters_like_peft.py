"""A base with an adapter merged into it is, bit for bit, what PEFT makes of both."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from sharding import job
from tests.folders import bits, finish, tensors
from tests.lora import Case, build
from tests.lora_cases import CASES

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")


def like_the_base(case: Case, merged: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """`merged` by the names that its tensors have in the base."""
    theirs, ours = case.prefix
    return {ours + name.removeprefix(theirs): tensor for name, tensor in merged.items()}


def unlike(ours: torch.Tensor, theirs: torch.Tensor) -> str:
    """What differs between two tensors; "" if they are the same."""
    if bits(ours) == bits(theirs):
        return ""
    if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
        return f"{ours.dtype} {tuple(ours.shape)}, not {theirs.dtype} {tuple(theirs.shape)}"
    apart = (ours.float() - theirs.float()).abs()
    return f"{int((ours != theirs).sum())} of {ours.numel()} numbers, by up to {apart.max():.2g}"


def said(folder: Path) -> dict[str, Any]:
    config = json.loads((folder / "config.json").read_text())
    return {key: config.get(key) for key in ("tie_word_embeddings", "vocab_size")}


@pytest.mark.parametrize("name", CASES)
def test_a_merged_model_is_bit_for_bit_what_peft_makes_of_it(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    base, adapter, peft = build(case, tmp_path)
    out = tmp_path / "out"
    report = finish(job.shard(str(base), str(out), job.Options("30kB", adapter=str(adapter), strategy="size")))
    assert report.verification.identical
    ours, theirs = tensors(out), like_the_base(case, tensors(peft))
    assert ours.keys() == theirs.keys()
    assert {each: wrong for each in theirs if (wrong := unlike(ours[each], theirs[each]))} == {}
    assert said(out) == said(peft)
    assert not list(out.glob("adapter_*"))
    _, told = case.loader.from_pretrained(out, dtype="auto", output_loading_info=True)
    assert {kind: keys for kind, keys in told.items() if keys} == {}
