"""A desk plans a merge with an adapter, pins its commit, and holds a merged result to both repos."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sharding import job
from sharding.core.errors import Refused, SourceError
from sharding.core.events import Verified
from sharding.core.options import Options
from sharding.core.origin import Place
from sharding.core.values import Content
from sharding.desk import judgement
from sharding.desk.desk import Desk
from sharding.desk.jobs import JobRequest, JobStatus, Settings
from sharding.desk.models import Headers, Models
from sharding.formats.names import REPORT_NAME
from sharding.page.result_panels import is_proved
from sharding.report.report import event_json
from sharding.report.schema import to_json
from sharding.verify.trust import Trust
from tests.desk.actors import Stage, until
from tests.desk.conftest import ALICE, AS_ALICE, AS_BOB, BOB, end, player, state
from tests.hubs import push, shard
from tests.inhouse import InHouse
from tests.lora import Case, save_adapter, save_base
from tests.promises import promise
from tests.report.results import MERGE

SIZE = "30kB"
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("at_hand")]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A base, and an adapter that PEFT has saved for it."""
    pytest.importorskip("peft")
    place, case = tmp_path_factory.mktemp("in"), Case(lora={"target_modules": ["q_proj", "v_proj"]})
    base = save_base(case, place / "base")
    return base, save_adapter(case, base, place / "lora")


@pytest.fixture(scope="module")
def base(hub: InHouse, folders: tuple[Path, Path]) -> str:
    return push(hub, folders[0], "alice/base")


@pytest.fixture(scope="module")
def adapter(hub: InHouse, folders: tuple[Path, Path]) -> str:
    return push(hub, folders[1], "alice/lora")


@pytest.fixture(scope="module")
def merged(hub: InHouse, base: str, adapter: str) -> str:
    """A merged copy of bob, whom no desk has helped."""
    shard(hub, base, "bob/merged", Options(SIZE, adapter=adapter), BOB)
    return "bob/merged"


def commit(hub: InHouse, repo: str) -> str:
    return f"{repo}@{hub.api().model_info(repo).sha}"


def in_git(hub: InHouse, repo: str, folder: Path) -> None:
    """Put an adapter into git: a Hub states no SHA-256 for such a file."""
    hub.api().create_repo(repo)
    attributes = b"*.nothing filter=lfs\n"
    hub.api().upload_file(repo_id=repo, path_in_repo=".gitattributes", path_or_fileobj=attributes)
    hub.api().upload_folder(repo_id=repo, folder_path=folder, ignore_patterns=["README.md"])


def rewrite(hub: InHouse, copy: str, report: dict[str, Any], token: str) -> None:
    text = json.dumps(report).encode()
    hub.api(token).upload_file(repo_id=copy, path_in_repo=REPORT_NAME, path_or_fileobj=text)


def test_a_job_merges_the_commit_of_the_adapter_that_was_planned(
    hub: InHouse, desk: Desk, stage: Stage, folders: tuple[Path, Path], base: str, name: str
) -> None:
    mine = push(hub, folders[1], f"{name}-lora")
    pinned = commit(hub, mine)
    actor = stage(name)
    job_id = desk.submit(JobRequest(base, name, Options(SIZE, adapter=mine)), *AS_ALICE)
    hub.api().upload_file(repo_id=mine, path_in_repo="README.md", path_or_fileobj=b"later")
    assert commit(hub, mine) != pinned
    assert state(desk, job_id, "running").request.options.adapter == pinned
    assert actor.arguments[actor.arguments.index("--adapter") + 1] == pinned
    actor.exit()


def test_an_adapter_in_a_folder_of_its_repo_is_named_like_that_or_by_its_link(
    hub: InHouse, desk: Desk, folders: tuple[Path, Path], base: str
) -> None:
    hub.api().create_repo("alice/many")
    hub.api().upload_folder(repo_id="alice/many", folder_path=folders[1], path_in_repo="loras/small")
    pinned = commit(hub, "alice/many")
    link = f"{hub.address}/alice/many/tree/main/loras/small"
    for named in ("alice/many/loras/small", f"{pinned}/loras/small", link):
        _, plan = desk.models.plan(base, Options(SIZE, adapter=named))
        (merge,) = plan.made
        assert merge.by and (merge.by.role, merge.by.text) == ("adapter", f"{pinned}/loras/small")
        assert (merge.changed, merge.of) == (4, len(plan.tensors))
    with pytest.raises(SourceError, match="its adapter in loras/small"):
        desk.models.plan(base, Options(SIZE, adapter="alice/many"))


def test_an_answer_about_one_adapter_is_none_about_another(
    hub: InHouse, base: str, adapter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def stored(checkpoint: Content, limit_seconds: float) -> dict[str, str]:
        asked.append(checkpoint.beside[0].revision)
        return {}

    monkeypatch.setattr("sharding.desk.models.stored_names", stored)
    first = job.inspect(base, adapter=adapter, endpoint=hub.address, token=ALICE)
    (lora,) = first.beside
    second = replace(first, beside=(replace(lora, revision="1" * 40),))
    models = Models(hub.address)
    for checkpoint in (first, second, first):
        models.names(checkpoint, "somebody")
    models.close()
    assert asked == [lora.revision, "1" * 40]


def test_no_folder_of_the_server_is_an_adapter(
    hub: InHouse, desk: Desk, folders: tuple[Path, Path], base: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by its path nor by a name that a repo could have."""
    monkeypatch.chdir(folders[1].parent)
    (folders[1].parent / "nobody").mkdir()
    (folders[1].parent / "nobody/lora").symlink_to(folders[1])
    for named in (str(folders[1]), "./lora", "~/lora", "lora", "nobody/lora"):
        with pytest.raises(SourceError):
            desk.models.plan(base, Options(SIZE, adapter=named), ALICE)
        with pytest.raises(SourceError):
            desk.submit(JobRequest(base, name, Options(SIZE, adapter=named)), *AS_ALICE)


def test_a_private_adapter_is_read_only_with_a_token_that_may_and_a_copy_with_it_is_private(
    hub: InHouse, desk: Desk, folders: tuple[Path, Path], base: str, name: str
) -> None:
    secret = push(hub, folders[1], "alice/secret-lora", private=True)
    options = Options(SIZE, adapter=secret)
    assert desk.models.plan(base, options, ALICE)[1].made
    for token in (BOB, None):  # also after its owner has read it
        with pytest.raises(SourceError, match="alice/secret-lora"):
            desk.models.plan(base, options, token)
    with pytest.raises(SourceError, match="alice/secret-lora"):
        desk.submit(JobRequest(base, "bob/of-secret", options), *AS_BOB)
    assert end(desk, desk.submit(JobRequest(base, name, options), *AS_ALICE)).state == "done"
    assert hub.api().model_info(name).private


def test_a_page_does_not_read_a_large_adapter_whole(
    hub: InHouse, desk: Desk, folders: tuple[Path, Path], base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_git(hub, "alice/in-git", folders[1])
    monkeypatch.setattr("sharding.core.limits.MAX_PAGE_WEIGHT_BYTES", 100)
    monkeypatch.setattr("sharding.desk.models.Headers.read.__defaults__", (100,))
    options = Options(SIZE, adapter="alice/in-git")
    with pytest.raises(SourceError, match="SHA-256 of adapter_model.safetensors takes reading"):
        desk.models.plan(base, options)
    monkeypatch.undo()
    assert desk.models.plan(base, options)[1].made


@promise("docs/security.md#make-a-page-read-the-same")
def test_what_a_plan_reads_of_weights_is_read_once_for_all_who_ask_and_for_one_at_a_time(
    hub: InHouse, settings: Settings, folders: tuple[Path, Path], base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("alice/first", "alice/second"):
        in_git(hub, name, folders[1])
    reading, most, read, usual = 0, 0, list[str](), Headers.read

    def noting(headers: Headers, *given: Any, most_bytes: int = 100, **more: Any) -> Content:
        nonlocal reading, most
        if most_bytes == 100:  # what a page reads for anybody at once
            return usual(headers, *given, most_bytes=most_bytes, **more)
        reading += 1
        most = max(most, reading)
        until(lambda: read or sum(len(each.callers) for each in desk.models._weights._kept.values()) == 4)
        found = usual(headers, *given, most_bytes=most_bytes, **more)
        read.append(found.beside[0].repo_id)
        reading -= 1
        return found

    monkeypatch.setattr(Headers, "read", noting)
    asked = ["alice/first", "alice/second", commit(hub, "alice/first"), "alice/first@main"]
    with Desk(settings) as desk, ThreadPoolExecutor(4) as pool:
        plans = list(pool.map(lambda name: desk.models.plan(base, Options(SIZE, adapter=name))[1], asked))
    assert all(plan.made for plan in plans)
    assert most == 1 and sorted(read) == ["alice/first", "alice/second"]


@promise("docs/security.md#fill-a-job-s-memory-with")
def test_the_bytes_of_an_adapter_count_in_the_limit_of_a_job(
    settings: Settings, base: str, adapter: str, name: str
) -> None:
    with Desk(settings) as desk:
        checkpoint, plan = desk.models.plan(base, Options(SIZE, adapter=adapter))
        (lora,) = checkpoint.others
        size = max(checkpoint.total_bytes, plan.total_bytes) + lora.weight_files[0].bytes
    for limit in (size - 1, size):
        with Desk(replace(settings, max_job_bytes=limit)) as desk:
            request = JobRequest(base, name, Options(SIZE, adapter=adapter))
            if limit < size:
                with pytest.raises(Refused, match="shared machine accepts"):
                    desk.submit(request, *AS_ALICE)
            else:
                assert end(desk, desk.submit(request, *AS_ALICE)).state == "done"


def test_a_merged_result_is_held_to_base_and_adapter_also_for_visitors_who_ask_at_the_same_time(
    hub: InHouse, desk: Desk, base: str, adapter: str, merged: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard(hub, base, name, Options(SIZE, adapter=adapter))
    usual, judged = judgement.judge, list[Trust]()

    def after_both_are_asked(*given: Any) -> Trust:
        until(lambda: judged or len(desk.models._large._kept) == 2)
        judged.append(usual(*given))
        return judged[-1]

    monkeypatch.setattr(judgement, "judge", after_both_are_asked)
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda place: desk.results.judge(place, None), (merged, name, merged)))
    for result, trust in found:
        (merge,) = result.report.plan.made
        assert trust.level == "fits" and trust.made == (merge,)
        assert f", with the adapter {adapter} merged: names, shapes and dtypes agree" in " ".join(trust.reasons)


def test_a_report_of_another_merge_is_contradicted(hub: InHouse, desk: Desk, base: str, adapter: str) -> None:
    shard(hub, base, "bob/lies", Options(SIZE, adapter=adapter), BOB)
    report = json.loads(hub.ask("GET", f"/bob/lies/resolve/main/{REPORT_NAME}").body)
    (merge,) = report["plan"]["made"]

    def trust_in(lie: dict[str, Any]) -> Trust:
        report["plan"]["made"] = report["verification"]["made"] = [{**merge, **lie}]
        rewrite(hub, "bob/lies", report, BOB)
        return desk.results.judge("bob/lies", None)[1]

    in_other_words = trust_in({"how": "It is what its author wanted.", "caveat": "Trust it."})
    assert (in_other_words.level, to_json(in_other_words.made[0])) == ("fits", merge), "the page shows its own words"
    for lie in ({"changed": 5}, {"evidence": "a" * 64}, {"is_exact": True}):
        trust = trust_in(lie)
        assert trust.level == "contradicted", lie
        said = f"The report describes another copy than the headers, which give one that is {merge['done']}."
        assert trust.reasons == (said,)


@promise("docs/security.md#get-a-merge-that-never-happened")
def test_a_merge_that_never_happened_is_not_proved_by_reading_a_plain_copy(
    hub: InHouse, desk: Desk, base: str, name: str
) -> None:
    shard(hub, base, name, SIZE)
    assert end(desk, desk.submit_about("verify", name, *AS_ALICE)).state == "done"
    assert desk.results.judge(name, None)[1].level == "read-now"
    report = json.loads(hub.ask("GET", f"/{name}/resolve/main/{REPORT_NAME}").body)
    for named in (".", "", "alice/lora", "lora"):
        place = Place("folder", named, role="adapter")
        merge = to_json(replace(MERGE, by=place, done=f"with the adapter {named} merged"))
        report["source"]["beside"] = [merge["by"]]
        report["plan"]["made"] = report["verification"]["made"] = [merge]
        rewrite(hub, name, report, ALICE)
        if named != "lora":
            with pytest.raises(SourceError, match="not the name of a folder"):
                desk.results.judge(name, None)
    assert end(desk, desk.submit_comparison(base, name, "", *AS_ALICE)).state == "done"
    assert desk.results.judge(name, None)[1].level == "claims"


def test_a_check_merges_the_adapter_first_and_is_remembered(
    hub: InHouse, desk: Desk, base: str, adapter: str, merged: str
) -> None:
    done = end(desk, desk.submit_about("verify", merged, *AS_ALICE))
    assert (done.state, done.error) == ("done", None)
    assert done.request.options.adapter == commit(hub, adapter)
    assert done.verification and done.verification.holds and done.verification.made
    trust = desk.results.judge(merged, None)[1]
    said = f"compared them with the original's, with the adapter {commit(hub, adapter)} merged."
    assert trust.level == "read-now" and said in trust.reasons[0]


def test_a_base_and_its_merged_copy_differ_and_that_says_nothing_against_the_result(
    desk: Desk, base: str, adapter: str, merged: str
) -> None:
    done = end(desk, desk.submit_comparison(base, merged, "", *AS_ALICE))
    assert done.state == "failed" and done.error and "differs from the original in 4 tensors" in done.error[0]
    assert desk.results.compare(base, merged, ALICE)[1].level == "contradicted"
    assert desk.results.judge(merged, ALICE)[1].level == "fits"
    assert end(desk, desk.submit_about("verify", merged, *AS_ALICE)).state == "done"
    assert desk.results.compare(base, merged, ALICE)[1].level == "contradicted"


def said_of(desk: Desk, stage: Stage, hub: InHouse, base: str, copy: str, adapter: str, **figures: int) -> JobStatus:
    """How a check of a merged copy ends that finds such figures."""
    *_, verified = job.verify(base, copy, adapter=adapter, endpoint=hub.address, token=ALICE)
    assert isinstance(verified, Verified)
    job_id = desk.submit_about("verify", copy, *AS_ALICE)
    actor = player(desk, stage, job_id)
    verification = replace(verified.verification, **figures)
    actor.say(event_json(replace(verified, verification=verification)))
    actor.exit(0 if verification.holds else 1)
    return end(desk, job_id)


def test_what_is_equal_only_within_the_tolerance_of_a_merge_is_never_called_identical(
    hub: InHouse, desk: Desk, stage: Stage, base: str, adapter: str, merged: str
) -> None:
    done = said_of(desk, stage, hub, base, merged, adapter, within=3)
    assert done.state == "done" and done.verification
    words = f"equal within the tolerance of a merge: {done.verification.tensors - 3} tensors bit-equal, 3 within it"
    assert f"Not identical, but {words}." in done.log[-1]
    result, trust = desk.results.judge(merged, ALICE)
    assert (trust.level, trust.within) == ("read-now", 3) and "3 tensors differ" in trust.caveats[0]
    assert not is_proved(result.report, trust)


def test_what_nobody_can_tell_is_neither_equal_nor_different(
    hub: InHouse, desk: Desk, stage: Stage, base: str, adapter: str, name: str
) -> None:
    shard(hub, base, name, Options(SIZE, adapter=adapter))
    done = said_of(desk, stage, hub, base, name, adapter, within=1, undecided=2)
    sentence = "It cannot be told whether 2 merged tensors are right"
    assert done.state == "failed" and done.error and sentence in done.error[0] and sentence in done.log[-1]
    assert desk.jobs_of("alice")[0].is_undecided
    result, trust = desk.results.judge(name, ALICE)
    assert trust.level == "fits" and sentence in trust.reasons[1] and not is_proved(result.report, trust)
