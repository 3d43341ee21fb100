"""The documents beside a result: what its report and its digests say, in which order, and what contradicts itself."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sharding import job
from sharding.core.errors import SourceError
from sharding.core.hints import PipelineCut
from sharding.core.limits import MAX_CARD_BYTES
from sharding.core.options import Options
from sharding.core.origin import Place
from sharding.core.values import Finding, ShardRecord, Stage, TensorDigest
from sharding.core.verification import Mismatch
from sharding.formats.model_card import ModelCard
from sharding.planning.plan import identify_plan, sentence
from sharding.report.files import read_card
from sharding.report.report import digests_json, parse_digests, summarize_plan, summarize_source
from sharding.report.schema import Report, parse_report, to_json
from sharding.storage.folder_source import open_folder
from tests.conftest import in_two_files
from tests.report.results import CAST, DEQUANTIZED, LIMIT, MERGE, OUT, made, planned, proved
from tests.tensors import plan_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = in_two_files(tmp_path_factory.mktemp("documents") / "in")
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.fixture
def report() -> Report:
    return made().report


def test_digests_stand_in_the_order_of_the_plan_and_are_read_again() -> None:
    plan = made().plan
    records = {
        shard.file: ShardRecord(
            shard.file, 7 + n, f"{n:064x}", {tensor.name: f"{m:064x}" for m, tensor in enumerate(shard.tensors)}
        )
        for n, shard in reversed(list(enumerate(plan.shards)))
    }
    told = digests_json(plan, "a plan", records)
    assert list(told) == ["schema", "plan_id", "shards", "tensors"] and told["plan_id"] == "a plan"
    assert list(told["shards"].items()) == [
        (shard.file, {"bytes": 7 + n, "sha256": f"{n:064x}"}) for n, shard in enumerate(plan.shards)
    ]
    digests = {
        tensor.name: TensorDigest(tensor.dtype, tensor.shape, f"{m:064x}")
        for shard in plan.shards
        for m, tensor in enumerate(shard.tensors)
    }
    read = parse_digests(json.dumps(told).encode(), "acme/copy")
    assert list(read.items()) == list(digests.items())
    cast = made(Options(LIMIT, dtype="bf16")).plan
    zeros = dict.fromkeys((tensor.name for tensor in cast.tensors), "0" * 64)
    records = {shard.file: ShardRecord(shard.file, 7, "0" * 64, zeros) for shard in cast.shards}
    sentences = digests_json(cast, "a plan", records)["made"]
    assert sentences == {tensor.name: sentence(tensor) for tensor in cast.tensors}
    assert "cast(F32" in min(sentences.values())
    told["tensors"]["lm_head.weight"]["sha256"] = told["tensors"]["lm_head.weight"].pop("blake3")
    with pytest.raises(SourceError, match="is not valid"):
        parse_digests(json.dumps(told).encode(), "acme/copy")


def test_the_answer_comes_first_and_what_is_rare_stands_there_only_where_it_holds(report: Report) -> None:
    usual = ["identical", "outcome", "method", "tensors", "bytes", "seconds", "evidence", "mismatches"]
    rare: dict[str, Any] = {"made": (CAST,), "unstated": True, "unreached": ("a/b@1",), "unchecked": ("names",)}
    rare |= {"differences": (), "within": 2, "undecided": 1}
    for chosen in ((), *((name,) for name in rare), tuple(rare)):
        told = to_json(proved(report, **{name: rare[name] for name in chosen}))
        assert list(told["verification"]) == [*usual, *chosen]
    differs = replace(report.verification, mismatches=(Mismatch("a", "it is missing"),))
    assert list(to_json(replace(report, verification=differs))["verification"].values())[:2] == [False, "different"]


def test_a_source_and_a_plan_are_summed_up(folder: Path) -> None:
    checkpoint = replace(job.inspect(str(folder)), findings=(Finding("info", "first", "Of the source."),))
    told = summarize_source(checkpoint)
    assert [(file.file, file.bytes, file.tensors) for file in told.weight_files] == [
        (name, (folder / name).stat().st_size, tensors)
        for name, tensors in (("model-00001-of-00002.safetensors", 8), ("model-00002-of-00002.safetensors", 6))
    ]
    assert told.dtypes == {"F32": 12 * 5000 * 4, "I64": 7 * 8, "F16": 27 * 2}
    assert (told.tensors, told.total_parameters) == (14, 12 * 5000 + 7 + 27)
    assert told.total_bytes == sum(told.dtypes.values())
    assert {(file.file, file.bytes) for file in told.side_files} >= {("tokenizer.json", 2)}
    plan = replace(plan_of(checkpoint, Options("60kB")), findings=(Finding("info", "last", "Of the plan."),))
    summary = summarize_plan(plan, checkpoint.findings)
    assert [finding.code for finding in summary.findings] == ["first", "last"]
    assert [(shard.file, shard.bytes, shard.tensors) for shard in summary.shards] == [
        (shard.file, sum(tensor.bytes for tensor in shard.tensors), tuple(tensor.name for tensor in shard.tensors))
        for shard in plan.shards
    ]
    assert (summary.max_shard_bytes, summary.total_bytes) == (60_000, told.total_bytes)
    assert list(to_json(summary))[-6:] == ["weight_map", "stages", "pipeline", "rank", "findings", "plan_id"]
    assert summary.plan_id == identify_plan(plan)
    assert list(to_json(summary)["weight_map"].items()) == list(plan.weight_map.items()) == list(summary.weight_map.items())  # fmt: skip


def _cut(report: Report, *layers: tuple[int, int], stages: int = 2, rank: int | None = None) -> Report:
    files = [shard.file for shard in report.plan.shards]
    parts = tuple(Stage((), (), (files[n],), 1, ()) for n in range(stages))
    return planned(report, pipeline=PipelineCut("5.23.0", layers), stages=parts, rank=rank)


def _last(report: Report, **shard: Any) -> Report:
    """The same, with another last shard."""
    return replace(report, shards=(*report.shards[:-1], replace(report.shards[-1], **shard)))


SHARDS, PROOF, RANKS = "written shards are not", "verification is of another plan", "ranks do not make"
DONE, IN_A_REPO = "disagree about what was done", Place("hub", "a/b", "")
CONTRADICTIONS: dict[str, tuple[str, Callable[[Report], Report]]] = {
    "one shard fewer": (SHARDS, lambda told: replace(told, shards=told.shards[:-1])),
    "shards in another order": (SHARDS, lambda told: replace(told, shards=told.shards[::-1])),
    "another last shard": (SHARDS, lambda told: _last(told, file="x.safetensors")),
    "a last shard that is no file": ("not among the files", lambda told: replace(told, files=(told.shards[0].file,))),
    "no header": ("fewer bytes than its tensors", lambda told: _last(told, bytes=told.plan.shards[-1].bytes)),
    "one tensor fewer proved": (PROOF, lambda told: proved(told, tensors=5)),
    "one byte more proved": (PROOF, lambda told: proved(told, bytes=told.plan.total_bytes + 1)),
    "another cast proved": (DONE, lambda told: proved(told, made=(CAST,))),
    "dequantized in the plan only": (DONE, lambda told: planned(told, made=(DEQUANTIZED,))),
    "an adapter that is no input": ("is no input", lambda told: planned(proved(told, made=(MERGE,)), made=(MERGE,))),
    "what nobody can judge": ("leaves nothing undecided", lambda told: proved(told, undecided=1)),
    "a gap between ranks": (RANKS, lambda told: _cut(told, (0, 2), (3, 4))),
    "ranks that do not begin at the first layer": (RANKS, lambda told: _cut(told, (1, 2), (2, 4))),
    "a rank without layers": (RANKS, lambda told: _cut(told, (0, 2), (2, 2))),
    "a stage more than ranks": (RANKS, lambda told: _cut(told, (0, 2), (2, 4), stages=3)),
    "a rank beyond the last": (RANKS, lambda told: _cut(told, (0, 2), (2, 4), rank=2)),
    "a rank's part in a repo": (
        "cannot be the part of one rank",
        lambda told: replace(_cut(told, (0, 2), (2, 4), rank=1), destination=IN_A_REPO),
    ),
}


@pytest.mark.parametrize("contradiction", CONTRADICTIONS)
def test_a_report_that_contradicts_itself_is_refused_with_the_contradiction(report: Report, contradiction: str) -> None:
    reason, changed = CONTRADICTIONS[contradiction]
    with pytest.raises(SourceError, match=f"it contradicts itself: .*{reason}"):
        parse_report(json.dumps(to_json(changed(report))))


def test_what_could_be_taken_for_a_contradiction_and_is_none_is_read(report: Report) -> None:
    differs = proved(report, tensors=3, bytes=7, mismatches=(Mismatch("a", "it is missing"),))
    classic = replace(report, engine="classic", source=replace(report.source, tensors=99))
    cast = planned(proved(report, made=(CAST,)), made=(CAST,), asked={"dtype": "bf16"})
    smaller = replace(cast, source=replace(cast.source, total_bytes=7))
    ranks = (_cut(replace(report, destination=OUT), (0, 2), (2, 4), rank=rank) for rank in (0, 1))
    for told in (report, differs, classic, cast, smaller, _cut(report, (0, 2), (2, 4)), *ranks):
        assert parse_report(json.dumps(to_json(told))) == told


# --- The card of the source --------------------------------------------------------------------------------


def test_a_card_is_read_up_to_a_bound_and_a_lost_one_is_an_error(tmp_path: Path) -> None:
    source = in_two_files(tmp_path / "in")
    assert read_card(open_folder(str(source))) == ModelCard()
    card = source / "README.md"
    card.write_bytes(b"\xef\xbb\xbf---\nlicense: mit\n---\nMine \xff.".ljust(MAX_CARD_BYTES))
    found = read_card(open_folder(str(source)))
    assert (found.metadata, found.text.strip(), found.problem) == ({"license": "mit"}, "Mine \N{REPLACEMENT CHARACTER}.", "")  # fmt: skip
    card.write_bytes(card.read_bytes() + b" ")
    opened = open_folder(str(source))
    before = opened.bytes_read
    assert read_card(opened) == ModelCard(problem="the file is larger than 1.0 MB")
    assert opened.bytes_read == before, "nothing of it is read"
    card.write_text("Mine.")
    opened = open_folder(str(source))
    card.unlink()
    with pytest.raises(SourceError, match=r"README\.md cannot be read"):
        read_card(opened)
