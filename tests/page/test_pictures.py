"""The badge and the picture of a result: what they say, and to whom."""

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from sharding.core.limits import CACHED_SECONDS
from sharding.core.text import unreached_sentence
from sharding.core.verification import Mismatch
from sharding.drawing.certificate import paint_certificate
from sharding.page.results import Showing
from sharding.page.serving.guard import guarded
from sharding.page.serving.pictures import Judge, Pictures, certificate_of
from sharding.page.site import BADGE, CERTIFICATE, Site
from sharding.report.files import Result
from sharding.verify.trust import Level, Trust
from tests.conftest import in_a_loop, random_tensors
from tests.hubs import download, propose, push, shard
from tests.page.rooms import Rooms, asks, login, rooms_over, told, whole
from tests.promises import promise

MODEL, COPY, HIDDEN, FORGED = "bob/model", "alice/copy", "alice/hidden-copy", "bob/forged"
MISSING, UNREPORTED = "alice/nothing-here", MODEL
PATHS = ("/badge.svg", "/certificate.png")
ORIGIN = "https://carol-shard-my-repo.hf.space"
FOREIGN = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
"""What a browser sends that shows a picture on another site."""


@pytest.fixture(scope="module")
def rooms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rooms]:
    with rooms_over(tmp_path_factory.mktemp("rooms")) as rooms, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sharding.page.serving.pictures.paint_certificate", lambda shown: repr(shown).encode())
        rooms.push(MODEL, random_tensors(3))
        shard(rooms.hub, MODEL, COPY)
        shard(rooms.hub, MODEL, HIDDEN, private=True)
        forged = download(rooms.hub, COPY, tmp_path_factory.mktemp("out") / "forged")
        forge(forged)
        push(rooms.hub, forged, FORGED, "hf_bob")
        yield rooms


def forge(folder: Path) -> None:
    """Have a report name another model as its source, and a shard with another hash."""
    path = folder / "sharding_report.json"
    report = json.loads(path.read_text())
    report["source"]["repo_id"] = "famous/model"
    report["shards"][0]["sha256"] = "0" * 64
    path.write_text(json.dumps(report))


@pytest.fixture(scope="module")
def result(rooms: Rooms) -> Result:
    return rooms.desk.results.judge(COPY, None)[0]


async def page(scope: Any, receive: Any, send: Any) -> None:
    await PlainTextResponse("the page")(scope, receive, send)


def asking(
    judge: Judge,
    work: Callable[[httpx.AsyncClient], Coroutine[Any, Any, Any]],
    clock: Callable[[], float] = lambda: 0.0,
) -> Any:
    """Return what `work` returns of the pictures of what `judge` says."""

    async def asked() -> Any:
        with closing(Pictures(page, judge, clock)) as app:
            async with client_of(app) as client:
                return await work(client)

    return in_a_loop(asked())


def client_of(app: ASGIApp) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://page")


def ask(judge: Judge, path: str, place: str, method: str = "GET", **headers: str) -> httpx.Response:
    async def work(client: httpx.AsyncClient) -> httpx.Response:
        return await client.request(method, path, params={"result": place}, headers=headers)

    answer: httpx.Response = asking(judge, work)
    return answer


def both(rooms: Rooms, place: str, method: str = "GET", **headers: str) -> list[httpx.Response]:
    """The badge and the picture of a result."""
    return [ask(rooms.desk.results.judge, path, place, method, **headers) for path in PATHS]


def verdict(badge: httpx.Response) -> str:
    """Return the right half of a badge."""
    assert badge.headers["Content-Type"] == "image/svg+xml"
    return [text.text or "" for text in ET.fromstring(badge.text).iter("{http://www.w3.org/2000/svg}text")][1]


# --- What they say ------------------------------------------------------------------------------------------


def test_a_result_has_a_badge_and_a_picture_that_are_kept_for_as_long_as_headers_and_run_no_script(
    rooms: Rooms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharding.page.serving.pictures.paint_certificate", paint_certificate)
    badge, picture = both(rooms, COPY)
    assert (badge.status_code, verdict(badge)) == (200, "structure matches")
    assert (picture.status_code, picture.headers["Content-Type"]) == (200, "image/png")
    assert Image.open(BytesIO(picture.content)).size == (1200, 630)
    for answer in (badge, picture):
        assert answer.headers["Cache-Control"] == f"public, max-age={CACHED_SECONDS}"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert int(answer.headers["Content-Length"]) == len(answer.content)
    assert "default-src 'none'" in badge.headers["Content-Security-Policy"]
    assert "sandbox" in badge.headers["Content-Security-Policy"]
    assert both(rooms, f"https://huggingface.co/{COPY}")[0].text == badge.text


def test_a_revision_that_was_asked_for_is_named_on_the_badge_and_on_the_picture(rooms: Rooms) -> None:
    """So what is true of an old commit is not taken for what main is now."""
    commit = str(rooms.hub.api().model_info(COPY).sha)
    for revision, shown in ((commit, commit[:12]), ("main", "main")):
        badge, picture = both(rooms, f"{COPY}@{revision}")
        assert verdict(badge) == f"structure matches @{shown}"
        assert ET.fromstring(badge.text).get("aria-label") == f"Shard My Repo: {COPY}@{shown}, structure matches"
        assert picture.content != both(rooms, COPY)[1].content
        assert certificate_of(*rooms.desk.results.judge(COPY, None), revision).tail == f"@{shown}"


@promise("docs/security.md#get-a-badge-or-a-picture")
def test_nobody_gets_a_verdict_on_a_repo_with_a_pull_request(rooms: Rooms, tmp_path: Path) -> None:
    """Neither a red one nor any other. The repo's own is as before."""
    rooms.hub.api("hf_alice").create_repo(name := "alice/target")
    good = propose(rooms.hub, download(rooms.hub, COPY, tmp_path / "good"), name)
    bad = propose(rooms.hub, download(rooms.hub, FORGED, tmp_path / "bad"), name)
    assert rooms.desk.results.judge(f"{name}@{bad}", None)[1].level == "contradicted"
    rooms.hub.api("hf_alice").upload_folder(repo_id=name, folder_path=tmp_path / "good")
    missing = [(404, answer.headers, answer.content) for answer in both(rooms, MISSING)]
    for revision in (good, bad, "refs/pr/1", "refs/pr/2"):
        answers = both(rooms, f"{name}@{revision}")
        assert [(answer.status_code, answer.headers, answer.content) for answer in answers] == missing, revision
    assert [answer.status_code for answer in both(rooms, name)] == [200, 200]


@promise("docs/security.md#get-a-badge-or-a-picture")
def test_only_what_is_at_main_is_ever_red(rooms: Rooms, result: Result) -> None:
    """A commit that contradicts its report may be of a pull request: nothing of the trust in it says otherwise."""
    lost = (unreached_sentence(f"{COPY}@{result.revision}"),)
    for trust, revision, status in (
        (Trust("contradicted", ()), "", 200),
        (Trust("contradicted", ()), "@main", 200),
        (Trust("contradicted", ()), f"@{result.revision}", 404),
        (Trust("unreached", lost), f"@{result.revision}", 404),
        (Trust("unreached", (unreached_sentence("bob/model@1"),)), f"@{result.revision}", 200),  # only the source is
    ):
        answer = ask(lambda place, token, trust=trust: (result, trust), "/badge.svg", COPY + revision)  # type: ignore[misc]
        assert answer.status_code == status, (trust, revision)


def test_a_commit_has_one_badge_and_no_other_for_its_shortened_ids(result: Result) -> None:
    commit, judge = result.revision, lambda place, token: (result, Trust("fits", ()))
    names = (commit, commit[:7], commit[:39], "v2")
    assert [ask(judge, "/badge.svg", f"{COPY}@{name}").status_code for name in names] == [200, 404, 404, 200]


def test_head_is_answered_as_get_but_without_a_body(rooms: Rooms) -> None:
    for place in (COPY, MISSING):
        for got, head in zip(both(rooms, place), both(rooms, place, "HEAD"), strict=True):
            assert (head.status_code, head.headers, head.content, bool(got.content)) == (
                *(got.status_code, got.headers, b"", True),
            )


def test_a_result_that_contradicts_the_repos_is_red_and_nothing_of_its_report_is_repeated(rooms: Rooms) -> None:
    assert verdict(both(rooms, FORGED)[0]) == "does not match"
    certificate = certificate_of(*rooms.desk.results.judge(FORGED, None))
    assert (certificate.tone, certificate.steps, certificate.facts) == ("bad", (), ())
    assert "famous" not in repr(certificate)


@pytest.mark.parametrize(
    ("level", "tone", "reached"),
    [
        *(("made-here", "good", 3), ("read-now", "good", 3), ("stated", "plain", 3)),
        *(("fits", "plain", 2), ("unreached", "plain", 1)),
    ],
)
def test_only_what_was_read_here_is_green(result: Result, level: Level, tone: str, reached: int) -> None:
    certificate = certificate_of(result, Trust(level, ()))
    assert (certificate.copy, certificate.tone) == (COPY, tone)
    steps = 4 if level == "stated" else 3
    assert [step.is_reached for step in certificate.steps] == [number < reached for number in range(steps)]


def test_what_was_read_here_is_not_green_if_something_else_was_not(result: Result) -> None:
    caveat = certificate_of(result, Trust("read-now", (), ("The copy holds 1 more weight file.",)))
    unstated = replace(result.report, verification=replace(result.report.verification, unstated=True))
    unsure = certificate_of(replace(result, report=unstated), Trust("made-here", ()))
    for certificate in (caveat, unsure):
        assert certificate.tone == "plain"
        assert [step.is_reached for step in certificate.steps] == [True, True, False]
    assert caveat.note == "The copy holds 1 more weight file."


def test_a_report_that_names_differences_is_red_even_if_it_fits(result: Result) -> None:
    proof = replace(result.report.verification, mismatches=(Mismatch("a", "its bytes differ"),))
    certificate = certificate_of(replace(result, report=replace(result.report, verification=proof)), Trust("fits", ()))
    assert (certificate.verdict, certificate.tone) == ("does not match", "bad")


# --- To whom ------------------------------------------------------------------------------------------------


@promise("docs/security.md#learn-from-a-badge-whether-a")
def test_a_private_result_a_missing_one_and_none_get_the_same_answer_from_everybody(
    rooms: Rooms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the machine is logged in as the owner, and if the owner asks."""
    monkeypatch.setenv("HF_TOKEN", "hf_alice")
    assert rooms.desk.results.judge(HIDDEN, "hf_alice")[1].level == "fits"  # its headers are known here, to alice
    by_alice = {"Authorization": "Bearer hf_alice", "Cookie": "session=alice"}
    answers = [
        (answer.status_code, sorted(answer.headers.items()), answer.content)
        for place in (HIDDEN, MISSING, UNREPORTED)
        for headers in ({}, by_alice)
        for answer in both(rooms, place, **headers)
    ]
    assert answers[0][0] == 404
    assert answers == [answers[0]] * 12
    assert dict(answers[0][1])["cache-control"] == "no-store"


def test_what_names_no_repo_is_not_judged_and_a_folder_of_this_machine_is_no_result(
    rooms: Rooms, tmp_path: Path
) -> None:

    def judge(place: str, token: str | None) -> tuple[Result, Trust]:
        raise AssertionError(place)

    odd = ("", " ", "not a repo", "s3://bucket/key", "https://evil.example/a/b", "<script>alert(1)</script>", "a/b@..")
    for place in odd:
        for path in PATHS:
            answer = ask(judge, path, place)
            assert (answer.status_code, answer.headers["Content-Type"]) == (404, "text/plain; charset=utf-8"), place
            assert "script" not in answer.text
    for place in (str(tmp_path), ".", "..", "../in", "~"):
        assert ask(rooms.desk.results.judge, "/badge.svg", place).status_code == 404, place


@pytest.mark.parametrize(("origin", "status"), [(ORIGIN, 200), ("", 403)], ids=["space", "home"])
def test_other_sites_show_the_badges_of_a_space_and_none_of_a_page_at_home(
    rooms: Rooms, origin: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody's cookie goes with it, and no other method is answered."""
    monkeypatch.setenv("SPACE_HOST", ORIGIN.removeprefix("https://"))
    site = replace(rooms.space, origin=origin) if origin else rooms.site

    async def statuses() -> list[int]:
        app = Starlette(routes=[Route("/", lambda _: PlainTextResponse("the page"))])
        app.middleware_stack = app.build_middleware_stack()
        headers = {"Host": origin.removeprefix("https://") or "127.0.0.1:7860"}
        async with guarded(site, rooms.desk.results.judge)(app), client_of(app) as client:
            asked = [
                await client.request(method, f"{path}?result={COPY}", headers={**headers, **more})
                for path in PATHS
                for method, more in (("GET", FOREIGN), ("GET", {}), ("HEAD", {}), ("POST", {}))
            ]
            assert (await client.get("/", headers=headers)).text == "the page"
        return [answer.status_code for answer in asked]

    assert in_a_loop(statuses()) == [status, 200, 200, 405] * 2


def test_the_details_of_a_result_offer_its_badge_only_where_other_sites_can_open_it(rooms: Rooms) -> None:
    def details(site: Site) -> str:
        shown = whole(Showing(rooms.desk, site, rooms.form).show(COPY, asks(), login("alice")))
        html: str = told(shown, rooms.form.result_details)["value"]
        return html

    there = details(replace(rooms.space, origin=ORIGIN))
    link = f"https://huggingface.co/spaces/carol/shard-my-repo?result={COPY}"
    assert f"[![Shard My Repo]({ORIGIN}/badge.svg?result={COPY})]({link})" in there
    assert "badge" not in details(rooms.site) and "badge" not in details(rooms.space)


def test_the_origin_of_a_space_is_its_first_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPACE_HOST", "carol-shard-my-repo.hf.space, models.example")
    assert Site.from_environment().drawn(BADGE, COPY) == ""
    monkeypatch.setenv("SPACE_ID", "carol/shard-my-repo")
    assert Site.from_environment().drawn(BADGE, f"{COPY}@v2") == f"{ORIGIN}/badge.svg?result={COPY}@v2"
    assert Site.from_environment().drawn(CERTIFICATE, COPY) == f"{ORIGIN}/certificate.png?result={COPY}"
