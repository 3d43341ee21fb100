"""Whatever a report says that the repo or its source does not bear out makes a result one that does not fit."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sharding.core.options import Options
from sharding.core.values import Checkpoint
from sharding.recipes.stored import place_of
from sharding.verify.trust import Trust, judge
from tests.verify.test_trust import Told, made

OTHER = "f" * 40
Change = Callable[[Told], Told]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return made(tmp_path_factory.mktemp("kept"), Options("60kB"))


@pytest.fixture(scope="module")
def cast(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return made(tmp_path_factory.mktemp("cast"), Options("60kB", dtype="bf16"))


def judged(told: Told) -> Trust:
    return judge(told.report, told.files, told.copy, told.original, "" if told.original else "It is gone.")


def of_source(**change: Any) -> Change:
    """The report says something else of its source."""
    return lambda told: replace(told, report=replace(told.report, source=replace(told.report.source, **change)))


def of_plan(**change: Any) -> Change:
    return lambda told: replace(told, report=replace(told.report, plan=replace(told.report.plan, **change)))


def each_file(n: int, **change: Any) -> Change:
    def changed(told: Told) -> Told:
        files = list(told.files)
        files[n] = replace(files[n], **change)
        return replace(told, files=tuple(files))

    return changed


def tensor(side: str, n: int, **change: Any) -> Change:
    def changed(told: Told) -> Told:
        checkpoint: Checkpoint = getattr(told, side)
        tensors = list(checkpoint.tensors)
        tensors[n] = tensors[n]._replace(**change)
        return replace(told, **{side: replace(checkpoint, tensors=tuple(tensors))})

    return changed


def elsewhere(side: str, n: int, file: str) -> Change:
    return lambda told: tensor(side, n, recipe=place_of(getattr(told, side).tensors[n])._replace(file=file))(told)


def names_itself(told: Told) -> Told:
    source = replace(told.report.source, kind="hub", repo_id="bob/copy")
    copy = replace(told.copy, source=replace(told.copy.source, kind="hub", repo_id="bob/copy"))
    return replace(told, report=replace(told.report, source=source), copy=copy)


def _without(things: tuple[Any, ...], n: int) -> tuple[Any, ...]:
    return things[1:] if n == 0 else things[:-1]


def without(side: str, n: int) -> Change:
    def changed(told: Told) -> Told:
        checkpoint: Checkpoint = getattr(told, side)
        return replace(told, **{side: replace(checkpoint, tensors=_without(checkpoint.tensors, n))})

    return changed


def of_the_copy(n: int) -> dict[str, tuple[Change, str]]:
    """What the repo may not bear out of its first or last file and tensor, and the reason that is given."""
    return {
        "a file is missing": (lambda told: replace(told, files=_without(told.files, n)), "is not in the repo."),
        "a file has a byte more": (lambda told: each_file(n, bytes=told.files[n].bytes + 1)(told), "report says"),
        "a file has no hash": (each_file(n, sha256=None), "has another SHA-256"),
        "a file has an empty hash": (each_file(n, sha256=""), "has another SHA-256"),
        "a file has another hash": (each_file(n, sha256="0" * 64), "has another SHA-256"),
        "a tensor is missing": (without("copy", n), "disagree about which file holds"),
        "a tensor lies elsewhere": (elsewhere("copy", n, "model.safetensors"), "disagree about which file holds"),
        "a tensor has another name": (tensor("copy", n, name="x"), "disagree about which file holds"),
        "the report has fewer bytes": (of_plan(total_bytes=1), "The tensors in the repo have"),
        "the report names the repo itself": (names_itself, "names the repo itself as its source"),
    }


def of_the_source(n: int) -> dict[str, tuple[Change, str]]:
    return {
        "another commit": (of_source(revision=OTHER), f"has no commit {OTHER[:12]}."),
        "another architecture": (of_source(architecture="GPT2LMHeadModel"), "disagree on architecture."),
        "more parameters": (of_source(total_parameters=1), "disagree on total parameters."),
        "more bytes": (of_source(total_bytes=1), "disagree on total bytes."),
        "more tensors": (of_source(tensors=99), "disagree on tensors."),
        "other dtypes": (of_source(dtypes={"F16": 1}), "disagree on dtypes."),
        "no weight files": (of_source(weight_files=()), "has other weight files at that commit"),
        "a tensor of another name": (tensor("original", n, name="x"), "has tensors that are not in the source"),
        "a tensor of another shape": (tensor("original", n, shape=(7, 7)), "another shape than in the source"),
        "a tensor of another dtype": (tensor("original", n, dtype="I8"), "another dtype than in the source"),
        "fewer tensors": (without("original", n), "has other weight files at that commit"),
    }


@pytest.mark.parametrize("n", [0, -1])
def test_what_repo_or_source_do_not_bear_out_does_not_fit(told: Told, n: int) -> None:
    for has_source in (True, False):
        sound = told if has_source else replace(told, original=None)
        assert judged(sound).level == ("fits" if has_source else "claims")
        lies = {**of_the_copy(n), **(of_the_source(n) if has_source else {})}
        for what, (change, reason) in lies.items():
            found = judged(change(sound))
            assert found.level == "contradicted" and any(reason in said for said in found.reasons), (what, found)


@pytest.mark.parametrize(("dtype", "level"), [("BF16", "fits"), ("F32", "fits"), ("F16", "contradicted")])
def test_a_cast_allows_its_own_dtype_that_of_the_source_and_fp32(cast: Told, dtype: str, level: str) -> None:
    halves = tensor("original", 0, dtype="F64")  # so that what is allowed is not merely kept
    found = judged(tensor("copy", 0, dtype=dtype)(halves(cast)))
    others = [said for said in found.reasons if "another dtype" in said]
    assert bool(others) == (level == "contradicted"), found.reasons


def test_what_was_not_cast_keeps_its_dtypes(told: Told) -> None:
    for dtype in ("BF16", "F16", "F64"):
        found = judged(tensor("copy", 0, dtype=dtype)(told))
        assert found.level == "contradicted" and any("another dtype" in said for said in found.reasons)


def test_the_classic_engine_is_excused_for_what_it_leaves_out_and_for_nothing_else(told: Told, tmp_path: Path) -> None:
    classic = replace(told, report=replace(told.report, engine="classic"))
    assert judged(classic).level == "fits"
    extra = tensor("copy", -1, shape=(7, 7))
    assert judged(extra(classic)).level == "contradicted"
    for change, _ in of_the_copy(-1).values():
        assert judged(change(classic)).level == "contradicted"
