"""How a checkpoint was saved shows in its names and shapes, and is said with what to do."""

import json
from pathlib import Path

import numpy as np
import pytest

from sharding import job
from sharding.core.errors import SourceError, UsageError
from sharding.core.options import Options
from tests.conftest import random_tensors, write_checkpoint
from tests.folders import finish, reshard, said
from tests.lora import Case, edited, renamed, save_adapter, save_base


def saved(folder: Path, tensors: dict[str, np.ndarray]) -> Path:
    return write_checkpoint(folder, {"model.safetensors": tensors}, False)


def test_tensors_that_zero_3_has_left_empty_are_named(tmp_path: Path) -> None:
    empty = {"layers.3.weight": np.zeros(0, np.float32), "embed.weight": np.zeros(0, np.float16)}
    told = said(saved(tmp_path / "in", {**random_tensors(), **empty}))["empty-tensors"]
    assert "2 tensors have no numbers" in told and "layers.3.weight" in told
    assert "empty-tensors" not in said(saved(tmp_path / "whole", random_tensors()))


@pytest.mark.parametrize(
    ("prefix", "every", "wrapper"),
    [
        ("_orig_mod.", 1, "torch.compile"),
        ("_orig_mod.", 3, "torch.compile"),
        ("module.", 1, "DistributedDataParallel"),
        ("module.", 3, ""),  # a part of the model may have that name
        ("modules.", 1, ""),
        ("my_orig_mod.", 1, ""),
    ],
)
def test_names_of_wrappers_are_told_from_ordinary_ones(prefix: str, every: int, wrapper: str, tmp_path: Path) -> None:
    names = (f"{'' if n % every else prefix}{name}" for n, name in enumerate(random_tensors()))
    tensors = dict(zip(names, random_tensors().values(), strict=True))
    folder = saved(tmp_path / "in", tensors)
    told = said(folder).get("wrapped-names", "")
    assert (f"names that {wrapper} makes" in told) if wrapper else not told
    reshard(folder, tmp_path / "out")


@pytest.mark.filterwarnings("ignore")
def test_an_adapter_that_was_saved_like_that_is_refused_for_what_it_is(tmp_path: Path) -> None:
    base = save_base(Case(), tmp_path / "base")
    empty = edited(lambda held: {name: tensor[:0, 0] if "v_proj" in name else tensor for name, tensor in held.items()})
    edits = [
        (empty, "no numbers"),
        (renamed(r"^base_model\.model\.", "base_model.model._orig_mod."), "torch.compile"),
        (renamed("^", "module."), "DistributedDataParallel"),
    ]
    for number, (edit, words) in enumerate(edits):
        adapter = save_adapter(Case(adapter=edit), base, tmp_path / str(number))
        with pytest.raises(SourceError, match=words) as refusal:
            finish(job.shard(str(base), str(tmp_path / "out"), Options("30kB", adapter=str(adapter))))
        assert "gather" in refusal.value.hint or "wrapper" in refusal.value.hint


@pytest.mark.filterwarnings("ignore")
def test_a_source_that_is_an_adapter_is_told_with_the_command_that_merges_it(tmp_path: Path) -> None:
    base = save_base(Case(), tmp_path / "base")
    adapter = save_adapter(Case(), base, tmp_path / "lora")
    config = json.loads((adapter / "adapter_config.json").read_text())
    shown_as = {"acme/llama": "acme/llama", "/home/me/llama": "llama", None: "BASE", "a/b; touch x": "'a/b; touch x'"}
    for named, shown in shown_as.items():
        (adapter / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": named}))
        [told] = [one for one in job.inspect(str(adapter)).findings if one.code == "adapter-alone"]
        assert told.hint.endswith(f"shard-my-repo shard {shown} ./merged --adapter {adapter}")
    assert "adapter-alone" in {one.code for one in reshard(adapter, tmp_path / "out").plan.findings}
    with pytest.raises(UsageError, match="is an adapter") as refusal:
        list(job.shard(str(adapter), str(tmp_path / "other"), Options("30kB", base=str(base))))
    assert f"shard {base} ./merged --adapter {adapter}" in refusal.value.hint
    assert "adapter-alone" not in said(base)
