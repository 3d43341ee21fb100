"""A verdict of this desk counts for this very commit and this very source, and for nothing else."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sharding import job
from sharding.core.errors import SourceError
from sharding.core.made import Made
from sharding.core.values import Content
from sharding.core.verification import Evidence, Outcome
from sharding.desk.judgement import Reading, Results, Verdict, Verdicts
from sharding.page.result_panels import is_proved
from sharding.report.files import Result, read_result
from sharding.verify.trust import Trust
from tests.conftest import random_tensors, write_checkpoint
from tests.hubs import TOKEN, push, shard
from tests.inhouse import InHouse, hub_in_house
from tests.promises import promise
from tests.report.results import CAST, DEQUANTIZED, LORA, MERGE, of, planned, proved

MODEL, COPY, HUB = "alice/model", "bob/copy", "http://hub"
UNMERGED = "somebody/else@" + "1" * 40
DIFFERS = {"kind": "verify", "outcome": Outcome("different", 1), "error": "The copy differs."}


def claiming(result: Result, made: Made = (), asked: dict[str, str] | None = None, **source: Any) -> Result:
    """The result if its report said something else of what was done, of what was asked for, and of its source."""
    report = planned(proved(of(result.report, **source), made=made), made=made, asked=asked or {})
    return replace(result, report=report)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InHouse]:
    with hub_in_house(tmp_path_factory.mktemp("hub")) as hub:
        folder = tmp_path_factory.mktemp("in") / "in"
        push(hub, write_checkpoint(folder, {"model.safetensors": random_tensors(3)}, False), MODEL)
        shard(hub, MODEL, COPY, token="hf_bob")
        yield hub


@pytest.fixture(scope="module")
def result(hub: InHouse) -> Result:
    """A result that another machine has made."""
    return read_result(COPY, endpoint=hub.address)


@pytest.fixture(scope="module")
def headers(hub: InHouse) -> dict[str, Content]:
    return {repo: job.inspect(repo, endpoint=hub.address, token=TOKEN) for repo in (MODEL, COPY)}


@pytest.fixture
def judged(result: Result, headers: dict[str, Content], tmp_path: Path) -> Callable[..., Any]:
    """Judge the result, or what is `told` of it, by verdicts; `unreached` are commits that no branch leads to now."""

    def judged(
        *given: Verdict, unread: bool = False, unreached: dict[str, str] | None = None, told: Result = result
    ) -> Trust:
        def inspect(place: str, variant: str = "", **_: object) -> Content:
            repo = place.partition("@")[0]
            if unread and repo == MODEL:
                raise SourceError("It cannot be read.")
            more = (unreached or {}).get(repo)
            return replace(headers[repo], unreached=(more,) if more else ())

        (tmp_path / "verdicts.jsonl").unlink(missing_ok=True)
        for one in given:
            Verdicts(tmp_path, one.hub).add(one)
        results = Results("", SimpleNamespace(inspect=inspect), None, Verdicts(tmp_path, HUB))  # type: ignore[arg-type]
        return results.trust(told, None)

    return judged


@pytest.fixture
def verdict(result: Result) -> Callable[..., Verdict]:
    """What the desk keeps of a job: by itself of one that has made this very result."""
    read, copy = Reading((result.report.source.place,), {"variant": ""}), f"{COPY}@{result.revision}"
    made = Verdict(HUB, copy, read, "shard", Outcome("identical", 14), 3.0, "0.1.0")

    def changed(**change: Any) -> Verdict:
        reads = {name: change.pop(name) for name in ("inputs", "asked") if name in change}
        return replace(made, read=replace(read, **reads), **change)

    return changed


@promise("docs/security.md#what-a-result-proves")
def test_a_verdict_on_this_commit_and_of_this_source_is_what_was_made_here(
    judged: Callable[..., Any], verdict: Callable[..., Verdict]
) -> None:
    assert judged().level == "fits"
    found = judged(verdict())
    assert found.level == "made-here" and "01 January 1970, 00:00 UTC" in found.reasons[0]
    assert judged(verdict(), unread=True).level == "made-here"
    assert judged(unread=True).level == "claims"


@promise("docs/security.md#get-a-copy-of-other-weights", "docs/security.md#what-a-result-proves")
def test_a_verdict_on_anything_else_says_nothing(
    judged: Callable[..., Any], verdict: Callable[..., Verdict], result: Result
) -> None:
    source, other = result.report.source.place, "2" * 40
    originals = {"revision": other}, {"repo_id": "alice/another"}, {"inside": "sub/"}, {"store": "folder"}
    beside = ([source, replace(source, role=role)] for role in ("base", "adapter"))  # type: ignore[arg-type]
    asked = {"variant": "fp16"}, {"dtype": "bf16"}, {"dequantize": True}
    others: list[dict[str, Any]] = [
        *({"inputs": (replace(source, **change),)} for change in originals),  # type: ignore[arg-type]
        *({"inputs": tuple(places)} for places in ([], *beside)),
        *({"asked": {"variant": "", **more}} for more in asked),
        *({"copy": place} for place in (f"{COPY}@{other}", f"alice/copy@{result.revision}", COPY, "")),
        {"hub": "http://another"},
    ]
    for kind in ("shard", "verify"):
        for change in others:
            assert judged(verdict(kind=kind, **change)).level == "fits", change
        assert judged(verdict(**DIFFERS | change)).level == "fits", change
    wrong = [verdict(**change) for change in others]
    assert judged(*wrong, verdict(kind="verify"), *wrong).level == "read-now"


@promise("docs/security.md#get-a-copy-of-other-weights", "docs/security.md#get-a-merge-that-never-happened")
def test_a_report_of_anything_else_gets_no_verdict_of_this_job(
    judged: Callable[..., Any], verdict: Callable[..., Verdict], result: Result
) -> None:
    """Also where its source is away, so that nothing but the verdict is there to tell."""
    others = [
        *(claiming(result, (change,), {"dtype": "bf16"}) for change in (replace(CAST, changed=99), DEQUANTIZED, MERGE)),
        *(claiming(result, made, {"dtype": "bf16"}) for made in ((), (DEQUANTIZED, CAST), (CAST, CAST))),
        *(claiming(result, (CAST,), asked) for asked in ({}, {"dtype": "fp16"})),
        *(claiming(result, (CAST,), {"dtype": "bf16"}, **more) for more in ({"variant": "fp16"}, {"inside": "sub/"})),
        *(
            claiming(result, (CAST,), {"dtype": "bf16"}, beside=(replace(LORA, role=role),))
            for role in ("base", "adapter")
        ),
        claiming(result, (CAST,), {"dtype": "bf16"}, revision="2" * 40),
    ]
    for kind, level in (("shard", "made-here"), ("verify", "read-now")):
        cast = verdict(kind=kind, made=(CAST,), asked={"variant": "", "dtype": "bf16"})
        for told in others:
            assert judged(cast, told=told, unread=True).level == "claims", told.report
            # The headers of a copy with the dtypes of its source are those of a cast that made nothing.
            known = "contradicted" if told.report.plan.made else "fits"
            assert judged(cast, told=told).level == known, told.report
        boasting = replace(CAST, done="approved by everybody", caveat="Trust it.")
        trust = judged(cast, told=claiming(result, (boasting,), {"dtype": "bf16"}), unread=True)
        assert (trust.level, trust.made) == (level, (CAST,)), "the page shows its own words"


@promise("docs/security.md#what-a-result-proves")
def test_what_was_read_here_says_what_nobody_has_checked(
    judged: Callable[..., Any], verdict: Callable[..., Verdict], result: Result
) -> None:
    unchecked = (
        "Not checked: code, configuration, tokenizer, other files (they may hold weights too) and the figures of a report "
        "for time, memory and bytes moved."
    )
    infinite = "It did not count how many numbers became infinite in the cast."
    for made, first, more in (((), "", ()), ((CAST,), " with the original's, cast to bf16", (infinite,))):
        asked = {"dtype": "bf16"} if made else {}
        done = verdict(kind="verify", made=made, asked={"variant": "", **asked})
        found = judged(done, told=claiming(result, made, asked), unread=True)
        assert (found.level, found.reasons[1:], found.caveats) == ("read-now", (unchecked, *more), ())
        assert "read every tensor of both repos" in found.reasons[0]
        assert found.reasons[0].endswith(f" and compared them{first}.")


def test_weights_beside_those_that_were_read_and_files_without_a_hash_are_caveats(
    judged: Callable[..., Any],
    verdict: Callable[..., Verdict],
    headers: dict[str, Content],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for kind in ("verify", "shard"):
        (caveat,) = judged(verdict(kind=kind, unstated=True)).caveats
        assert "states no hash for some of the files" in caveat
    monkeypatch.setitem(headers, COPY, replace(headers[COPY], other_weights=("a.safetensors", "x.gguf")))
    found = judged(verdict(kind="verify"))
    assert found.level == "read-now"
    (caveat,) = found.caveats
    assert "2 more weight files, which were not compared: a.safetensors" in caveat and "x.gguf" in caveat


def test_what_was_read_here_and_differs_does_not_fit(
    judged: Callable[..., Any], verdict: Callable[..., Verdict]
) -> None:
    found = judged(verdict(**DIFFERS))
    assert (found.level, found.reasons[1]) == ("contradicted", "The copy differs.")
    assert judged(verdict(**DIFFERS, unreached=(UNMERGED,))).level == "contradicted"


@pytest.mark.parametrize("kind", ["shard", "verify"])
@pytest.mark.parametrize("repo", [MODEL, COPY])
def test_a_verdict_is_not_green_where_no_branch_leads_to_either_commit_then_or_now(
    judged: Callable[..., Any], verdict: Callable[..., Verdict], kind: str, repo: str
) -> None:
    level = "made-here" if kind == "shard" else "read-now"
    assert judged(verdict(kind=kind)).level == level
    said = "No known branch or tag of somebody/else contains commit 111111111111"
    for found in (
        judged(verdict(kind=kind), unreached={repo: UNMERGED}),
        judged(verdict(kind=kind, unreached=(UNMERGED,))),
        judged(verdict(kind=kind, unreached=(UNMERGED,)), unreached={repo: UNMERGED}),
        judged(unreached={repo: UNMERGED}),
    ):
        assert found.level == "unreached"
        assert [said in reason for reason in found.reasons] == [True] + [False] * (len(found.reasons) - 1)
    for later in permutations((verdict(kind=kind, unreached=(UNMERGED,)), verdict(kind=kind))):
        assert judged(*later).level == level, "it was read again once a branch led to it"


def test_a_report_that_names_such_a_commit_itself_is_believed_in_that(
    judged: Callable[..., Any], result: Result
) -> None:
    proof = replace(result.report.verification, unreached=(UNMERGED,))
    assert judged(told=replace(result, report=replace(result.report, verification=proof))).level == "unreached"


@promise("docs/security.md#what-a-result-proves")
def test_a_copy_that_was_made_here_and_not_read_again_is_not_one_that_was(
    judged: Callable[..., Any], verdict: Callable[..., Verdict], result: Result
) -> None:
    """Whatever its report says, such as that all of it was read. A reading of every byte counts more, before and after."""
    stated, read = verdict(outcome=Outcome("stated", 14)), verdict(kind="verify")
    assert result.report.verification.evidence.read == "hub" and result.report.verification.identical
    found = judged(stated)
    assert (
        found.level == "stated" and "Only a sample" in found.reasons[1] and "every byte" not in " ".join(found.reasons)
    )
    assert not is_proved(result.report, found) and judged(stated, verdict(**DIFFERS)).level == "contradicted"
    for order in permutations((stated, read)):
        found = judged(*order)
        assert found.level == "read-now" and is_proved(result.report, found)
    assert judged(verdict(), stated).level == judged(stated, verdict()).level == "made-here"
    sampled = replace(result.report.verification, evidence=Evidence("stated", sampled=600, xet=True))
    honest = replace(result, report=replace(result.report, verification=sampled))
    assert judged(told=honest).level == "fits" and not is_proved(honest.report, judged(told=honest))
    assert is_proved(honest.report, judged(stated, read, told=honest))
