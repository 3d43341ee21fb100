"""How far a result may be relied on: whatever its report says that repo or source do not bear out does not fit."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sharding import job
from sharding.core.made import without_effect
from sharding.core.options import Options
from sharding.core.origin import Place
from sharding.core.values import Content, FileEntry
from sharding.recipes.stored import place_of
from sharding.report.schema import Report, parse_report
from sharding.verify.trust import Trust, judge, lowered
from tests.conftest import random_tensors, write_checkpoint
from tests.lora import Case, save_adapter, save_base
from tests.quantized import write


@dataclass(frozen=True)
class Told:
    """What is stated of a result: what `judge` is given."""

    report: Report
    files: tuple[FileEntry, ...]
    copy: Content
    original: Content | None

    @property
    def judged(self) -> Trust:
        return judge(self.report, self.files, self.copy, self.original, "" if self.original else "It is gone.")


Lie = Callable[[Told], Told]


def told_of(source: Path, out: Path, options: Options) -> Told:
    *_, _ = job.shard(str(source), str(out), options)
    report = parse_report((out / "sharding_report.json").read_bytes())
    files = tuple(FileEntry(shard.file, shard.bytes, sha256=shard.sha256) for shard in report.shards)
    return Told(report, files, job.inspect(str(out)), job.inspect(str(source), adapter=options.adapter))


def made(folder: Path, dtype: str) -> Told:
    tensors = {name: tensor.astype(np.float32) for name, tensor in random_tensors().items()}
    source = write_checkpoint(folder / "in", {"model.safetensors": tensors}, False)
    return told_of(source, folder / "out", Options("20kB", dtype=dtype))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return made(tmp_path_factory.mktemp("kept"), "keep")


@pytest.fixture(scope="module")
def cast(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return made(tmp_path_factory.mktemp("cast"), "bf16")


def of_source(**change: Any) -> Lie:
    """The report says something else of its source."""
    return lambda told: replace(told, report=replace(told.report, source=replace(told.report.source, **change)))


def of_plan(**change: Any) -> Lie:
    return lambda told: replace(told, report=replace(told.report, plan=replace(told.report.plan, **change)))


def _changed(things: tuple[Any, ...], n: int, change: Callable[[Any], Any]) -> tuple[Any, ...]:
    return tuple(change(one) if at == n % len(things) else one for at, one in enumerate(things))


def file(n: int, change: Callable[[FileEntry], FileEntry]) -> Lie:
    return lambda told: replace(told, files=_changed(told.files, n, change))


def _with_tensors(told: Told, side: str, change: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> Told:
    checkpoint: Content = getattr(told, side)
    return replace(told, **{side: replace(checkpoint, tensors=change(checkpoint.tensors))})


def tensor(side: str, n: int, **change: Any) -> Lie:
    return lambda told: _with_tensors(told, side, lambda held: _changed(held, n, lambda one: one._replace(**change)))


def elsewhere(told: Told, n: int) -> Told:
    place = place_of(told.copy.tensors[n])._replace(file="model.safetensors")
    return tensor("copy", n, recipe=place)(told)


def one_more(told: Told) -> Told:
    return _with_tensors(told, "copy", lambda held: (*held, held[0]._replace(name="hidden")))


def _without(things: tuple[Any, ...], n: int) -> tuple[Any, ...]:
    return things[1:] if n == 0 else things[:-1]


def of_the_repo(told: Told, repo_id: str) -> Told:
    """A result in the repo bob/copy, whose report names `repo_id` as its source."""
    copy = replace(told.copy, source=replace(told.copy.source, store="hub", repo_id="bob/copy"))
    return replace(of_source(store="hub", repo_id=repo_id)(told), copy=copy)


def of_the_copy(n: int) -> dict[str, tuple[Lie, str]]:
    """What the repo may not bear out of its first or last file and tensor, and the reason that is given."""
    other_files = "disagree about which file holds"
    return {
        "a file is missing": (lambda told: replace(told, files=_without(told.files, n)), "is not in the repo."),
        "a file has a byte more": (file(n, lambda one: replace(one, bytes=one.bytes + 1)), "report says"),
        "a file has no hash": (file(n, lambda one: replace(one, sha256=None)), "has another SHA-256"),
        "a file has an empty hash": (file(n, lambda one: replace(one, sha256="")), "has another SHA-256"),
        "a file has another hash": (file(n, lambda one: replace(one, sha256="0" * 64)), "has another SHA-256"),
        "a tensor is missing": (lambda told: _with_tensors(told, "copy", lambda held: _without(held, n)), other_files),
        "a tensor more": (one_more, other_files),
        "a tensor lies elsewhere": (lambda told: elsewhere(told, n), other_files),
        "a tensor has another name": (tensor("copy", n, name="x"), other_files),
        "the report has fewer bytes": (of_plan(total_bytes=1), "The tensors in the repo have"),
        "its source is itself": (lambda told: of_the_repo(told, "bob/copy"), "names the repo itself as its source"),
    }


def of_the_source(n: int) -> dict[str, tuple[Lie, str]]:
    other_files = "has other weight files at that commit"
    return {
        "another commit": (of_source(revision="f" * 40), f"has no commit {'f' * 12}."),
        "another architecture": (of_source(architecture="GPT2LMHeadModel"), "disagree on architecture."),
        "more parameters": (of_source(total_parameters=1), "disagree on total parameters."),
        "more bytes": (of_source(total_bytes=1), "disagree on total bytes."),
        "more tensors": (of_source(tensors=99), "disagree on tensors."),
        "other dtypes": (of_source(dtypes={"F16": 1}), "disagree on dtypes."),
        "no weight files": (of_source(weight_files=()), other_files),
        "a tensor of another name": (tensor("original", n, name="x"), "has tensors that are not in the source"),
        "a tensor of another shape": (tensor("original", n, shape=(7, 7)), "another shape than in the source"),
        "a tensor of another dtype": (tensor("original", n, dtype="I8"), "another dtype than in the source"),
        "fewer tensors": (lambda told: _with_tensors(told, "original", lambda held: _without(held, n)), other_files),
    }


def test_what_fits_is_said_to_fit_and_no_more(told: Told) -> None:
    found = told.judged
    assert found.level == of_the_repo(told, "bob/source").judged.level == "fits"
    assert f"The {len(told.files)} files in the repo have the sizes and SHA-256 that its report names." in found.reasons
    assert "names, shapes and dtypes agree" in found.reasons[1]


@pytest.mark.parametrize("n", [0, -1])
def test_what_repo_or_source_do_not_bear_out_does_not_fit(told: Told, n: int) -> None:
    for has_source in (True, False):
        sound = told if has_source else replace(told, original=None)
        assert sound.judged.level == ("fits" if has_source else "claims")
        assert has_source or sound.judged.reasons[-1] == "Its source cannot be compared: It is gone."
        lies = {**of_the_copy(n), **(of_the_source(n) if has_source else {})}
        for what, (change, reason) in lies.items():
            found = change(sound).judged
            assert found.level == "contradicted" and any(reason in said for said in found.reasons), (what, found)


def test_a_cast_allows_its_own_dtype_that_of_the_source_and_fp32(told: Told, cast: Told) -> None:
    assert cast.judged.level == "fits" and "names and shapes agree" in cast.judged.reasons[1]
    of_others = replace(cast, copy=cast.original or cast.copy)
    assert of_others.judged.level == "contradicted"  # its headers are not those of the plan
    halves = tensor("original", 0, dtype="F64")  # so that what is allowed is not merely kept
    for result, dtypes in ((halves(cast), {"BF16": False, "F32": False, "F16": True}), (told, {"BF16": True})):
        for dtype, is_other in dtypes.items():
            found = tensor("copy", 0, dtype=dtype)(result).judged
            assert any("another dtype" in said for said in found.reasons) is is_other, found.reasons
            assert not is_other or found.level == "contradicted"


def test_a_cast_may_widen_what_the_model_class_keeps_and_says_of_how_many_tensors(cast: Told) -> None:
    """As T5 in fp16, of which a cast to fp16 makes some tensors fp32."""
    narrow = _with_tensors(cast, "original", lambda held: tuple(one._replace(dtype="BF16") for one in held))
    wide = tensor("copy", 0, dtype="F32")(narrow)
    for changed, is_other in ((1, False), (2, True)):
        found = of_plan(made=(replace(cast.report.plan.made[0], changed=changed),))(wide).judged
        assert any("describes another copy" in said for said in found.reasons) is is_other, found.reasons


def test_of_commits_that_no_branch_leads_to_each_is_named_once_and_before_all_else(told: Told) -> None:
    """That is neither green nor red."""
    assert told.original
    copy = replace(told.copy, unreached=("a/copy@" + "1" * 40, "a/base@" + "2" * 40))
    original = replace(told.original, unreached=("a/source@" + "3" * 40, "a/base@" + "2" * 40))
    for changes, wanted in (
        ({"copy": copy, "original": original}, ["a/copy", "a/base", "a/source"]),
        ({"copy": copy}, ["a/copy", "a/base"]),
        ({"original": original}, ["a/source", "a/base"]),
    ):
        found = replace(told, **changes).judged
        repos = [
            reason.partition("No known branch or tag of ")[2].partition(" contains")[0] for reason in found.reasons
        ]
        assert (found.level, repos[: len(wanted)]) == ("unreached", wanted)
        assert found.reasons[len(wanted) :] == told.judged.reasons
    claimed = replace(told, copy=copy, original=None).judged
    assert claimed.level == "unreached" and "cannot be compared: It is gone." in claimed.reasons[-1]
    wrong = replace(told, copy=copy, files=()).judged
    assert wrong.level == "contradicted" and lowered(wrong, ("a/b@1",)) == wrong


def test_five_reasons_are_given_and_the_others_counted(told: Told) -> None:
    found, count = replace(told, files=(), original=None).judged, len(told.files)
    assert count > 6
    assert found.reasons[:5] == tuple(f"{file.path} is not in the repo." for file in told.files[:5])
    assert found.reasons[5:] == (f"and {count - 5} more",)
    assert len(replace(told, files=told.files[5:], original=None).judged.reasons) == 5


def test_only_the_classic_engine_may_leave_tensors_out_and_then_it_only_claims(told: Told) -> None:
    first = told.original.tensors[0] if told.original else told.copy.tensors[0]
    empty = first._replace(
        name="hidden", shape=(0,), recipe=place_of(first)._replace(end_byte=place_of(first).start_byte)
    )
    more = _with_tensors(told, "original", lambda held: (*held, empty))
    assert "Tensors of the source are missing: hidden." in more.judged.reasons
    classic = replace(told.report, engine="classic")
    weight_files = tuple(replace(file, tensors=file.tensors + 1) for file in classic.source.weight_files)
    named = replace(classic, source=replace(classic.source, weight_files=weight_files))
    found = replace(more, report=named).judged
    assert found.level == "claims" and "do not show whether the other 1 were tied" in found.reasons[-1]
    without_more = replace(told, report=classic)
    assert without_more.judged.level == "fits", "and it is excused for nothing else"
    for change in (tensor("copy", -1, shape=(7, 7)), *(change for change, _ in of_the_copy(-1).values())):
        assert change(without_more).judged.level == "contradicted"


def test_computed_weights_fit_where_the_source_is_quantized_as_the_report_says(tmp_path: Path) -> None:
    numbers = torch.zeros(40, 30, dtype=torch.uint8).view(torch.float8_e4m3fn)
    tensors = {"a.weight": numbers, "a.weight_scale_inv": torch.ones(1, 1), "b": torch.ones(3)}
    source = write(tmp_path / "in", tensors, {"quant_method": "fp8", "weight_block_size": [128, 128]})
    told = told_of(source, tmp_path / "out", Options(dequantize=True))
    assert told.judged.level == "fits"
    assert "2 tensors, dequantized to bf16 (fp8, one scale for each 128 x 128): names" in told.judged.reasons[1]
    assert all(lie(told).judged.level == "contradicted" for lie in lies_about_what_was_done(told))
    assert told.original
    plain = replace(told, original=replace(told.original, configs={}))
    assert plain.judged.level == "contradicted"


def lies_about_what_was_done(told: Told) -> list[Lie]:
    """Each fact is another one, or nothing was done, or more, or another option was asked for."""
    made, asked = told.report.plan.made, ({}, {"dtype": "fp16"}, {"dequantize": True, "dtype": "fp16"})
    lies = [{"made": other} for other in ((), made[1:], (*made, made[-1]), (without_effect(made[0]), *made[1:]))]
    for at, change in enumerate(made):
        for one in fields(change):
            match getattr(change, one.name):
                case bool(value):
                    others: list[Any] = [not value]
                case int(value):
                    others = [value + 1, value - 1]
                case str(value):
                    others = [f"{value}."] if one.name in ("kind", "relation", "evidence") else []
                case dict():
                    others = []  # words of its own
                case _:
                    others = [Place("hub", "eve/lora", "0" * 40, role="adapter")]
            forged = [replace(change, **{one.name: other}) for other in others]
            lies += [{"made": (*made[:at], other, *made[at + 1 :])} for other in forged]
    lies += [{"asked": other} for other in asked if other != told.report.plan.asked]
    return [of_plan(**lie) for lie in lies]


def test_what_was_done_in_a_cast_is_what_its_headers_show_in_the_words_of_this_version(told: Told, cast: Told) -> None:
    assert all(lie(cast).judged.level == "contradicted" for lie in lies_about_what_was_done(cast))
    (change,) = cast.report.plan.made
    others = dict.fromkeys(("done", "called", "how", "then", "caveat"), "another version's")
    assert of_plan(made=(replace(change, **others),))(cast).judged == cast.judged and cast.judged.made == (change,)
    for lie in (of_plan(made=(change,)), of_plan(asked={"dequantize": True})):
        assert lie(told).judged.level == "contradicted", "nothing was"
    # A class may keep one in fp32, and then one fewer changes.
    fewer = of_plan(made=(replace(change, changed=change.changed - 1),))
    assert fewer(tensor("copy", 0, dtype="F32")(cast)).judged.level == "fits"


@pytest.mark.filterwarnings("ignore")
def test_what_a_merge_changed_may_be_less_than_its_headers_show_and_never_something_else(tmp_path: Path) -> None:
    base = save_base(Case(), tmp_path / "base")
    adapter = save_adapter(Case(), base, tmp_path / "lora")
    told = told_of(base, tmp_path / "out", Options(adapter=str(adapter), dtype="fp16"))
    assert told.judged.level == "fits" and ", with the adapter in lora merged, cast to fp16" in told.judged.reasons[1]
    merge, cast = told.report.plan.made
    true = [of_plan(made=(one, cast)) for one in (replace(merge, changed=merge.changed - 1), without_effect(merge))]
    assert all(one(told).judged.level == "fits" for one in true)
    said = {one(told).report.plan.made for one in true}
    lies = [lie(told) for lie in lies_about_what_was_done(told)]
    assert all(lie.judged.level == "contradicted" for lie in lies if lie.report.plan.made not in said)
    assert told.original
    alone = replace(told, original=replace(told.original, others=()))
    assert alone.judged.level == "contradicted", "no adapter was merged"
