"""Who sees which job and which result, and how green it is: asked of the rooms in this process."""

import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qsl

import gradio as gr
import pytest

from sharding import job
from sharding.core.events import Verified
from sharding.core.limits import MAX_WATCHERS
from sharding.core.options import Options
from sharding.core.verification import Outcome
from sharding.desk.jobs import JobRecord, JobRequest, new_job_id
from sharding.desk.judgement import Verdict, _read_for
from sharding.page.job_panels import jobs_panel
from sharding.page.jobs import Running
from sharding.page.links import read_wish
from sharding.page.results import Comparing, Showing
from sharding.report.report import event_json
from sharding.report.schema import Report
from sharding.storage.hub.answers import Person
from tests.conftest import in_a_loop, random_tensors
from tests.folders import until_shard
from tests.hubs import TOKEN, propose, shard
from tests.page.rooms import Rooms, asks, login, told, whole
from tests.page.sources import save_one
from tests.promises import promise

MODEL = "bob/model"
ALICE = Person("alice", ("alice", "acme"))
NOT_YOURS = "You have no job with this id here."
Update = dict[Any, Any]


@pytest.fixture(scope="module", autouse=True)
def model(rooms: Rooms) -> None:
    rooms.push(MODEL)


@pytest.fixture
def running(rooms: Rooms, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setattr("sharding.page.jobs.VIEW_SECONDS", 0.001)
    yield Running(rooms.desk, rooms.site, rooms.form)
    rooms.cancel_all()


def waits(rooms: Rooms, user: str) -> str:
    """The id of a job of `user` that waits for its turn."""
    who = Person(user, (user, "acme"))
    return rooms.desk.submit(JobRequest(MODEL, f"{user}/waits", Options("60kB")), who, f"hf_{user}")


def first(running: Running, job_id: str, user: str) -> Update:
    """What is shown to `user` of a job at once."""

    async def follow() -> Update:
        shown = running.follow(job_id, asks(user), None)
        update = await anext(shown)
        await shown.aclose()  # type: ignore[attr-defined]
        return update

    return in_a_loop(follow())  # type: ignore[no-any-return]


# --- Windows ------------------------------------------------------------------------------------------------


@promise("docs/security.md#block-the-page-by-watching-one")
def test_eight_windows_of_one_person_are_open_at_a_time_however_each_is_closed(rooms: Rooms, running: Running) -> None:
    assert MAX_WATCHERS == 8
    jobs, form = {user: waits(rooms, user) for user in ("alice", "bob")}, rooms.form

    async def watch(user: str) -> tuple[AsyncIterator[Update], bool]:
        """Open a window; tell whether it shows the job."""
        window = running.follow(jobs[user], asks(user), None)
        update = await anext(window)
        is_shown = form.run_heading in update
        assert is_shown or "You already watch jobs in 8 windows." in update[form.progress]
        return window, is_shown

    async def close(*windows: AsyncIterator[Update]) -> None:
        for window in windows:
            await window.aclose()  # type: ignore[attr-defined]

    async def visit() -> None:
        alices = [await watch("alice") for _ in range(MAX_WATCHERS + 1)]
        bobs = [await watch("bob") for _ in range(MAX_WATCHERS)]
        assert [is_shown for _, is_shown in (*alices, *bobs)] == [True] * 8 + [False] + [True] * 8
        (first, *windows), (refused, _) = (window for window, _ in alices[:8]), alices[8]
        await close(refused)
        assert not (await watch("alice"))[1], "a refused window takes no place, and leaves none"
        await close(first)
        with pytest.raises(RuntimeError, match="broken"):
            await windows[0].athrow(RuntimeError("broken"))  # type: ignore[attr-defined]
        opened = [await watch("alice") for _ in range(3)]
        assert [is_shown for _, is_shown in opened] == [True, True, False]
        windows = [*windows[1:], *(window for window, _ in opened[:2])]
        rooms.cancel_all("alice")
        for window in windows:
            assert [update async for update in window]  # each is told of the end
        jobs["alice"] = waits(rooms, "alice")
        again = [await watch("alice") for _ in range(MAX_WATCHERS + 1)]
        assert [is_shown for _, is_shown in again] == [True] * 8 + [False]
        await close(*(window for window, _ in (*again, *bobs)))

    in_a_loop(visit())


# --- Whose job ----------------------------------------------------------------------------------------------


def test_a_job_is_shown_and_stopped_for_its_owner_only(rooms: Rooms, running: Running) -> None:
    taken, form = waits(rooms, "alice"), rooms.form
    assert form.run_heading in first(running, taken, "alice")
    assert first(running, taken, "bob").keys() == {form.progress}
    assert NOT_YOURS in first(running, taken, "bob")[form.progress]
    assert form.run_message in running.cancel(taken, asks("bob"), None)
    assert form.run_message in running.cancel(taken, asks("nobody"), None)
    on_space = Running(rooms.desk, rooms.space, form)
    assert "so you cannot see this job" in first(on_space, taken, "")[form.progress]
    assert form.run_message in on_space.cancel(taken, asks(), None)
    assert form.run_message in on_space.cancel(taken, asks(), login("bob"))
    assert len(rooms.waiting("alice")) == 1
    on_space.cancel(taken, asks(), login("alice"))
    assert rooms.waiting("alice") == []


@pytest.mark.parametrize(("namespace", "others"), [("alice", ["bob"]), ("acme", [])])
def test_an_interrupted_job_is_offered_to_those_who_may_write_where_it_is_staged(
    rooms: Rooms, running: Running, namespace: str, others: list[str]
) -> None:
    form, name = rooms.form, f"{namespace}/interrupted"
    until_shard(job.shard(MODEL, name, "60kB", endpoint=rooms.hub.address, token=TOKEN), stop=True)
    lost = f"{'A' * 22}/{name}"
    assert "so you cannot see this job" in first(Running(rooms.desk, rooms.space, form), lost, "")[form.progress]
    for user in others:
        update = first(running, lost, user)
        assert update.keys() == {form.progress} and NOT_YOURS in update[form.progress]
        assert NOT_YOURS in running.resume(lost, asks(user), None)[form.run_message]
        assert rooms.waiting(user) == []
    for user in {"alice", "bob"} - {*others}:
        update = first(running, lost, user)
        assert f"The job for {name} was interrupted" in update[form.progress]
        assert told(update, form.resume)["visible"] is True
    again = running.resume(lost, asks("alice"), None)
    (request,) = rooms.waiting("alice")
    assert (request.destination, request.options.max_shard_size) == (name, "60kB")
    assert request.source.startswith(f"{MODEL}@") and again[form.job].endswith(f"/{name}")


def test_a_job_that_never_was_is_nobodys(rooms: Rooms, running: Running) -> None:
    for lost in (f"{'A' * 22}/alice/never", f"{'A' * 22}/bob/model", "nonsense", "A/alice/x"):
        for user in ("alice", "bob"):
            update = first(running, lost, user)
            assert update.keys() == {rooms.form.progress} and NOT_YOURS in update[rooms.form.progress], lost


# --- How green a job is -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unmerged(rooms: Rooms, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Other weights, in a pull request that nobody has merged."""
    folder = save_one(tmp_path_factory.mktemp("in") / "other", random_tensors(seed=9))
    return f"{MODEL}@{propose(rooms.hub, folder, MODEL)}"


def done(rooms: Rooms, source: str, name: str, check: bool = False) -> str:
    """The id of a job of alice that is done, as the desk keeps it once the job has run."""
    here: Any = {"endpoint": rooms.hub.address, "token": TOKEN}
    events = list(job.shard(source, name, "60kB", **here))
    report = events[-1]
    assert isinstance(report, Report)
    pinned = f"{report.source.repo_id}@{report.source.revision}"
    copy = f"{name}@{rooms.hub.api().model_info(name).sha}"
    unreached = report.verification.unreached
    request = JobRequest(pinned, name, Options("60kB"))
    if check:
        events = list(job.verify(source, name, **here))
        assert isinstance(events[-1], Verified)
        request = replace(request, destination=copy, kind="verify")
    record = JobRecord(new_job_id(name), "alice", request, 240_000, 1.0, "done", 2.0, 3.0, result=copy)
    rooms.desk._shelf.save(replace(record, unreached=unreached))
    outcome, kind = Outcome("identical", 14), cast(Any, request.kind)
    verdict = Verdict(rooms.hub.address, copy, _read_for(report), kind, outcome, 3.0, "0.1.0", unreached=unreached)
    rooms.desk.results.verdicts.add(verdict)
    for event in events:
        rooms.desk._shelf.note(record.id, event_json(event), 2.0)
    return record.id


def states(html: str) -> list[str]:
    """The classes of the headlines in a panel."""
    return re.findall(r'<h2 class="(state[^"]*)"', html)


@pytest.mark.parametrize("check", [False, True], ids=["copy", "check"])
def test_a_job_that_is_done_is_green_unless_its_weights_are_of_a_commit_that_nobody_merged(
    rooms: Rooms, running: Running, unmerged: str, check: bool
) -> None:
    kind = "check" if check else "copy"
    for source, name in ((MODEL, f"alice/{kind}-merged"), (unmerged, f"alice/{kind}-unmerged")):
        update = whole(running.follow(done(rooms, source, name, check), asks("alice"), None))
        shown = update[rooms.form.result]
        (state,) = states(shown)
        assert told(update, rooms.form.run)["visible"] is False and "<details" in update[rooms.form.past]
        assert check or update[rooms.form.query] == f"?result={update[rooms.form.wanted]}"
        assert ("good" in state) == (source == MODEL), state
        assert check or f'data-trust="{"made-here" if source == MODEL else "unreached"}"' in shown
        assert check or ("No known branch or tag of bob/model contains" in shown) == (source == unmerged)
    listed = jobs_panel([record for record in rooms.desk.jobs_of("alice") if f"{kind}-unmerged" in record.id])
    assert "a commit on no known branch" in listed and 'class="badge good"' not in listed


# --- Results ------------------------------------------------------------------------------------------------


def test_the_link_of_a_result_leads_to_the_commit_that_was_named(rooms: Rooms) -> None:
    form, name, counts = rooms.form, "alice/linked", dict[str, int]()
    for size, count in (("60kB", 5), ("100kB", 3)):
        shard(rooms.hub, MODEL, name, size)
        counts[f"{name}@{rooms.hub.api().model_info(name).sha}"] = count
    for site, address in ((rooms.site, "http://127.0.0.1:7860/"), (rooms.space, "https://huggingface.co/spaces/")):
        for wanted, count in (*counts.items(), (name, 3)):
            update = whole(Showing(rooms.desk, site, form).show(wanted, asks(), None))
            (link,) = set(re.findall(rf"{re.escape(address)}[^<\"]*\?result=([^<\"\s]+)", update[form.result_details]))
            assert link == wanted
            assert f"model-00001-of-0000{count}.safetensors" in update[form.result_details].replace("<wbr>", "")
            assert states(update[form.result]) == ["state "]  # it fits, and nobody here has read it
    update = whole(Showing(rooms.desk, rooms.site, form).show(f"{rooms.hub.address}/{name}", asks(), None))
    assert f"?result={name}<" in update[form.result_details]
    update = whole(Showing(rooms.desk, rooms.site, form).show("", asks(), None))
    assert (update[form.result], update[form.result_map], update[form.result_details]) == ("", "", "")


Document = dict[str, Any]


def forge(rooms: Rooms, name: str, change: Callable[[Document], object]) -> str:
    """Make a result in `name`, of which somebody has changed the report."""
    shard(rooms.hub, MODEL, name)
    report = json.loads(Path(rooms.hub.api().hf_hub_download(name, "sharding_report.json")).read_text())
    change(report)
    content = json.dumps(report).encode()
    rooms.hub.api().upload_file(repo_id=name, path_or_fileobj=content, path_in_repo="sharding_report.json")
    return name


def show(rooms: Rooms, name: str, user: str = "") -> list[Update]:
    """What a result link shows on a Space, one after another."""
    updates: list[Update] = []

    async def watch() -> None:
        async for update in Showing(rooms.desk, rooms.space, rooms.form).show(name, asks(user), None):
            panels = (rooms.form.result, rooms.form.result_details)
            plain = {panel: update[panel].replace("<wbr>", "") for panel in panels if panel in update}
            updates.append(update | plain)

    in_a_loop(watch())
    return updates


def levels(rooms: Rooms, updates: list[Update]) -> list[str]:
    return [level for update in updates for level in re.findall('data-trust="([^"]*)"', update[rooms.form.result])]


def test_what_a_report_claims_is_shown_only_where_the_headers_take_long(
    rooms: Rooms, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard(rooms.hub, MODEL, "alice/first-claims")
    for seconds, shown in ((60, ["fits"]), (0, ["claims", "fits"])):
        monkeypatch.setattr("sharding.page.results.SOON_SECONDS", seconds)
        assert levels(rooms, show(rooms, "alice/first-claims")) == shown


LIES: dict[str, Callable[[Document], object]] = {
    "a shard is another": lambda report: report["shards"][0].update(sha256="0" * 64),
    "of another model": lambda report: report["source"].update(repo_id="bob/another"),
    "another architecture": lambda report: report["source"].update(architecture="EvilForCausalLM"),
    "of itself": lambda report: report["source"].update(repo_id="alice/lie-3"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_report_that_the_repos_contradict_is_red_and_nothing_of_it_is_shown(rooms: Rooms, lie: str) -> None:
    name = f"alice/lie-{[*LIES].index(lie)}"
    if lie == "of another model":
        rooms.push("bob/another", random_tensors(3))

    def tell(report: Document) -> None:
        LIES[lie](report)
        report["source"]["revision"] = rooms.hub.api().model_info(report["source"]["repo_id"]).sha

    forge(rooms, name, tell)
    update = show(rooms, name)[-1]
    assert "does not match the repos, so it is not shown" in update[rooms.form.result]
    assert "data-trust" not in update[rooms.form.result] and "identical" not in update[rooms.form.result]
    _, trust = rooms.desk.results.judge(name, None)
    assert trust.level == "contradicted" and unescape(update[rooms.form.result]).find(trust.reasons[0]) > 0


def test_what_cannot_be_compared_only_claims(rooms: Rooms) -> None:
    rooms.push("alice/hidden", random_tensors(3), private=True)
    shard(rooms.hub, "alice/hidden", "alice/shown", private=False, confirmed=True)
    updates = show(rooms, "alice/shown")
    assert levels(rooms, updates)[-1] == "claims" and states(updates[-1][rooms.form.result]) == ["state "]
    assert "Claims to be alice/hidden@" in updates[-1][rooms.form.result]
    assert "Its source cannot be compared" in updates[-1][rooms.form.result]
    assert not told(updates[-1], rooms.form.check)["visible"]
    assert levels(rooms, show(rooms, "alice/shown", "alice"))[-1] == "fits"


@promise("docs/security.md#make-a-folder-look-like-a")
def test_a_folder_with_the_name_of_a_famous_repo_is_not_shown_as_that_repo(rooms: Rooms) -> None:
    """With the whole name the report is refused: no folder has it. The last part may be one's."""

    def of_folder(name: str) -> Callable[[Document], object]:
        return lambda report: report["source"].update(store="folder", repo_id=name, revision="0" * 40)

    form, update = rooms.form, show(rooms, forge(rooms, "alice/famous", of_folder("Llama-3.1-8B")))[-1]
    assert "Claims to be the folder Llama-3.1-8B" in update[form.result]
    assert "from the folder Llama-3.1-8B in the state" in " ".join(update[form.result_details].split())
    assert "Llama-3.1-8B@" not in update[form.result] + update[form.result_details]
    update = show(rooms, forge(rooms, "alice/more-famous", of_folder("meta-llama/Llama-3.1-8B")))[-1]
    assert "is not a report of this tool" in update[form.result]
    assert "meta-llama" not in "".join(re.findall('href="[^"]*"', update[form.result]))


def test_three_thousand_remarks_are_counted(rooms: Rooms) -> None:
    def remark(report: Document) -> None:
        report["plan"]["findings"] = [{"level": "warning", "code": "x", "message": "Look at me.", "hint": ""}] * 3001
        files = [report["shards"][0]["file"]]
        tied = {"tensor": "x", "file": files[0], "used_as": ["y"]}
        stage = {"blocks": ["0"], "others": [], "files": files, "bytes": 1, "also_needs": [tied] * 20}
        report["plan"]["stages"] = [stage] * 900

    update = show(rooms, forge(rooms, "alice/remarks", remark))[-1]
    assert levels(rooms, [update]) == ["fits"] and "836 more" in update[rooms.form.result_details]
    assert update[rooms.form.result_details].count("<tr") < 100


def test_a_repo_without_a_result_leads_to_its_plan(rooms: Rooms) -> None:
    (update,) = show(rooms, MODEL)
    assert "there is no result to show" in update[rooms.form.result]
    assert f'href="?repo={MODEL}">Plan this model</a>' in update[rooms.form.result]


def test_what_does_not_load_leads_to_what_mends_it_and_the_copy_names_its_original(rooms: Rooms) -> None:
    mine, original, mended = "bob/saved", "bob/published", "alice/mended"
    for name, start in ((mine, "module."), (original, "")):
        rooms.push(name, {start + key: tensor for key, tensor in random_tensors().items()})
        config = json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}).encode()
        rooms.hub.api("hf_bob").upload_file(repo_id=name, path_or_fileobj=config, path_in_repo="config.json")
    comparing = Comparing(rooms.desk, rooms.site, rooms.form)
    shown = comparing.show(original, mine, asks(), None)[rooms.form.likeness]
    assert "Every name has 'module.' in front." in unescape(shown)
    (link,) = re.findall('href="[?]([^"]+)">Make it load again', shown)
    wish = read_wish(dict(parse_qsl(unescape(link))))
    assert [name.partition("@")[0] for name in (wish.repo, wish.options.like)] == [mine, original]
    shard(rooms.hub, wish.repo, mended, replace(wish.options, max_shard_size="60kB"))
    shown = comparing.show(mine, mended, asks(), None)[rooms.form.likeness]
    assert f"says that {original}@" in shown and f'href="?result={mended}' in shown


def test_a_result_is_read_whole_on_a_click_by_who_has_a_login(rooms: Rooms, running: Running) -> None:
    form, name = rooms.form, "alice/to-check"
    shard(rooms.hub, MODEL, name)
    here, on_space = (Showing(rooms.desk, site, form) for site in (rooms.site, rooms.space))
    offered = told(whole(here.show(name, asks("bob"), None)), form.check)
    assert offered["visible"]
    shown = whole(on_space.show(name, asks(), None))
    assert not told(shown, form.check)["visible"] and "Sign in to check every byte" in shown[form.check_message]
    assert "needs a login" in on_space.check(name, asks(), None)[form.check_message]
    assert rooms.waiting("alice") == rooms.waiting("bob") == []
    taken = here.check(name, asks("bob"), None)
    (request,) = rooms.waiting("bob")
    copy, source = rooms.hub.api().model_info(name).sha, rooms.hub.api().model_info(MODEL).sha
    assert (request.kind, request.destination) == ("verify", f"{name}@{copy}")
    assert request.source == f"{MODEL}@{source}" and isinstance(taken[form.check], gr.Button)


def test_what_loading_costs_is_told_only_to_those_who_can_read_both(
    rooms: Rooms, monkeypatch: pytest.MonkeyPatch
) -> None:
    rooms.push("alice/hidden-source", private=True)
    shard(rooms.hub, "alice/hidden-source", "alice/of-hidden")
    rooms.hub.api().update_repo_settings("alice/of-hidden", private=False)
    asked = list[JobRequest]()
    monkeypatch.setattr(type(rooms.desk), "findings", lambda _, request: asked.append(request))
    for by in (None, login("alice")):
        assert not asked
        whole(Showing(rooms.desk, rooms.space, rooms.form).show("alice/of-hidden", asks(), by))
    assert [request.kind for request in asked] == ["compare"]
