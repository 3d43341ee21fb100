"""How far a result may be relied on, from what is stated of it."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sharding import job
from sharding.core.options import Options
from sharding.core.values import Checkpoint, FileEntry, RepoRef
from sharding.recipes.stored import place_of
from sharding.report.schema import Report, parse_report
from sharding.verify.trust import judge, lowered
from tests.conftest import random_tensors, write_checkpoint
from tests.quantized import write


@dataclass(frozen=True)
class Told:
    """What is stated of a result: what `judge` is given."""

    report: Report
    files: tuple[FileEntry, ...]
    copy: Checkpoint
    original: Checkpoint | None


def made(folder: Path, options: Options, **more: Any) -> Told:
    tensors = {name: tensor.astype(np.float32) for name, tensor in random_tensors().items()}
    source = write_checkpoint(folder / "in", {"model.safetensors": tensors}, False)
    *_, _ = job.shard(str(source), str(folder / "out"), options, **more)
    report = parse_report((folder / "out/sharding_report.json").read_bytes())
    files = tuple(FileEntry(shard.file, shard.bytes, sha256=shard.sha256) for shard in report.shards)
    return Told(report, files, job.inspect(str(folder / "out")), job.inspect(str(source)))


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return made(tmp_path_factory.mktemp("trust"), Options("60kB"))


def test_what_fits_is_said_to_fit_and_no_more(told: Told) -> None:
    found = judge(told.report, told.files, told.copy, told.original)
    assert found.level == "fits"
    assert f"The {len(told.files)} files in the repo have the sizes and SHA-256 that its report names." in found.reasons
    assert "names, shapes and dtypes agree" in found.reasons[1]


def test_a_cast_changes_dtypes_and_fits(tmp_path: Path) -> None:
    cast = made(tmp_path, Options("60kB", dtype="bf16"))
    found = judge(cast.report, cast.files, cast.copy, cast.original)
    assert (found.level, "names and shapes agree" in found.reasons[1]) == ("fits", True)
    kept = judge(cast.report, cast.files, cast.original or cast.copy, cast.original)
    assert kept.level == "contradicted"  # its headers are not those of the plan


def test_where_nothing_can_be_compared_it_only_claims(told: Told) -> None:
    found = judge(told.report, told.files, told.copy, None, "The repo a/b does not exist.")
    assert found.level == "claims"
    assert found.reasons[-1] == "Its source cannot be compared: The repo a/b does not exist."


def test_of_a_commit_that_no_branch_leads_to_it_is_neither_green_nor_red(told: Told) -> None:
    for side in ("copy", "original"):
        unmerged = replace(told, **{side: replace(getattr(told, side), unreached=("a/b@" + "1" * 40,))})
        found = judge(unmerged.report, unmerged.files, unmerged.copy, unmerged.original)
        assert found.level == "unreached" and "No known branch or tag of a/b" in found.reasons[0]
    wrong = judge(unmerged.report, (), unmerged.copy, unmerged.original)
    assert wrong.level == "contradicted" and lowered(wrong, ("a/b@1",)) == wrong


def _of_a_repo(told: Told, **source: str) -> Told:
    """A result in the repo me/copy whose report names a repo as its source."""
    report = replace(told.report, source=replace(told.report.source, kind="hub", **source))
    copy = replace(told.copy, source=RepoRef("hub", "me/copy", "1" * 40))
    original = replace(told.original or told.copy, source=RepoRef("hub", source["repo_id"], source["revision"]))
    return replace(told, report=report, copy=copy, original=original)


@pytest.mark.parametrize("commit", ["1" * 40, "2" * 40], ids=["that commit", "an earlier commit"])
def test_a_result_that_names_itself_as_its_source_is_contradicted(told: Told, commit: str) -> None:
    itself = _of_a_repo(told, repo_id="me/copy", revision=commit)
    for original in (itself.original, None):
        found = judge(itself.report, itself.files, itself.copy, original)
        assert found.level == "contradicted" and "names the repo itself as its source" in found.reasons[0]
    other = _of_a_repo(told, repo_id="me/source", revision=commit)
    assert judge(other.report, other.files, other.copy, other.original).level == "fits"


def test_a_commit_of_the_source_that_is_another_than_the_report_says_is_contradicted(told: Told) -> None:
    other = _of_a_repo(told, repo_id="me/source", revision="2" * 40)
    assert other.original
    moved = replace(other.original, source=RepoRef("hub", "me/source", "3" * 40))
    found = judge(other.report, other.files, other.copy, moved)
    assert (found.level, found.reasons[0]) == ("contradicted", "me/source has no commit 222222222222.")


def test_every_commit_that_no_branch_leads_to_is_named_once_and_before_all_else(told: Told) -> None:
    copy = replace(told.copy, unreached=("a/copy@" + "1" * 40, "a/base@" + "2" * 40))
    original = replace(told.original or told.copy, unreached=("a/source@" + "3" * 40, "a/base@" + "2" * 40))
    found = judge(told.report, told.files, copy, original)
    repos = [reason.partition("branch or tag of ")[2].partition(" contains")[0] for reason in found.reasons[:3]]
    assert (found.level, repos) == ("unreached", ["a/copy", "a/base", "a/source"])
    assert found.reasons[3:] == judge(told.report, told.files, told.copy, told.original).reasons
    claimed = judge(told.report, told.files, copy, None, "It is gone.")
    assert claimed.level == "unreached" and "cannot be compared: It is gone." in claimed.reasons[-1]


def test_five_reasons_are_given_and_the_others_counted(tmp_path: Path) -> None:
    told = made(tmp_path, Options("20kB"))
    found = judge(told.report, (), told.copy, None)
    assert len(told.files) > 6
    assert found.reasons[:5] == tuple(f"{file.path} is not in the repo." for file in told.files[:5])
    assert found.reasons[5:] == (f"and {len(told.files) - 5} more",)
    assert len(judge(told.report, told.files[5:], told.copy, None).reasons) == 5


def test_a_tensor_that_the_report_does_not_know_of_does_not_fit(told: Told) -> None:
    extra = told.copy.tensors[0]._replace(name="hidden")
    copy = replace(told.copy, tensors=(*told.copy.tensors, extra))
    assert judge(told.report, told.files, copy, told.original).level == "contradicted"


def test_only_the_classic_engine_may_leave_tensors_out_and_then_it_only_claims(told: Told) -> None:
    assert told.original
    first = told.original.tensors[0]
    nowhere = place_of(first)._replace(end_byte=place_of(first).start_byte)
    empty = first._replace(name="hidden", shape=(0,), recipe=nowhere)
    more = replace(told.original, tensors=(*told.original.tensors, empty))
    missing = "Tensors of the source are missing: hidden."
    assert missing in judge(told.report, told.files, told.copy, more).reasons
    classic = replace(told.report, engine="classic")
    weight_files = tuple(replace(file, tensors=file.tensors + 1) for file in classic.source.weight_files)
    classic = replace(classic, source=replace(classic.source, weight_files=weight_files))
    found = judge(classic, told.files, told.copy, more)
    assert found.level == "claims"
    assert "do not show whether the other 1 were tied" in found.reasons[-1]


def test_computed_weights_fit_where_the_source_is_quantized_as_the_report_says(tmp_path: Path) -> None:
    numbers = torch.zeros(40, 30, dtype=torch.uint8).view(torch.float8_e4m3fn)
    tensors = {"a.weight": numbers, "a.weight_scale_inv": torch.ones(1, 1), "b": torch.ones(3)}
    said = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    source = write(tmp_path / "in", tensors, said)
    *_, _ = job.shard(str(source), str(tmp_path / "out"), Options(dequantize=True))
    report = parse_report((tmp_path / "out/sharding_report.json").read_bytes())
    files = tuple(FileEntry(shard.file, shard.bytes, sha256=shard.sha256) for shard in report.shards)
    copy, original = job.inspect(str(tmp_path / "out")), job.inspect(str(source))
    found = judge(report, files, copy, original)
    assert found.level == "fits"
    assert "the same 2 tensors after dequantizing" in found.reasons[1]
    silent = replace(report, plan=replace(report.plan, dequantized=""))
    assert judge(silent, files, copy, original).level == "contradicted"
    other = replace(report, plan=replace(report.plan, dequantized="mxfp4, one scale for each 32 numbers"))
    assert "not quantized as the report says, but with fp8" in str(judge(other, files, copy, original).reasons)
    plain = replace(original, configs={})
    assert "no config.json says how" in str(judge(report, files, copy, plain).reasons)
