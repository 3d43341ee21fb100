"""Models cut for transformers' pipeline, held to one process; `python -m tests.scenarios.pp_cases` notes all of them.

Each case is a small model of random weights, stored in one way and cut for so many ranks: each rank loads a folder of
its own (`--rank`), or its variant of a whole result. Its logits and tokens are those of one process, bit for bit.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from transformers import AutoConfig, AutoModelForCausalLM, __version__

from bench.harness.sections import RESULTS, replace_section
from sharding import job
from sharding.core.options import Options
from tests import models
from tests.conftest import environment
from tests.folders import finish

_SMALL = {
    "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "vocab_size": 96, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_EXPERTS = {"num_local_experts": 4, "num_experts": 4, "moe_intermediate_size": 16, "num_experts_per_tok": 2}
_PLAIN = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3", "olmo2", "granite", "smollm3")
CLASSES: dict[str, dict[str, Any]] = {kind: {} for kind in _PLAIN} | {"mixtral": _EXPERTS, "qwen3_moe": _EXPERTS}


@dataclass(frozen=True)
class Case:
    """A model of class `kind`, stored in a way, for so many ranks."""

    kind: str
    ranks: int
    layers: int
    tied: bool = False
    stored: str = "safetensors"
    whole: bool = False
    """Whether all ranks load one result, each its variant of it, and not folders of their own."""


def all_cases() -> list[Case]:
    layers = {2: 5, 3: 7, 4: 6}
    cases = [Case(kind, ranks, layers[ranks], tied) for kind in CLASSES for ranks in layers for tied in (False, True)]
    cases += [Case(kind, 2, 5, True, "bin") for kind in CLASSES]
    return cases + [Case(kind, 3, 7, tied, whole=True) for kind in CLASSES for tied in (False, True)]


def save(case: Case, folder: Path, **other: int) -> Path:
    """Save the model of a case in `folder` and return it; `other` are sizes of it that are not as usual."""
    torch.manual_seed(0)
    options = {**_SMALL, **CLASSES[case.kind], "num_hidden_layers": case.layers, "tie_word_embeddings": case.tied}
    options |= other
    config = AutoConfig.for_model(case.kind, **options)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder, max_shard_size="60kB")
    if case.stored == "bin":
        state = model.state_dict()
        for path in folder.glob("model*"):
            path.unlink()
        torch.save(state, folder / "pytorch_model.bin")
    return folder


def cut(case: Case, source: str, folder: Path, **login: str) -> dict[str, Any]:
    """Cut `source` as a case says into `folder`; return what every rank is to load."""

    def shard(out: Path, rank: int | None = None) -> str:
        options = Options("60kB", strategy=f"pp:{case.ranks}", rank=rank)
        out.parent.mkdir(exist_ok=True)
        assert finish(job.shard(source, str(out), options, **login)).verification.identical
        return str(out)

    if case.whole:
        return {"places": [shard(folder)] * case.ranks, "variant": f"rank{{rank}}-of-{case.ranks}"}
    return {"places": [shard(folder / f"rank{rank}", rank) for rank in range(case.ranks)]}


def computed(ranks: int, wanted: Sequence[dict[str, Any]], **env: str) -> list[list[dict[str, Any]]]:
    """Return what every rank computes of every one of `wanted`, in a group of `ranks` (0: one process alone)."""
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "tests.scenarios.pp_worker", out, str(ranks)]
        given: dict[str, Any] = {"input": json.dumps(wanted), "env": {**environment(), **env}, "timeout": 900}
        done = subprocess.run(command, capture_output=True, text=True, **given)
        assert not done.returncode, done.stderr[-3000:]
        numbers = range(len(wanted))
        return [[torch.load(Path(out, f"{number}.{rank}")) for rank in range(ranks or 1)] for number in numbers]


def check(one: dict[str, Any], ranks: Sequence[dict[str, Any]]) -> None:
    for rank in ranks:
        told = rank["told"]
        assert not any(told[key] for key in ("missing_keys", "mismatched_keys", "unexpected_keys")), told
        assert torch.equal(one["logits"], rank["logits"])
        assert torch.equal(one["tokens"], rank["tokens"])


def run(cases: Sequence[Case], folder: Path) -> None:
    """Try `cases`, those of the same number of ranks in one group. Raises AssertionError."""
    sources = [save(case, folder / f"source{number}") for number, case in enumerate(cases)]
    alone = computed(0, [{"places": [str(source)]} for source in sources])
    pairs = enumerate(zip(cases, sources, strict=True))
    wanted = [cut(case, str(source), folder / f"cut{number}") for number, (case, source) in pairs]
    for count in sorted({case.ranks for case in cases}):
        numbers = [number for number, case in enumerate(cases) if case.ranks == count]
        for number, ranks in zip(numbers, computed(count, [wanted[number] for number in numbers]), strict=True):
            try:
                check(alone[number][0], ranks)
            except AssertionError as error:
                raise AssertionError(f"{cases[number]}: {error}") from error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--note", action="store_true", help="put the table into bench/RESULTS.md")
    arguments = parser.parse_args()
    cases = all_cases()
    answers_here = mock.patch("sharding.model_class.architecture.ask_meta_model", models.answer)
    with tempfile.TemporaryDirectory() as folder, answers_here:
        run(cases, Path(folder))
    lines = []
    for kind in CLASSES:
        tried = [case for case in cases if case.kind == kind]
        ranks = ", ".join(sorted({f"{case.layers} on {case.ranks}" for case in tried}))
        lines.append(f"| {kind} | {ranks} | {len(tried)} | bit-equal |")
    table = "\n".join(lines)
    text = f"""Logits and generated tokens of every rank beside those of one process, each rank with its own part: no key missing, none newly initialized.

| class | layers on ranks | cases | logits and tokens |
|---|---|---|---|
{table}

- transformers {__version__}, torch {torch.__version__}, gloo; tied and untied, from safetensors and from `.bin`, folders of their own and variants of one result.
- Command: `python -m tests.scenarios.pp_cases --note`"""
    print(text)
    if arguments.note:
        replace_section(RESULTS, "## Pipelines of transformers", text)


if __name__ == "__main__":
    main()
