"""Who may do what."""

from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

from tests.localhub.conftest import NUMBERS, Server, payload


def status_of(action: Callable[[], object]) -> int:
    try:
        action()
    except HfHubHTTPError as error:
        return error.response.status_code
    return 200


def test_each_token_says_who_it_is(hub: Server) -> None:
    for token, role in (("hf_alice", "write"), ("hf_alice_read", "read")):
        me = hub.api(token).whoami()
        assert (me["name"], me["auth"]["accessToken"]["role"]) == ("alice", role)
        assert [org["name"] for org in me["orgs"]] == ["acme"]
    for token in ("hf_nobody", "hf_acme", "nonsense", "hf_alice_read_read", ""):
        reply = hub.ask("GET", "/api/whoami-v2", token=None, Authorization=f"Bearer {token}")
        assert reply.status == 401
        assert reply.headers["x-error-message"] == "Invalid credentials in Authorization header"
    assert hub.ask("GET", "/api/whoami-v2", token=None).status == 401


def test_a_private_repo_does_not_exist_for_others(hub: Server, repo: str) -> None:
    api = hub.api()
    hub.put(repo, "x.txt")
    api.update_repo_settings(repo, visibility="private")
    for path in (f"/api/models/{repo}", f"/api/models/{repo}/tree/main", f"/{repo}/resolve/main/x.txt"):
        for missing in (path, path.replace(repo, "alice/never-was")):
            signed_in, anonymous = hub.ask("GET", missing, token="hf_bob"), hub.ask("GET", missing, token=None)
            assert (signed_in.status, signed_in.headers["x-error-code"]) == (404, "RepoNotFound")
            assert (anonymous.status, anonymous.headers["x-error-code"]) == (401, "RepoNotFound")
        assert hub.ask("GET", path, token="hf_alice_read").status == 200
    assert repo not in {model.id for model in hub.api("hf_bob").list_models(author="alice")}
    assert repo in {model.id for model in api.list_models(author="alice")}
    with pytest.raises(RepositoryNotFoundError):
        hub.api("hf_bob").model_info(repo)
    assert hub.ask("GET", f"/{repo}", token=None).status == 404


@pytest.mark.parametrize("token", ["hf_alice_read", "hf_bob"])
def test_a_token_that_may_only_read_and_somebody_else_write_nothing(hub: Server, repo: str, token: str) -> None:
    api = hub.api(token)
    for write in (
        lambda: hub.put(repo, "x.bin", token=token),
        lambda: api.create_repo("alice/by-another"),
        lambda: api.delete_repo(repo),
        lambda: api.create_branch(repo, branch="b"),
        lambda: api.update_repo_settings(repo, visibility="private"),
    ):
        assert status_of(write) == 403
    answers = {"auth-check": 200, "auth-check/write": 403, "xet-write-token/main": 403}
    assert {path: hub.ask("GET", f"/api/models/{repo}/{path}", token=token).status for path in answers} == answers
    assert hub.ask("POST", f"/api/models/{repo}/commit/main", b"{}", token=None).status == 401
    assert hub.ask("POST", "/api/repos/create", {"name": "x"}, token=None).status == 401


def test_members_write_to_their_organisation(hub: Server) -> None:
    hub.api("hf_bob").create_repo("acme/shared")
    hub.put("acme/shared", "x")
    assert status_of(lambda: hub.api("hf_carol").create_repo("acme/other")) == 403


def test_a_name_is_taken_once_whatever_its_case(hub: Server, repo: str) -> None:
    reply = hub.ask("POST", "/api/repos/create", {"name": repo.split("/")[1].upper()})
    assert (reply.status, reply.json()["url"]) == (409, f"{hub.address}/{repo}")
    assert hub.api().create_repo(repo, exist_ok=True).repo_id == repo
    for name in ("", "a b", "-a", "a--b", "a..b", "a.git", "x" * 97, "ü", "a/b"):
        assert hub.ask("POST", "/api/repos/create", {"name": name}).status == 400


def test_a_repo_is_renamed_and_deleted(hub: Server, repo: str) -> None:
    api = hub.api()
    api.move_repo(repo, f"{repo}-moved")
    assert api.repo_exists(f"{repo}-moved")
    assert not api.repo_exists(repo)
    api.delete_repo(f"{repo}-moved")
    assert not api.repo_exists(f"{repo}-moved")
    assert status_of(lambda: api.delete_repo(repo)) == 404


def test_a_gated_repo_lists_its_files_and_gives_them_to_owners_alone(hub: Server, repo: str, tmp_path: Path) -> None:
    hub.put(repo, "x.txt")
    hub.api().update_repo_settings(repo, gated="auto")
    bob = hub.api("hf_bob")
    assert bob.model_info(repo).gated == "auto"
    assert "x.txt" in bob.list_repo_files(repo)
    for token, status in (("hf_bob", 403), (None, 401)):
        reply = hub.ask("GET", f"/{repo}/resolve/main/x.txt", token=token, Range="bytes=0-0")
        assert (reply.status, reply.headers["x-error-code"]) == (status, "GatedRepo")
    with pytest.raises(GatedRepoError):
        bob.hf_hub_download(repo, "x.txt", cache_dir=tmp_path)
    assert hub.ask("GET", f"/{repo}/resolve/main/x.txt").status == 200


CREATE, READ, READ_GATED, READ_OWN = "create", "read private", "read gated", "read what the app made"
WRITE, WRITE_OWN, SETTINGS, DELETE = "write", "write what the app made", "settings", "delete"


@pytest.mark.parametrize(
    ("scope", "allowed"),
    [
        ("", set()),
        ("read-repos", {READ, READ_OWN, READ_GATED}),
        ("gated-repos", {READ_GATED}),
        ("contribute-repos", {CREATE, READ_OWN, WRITE_OWN}),
        ("write-repos", {READ, READ_OWN, READ_GATED, WRITE, WRITE_OWN}),
        ("manage-repos", {CREATE, READ, READ_OWN, READ_GATED, WRITE, WRITE_OWN, SETTINGS, DELETE}),
        ("contribute-repos gated-repos", {CREATE, READ_OWN, WRITE_OWN, READ_GATED}),
    ],
)
def test_an_application_does_what_its_scopes_say_and_no_more(hub: Server, scope: str, allowed: set[str]) -> None:
    n = next(NUMBERS)
    private, made, gated = f"alice/private-{n}", f"alice/made-{n}", f"alice/gated-{n}"
    hub.api().create_repo(private, private=True)
    app = hub.login("alice", "openid contribute-repos", app=f"app-{n}")["access_token"]
    hub.api(app).create_repo(made, private=True)
    hub.api().create_repo(gated)
    hub.api().update_repo_settings(gated, gated="auto")
    token = hub.login("alice", f"openid profile {scope}", app=f"app-{n}")["access_token"]

    def ask(method: str, path: str, body: object = None) -> int:
        return hub.ask(method, path, body, token=token).status

    def branch(repo: str) -> int:
        return ask("POST", f"/api/models/{repo}/branch/b-{next(NUMBERS)}", {})

    statuses = {
        CREATE: ask("POST", "/api/repos/create", {"name": f"new-{n}"}),
        READ: ask("GET", f"/{private}/resolve/main/.gitattributes"),
        READ_GATED: ask("GET", f"/{gated}/resolve/main/.gitattributes"),
        READ_OWN: ask("GET", f"/{made}/resolve/main/.gitattributes"),
        WRITE: branch(private),
        WRITE_OWN: branch(made),
        SETTINGS: ask("PUT", f"/api/models/{private}/settings", {"visibility": "private"}),
        DELETE: ask("DELETE", "/api/repos/delete", {"name": private.split("/")[1]}),
    }
    assert {action for action, status in statuses.items() if status == 200} == allowed
    assert {status for action, status in statuses.items() if action not in allowed} <= {403}
    assert hub.api(token).whoami()["auth"]["scopes"] == sorted(f"openid profile {scope}".split())


def test_what_one_application_made_is_closed_to_another(hub: Server) -> None:
    n = next(NUMBERS)
    first, second = (
        hub.login("alice", "openid contribute-repos", app=app)["access_token"] for app in (f"one-{n}", f"two-{n}")
    )
    hub.api(first).create_repo(f"alice/of-one-{n}")
    assert status_of(lambda: hub.api(second).create_branch(f"alice/of-one-{n}", branch="b")) == 403
    hub.api(first).create_branch(f"alice/of-one-{n}", branch="b")


def test_a_full_namespace_takes_no_more(served: Callable[..., Server], script: Callable[..., str]) -> None:
    small = served("--quota", "250000")
    small.api().create_repo("alice/full")
    for seed in range(2):
        small.put("alice/full", f"{seed}.bin", payload(100_000, seed))
    with pytest.raises(HfHubHTTPError, match="Storage limit reached") as caught:
        small.put("alice/full", "2.bin", payload(100_000, 2))
    assert caught.value.response.status_code == 403
    over_lfs = """
try: api.upload_file(path_or_fileobj=bytes(60_000), path_in_repo="3.bin", repo_id="alice/full")
except Exception as error: print(error)
"""
    assert "Storage limit reached" in script(small, over_lfs)
    small.put("alice/full", "4.bin", payload(50_000, 4))
    assert small.ask("GET", "/api/models/alice/full/xet-write-token/main").status == 403
    assert "2.bin" not in small.api().list_repo_files("alice/full")
    small.api("hf_bob").create_repo("bob/empty")
