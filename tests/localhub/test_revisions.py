"""Trees, history, branches and tags."""

import hashlib
from collections.abc import Callable

import pytest
from huggingface_hub import CommitOperationAdd
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, RevisionNotFoundError

from tests.localhub.conftest import Server, payload


@pytest.fixture
def forest(hub: Server, repo: str) -> str:
    """A repo with folders and, at four items a page, several pages of files."""
    names = [f"f{n}.txt" for n in range(7)] + ["a/b/c.txt", "a/b/d.txt", "a/e.txt", "ab/f.txt"]
    hub.api().create_commit(repo, [CommitOperationAdd(name, name.encode()) for name in names], commit_message="plant")
    return repo


def test_every_page_of_a_list_is_reached(hub: Server, forest: str) -> None:
    assert len(hub.api().list_repo_files(forest)) == 12
    flat = {item.path for item in hub.api().list_repo_tree(forest)}
    assert flat == {".gitattributes", "a", "ab", *(f"f{n}.txt" for n in range(7))}
    reply = hub.ask("GET", f"/api/models/{forest}/tree/main")
    assert len(reply.json()) == 4
    assert 'rel="next"' in reply.headers["link"]


def test_a_folder_is_listed_alone_or_with_all_below_it(hub: Server, forest: str) -> None:
    api = hub.api()
    assert [item.path for item in api.list_repo_tree(forest, "a")] == ["a/b", "a/e.txt"]
    paths = [item.path for item in api.list_repo_tree(forest, "a", recursive=True)]
    assert paths == ["a/b", "a/b/c.txt", "a/b/d.txt", "a/e.txt"]
    with pytest.raises(EntryNotFoundError):
        list(api.list_repo_tree(forest, "missing"))


def test_paths_are_described_with_the_commit_that_last_touched_them_missing_ones_not(hub: Server, forest: str) -> None:
    api = hub.api()
    hub.put(forest, "a/b/c.txt", b"new", commit_message="water")
    found = api.get_paths_info(forest, ["a", "f1.txt", "a/b/c.txt", ".gitattributes", "missing"], expand=True)
    assert [item.path for item in found] == ["a", "f1.txt", "a/b/c.txt", ".gitattributes"]
    assert [item.last_commit.title for item in found] == ["water", "plant", "water", "initial commit"]
    assert found[1].blob_id == hashlib.sha1(b"blob 6\0f1.txt").hexdigest()  # as git has it


def test_commits_are_listed_newest_first_over_all_pages(hub: Server, repo: str) -> None:
    for n in range(6):
        hub.put(repo, "a", b"%d" % n, commit_message=f"number {n}")
    titles = [commit.title for commit in hub.api().list_repo_commits(repo)]
    assert titles == [*(f"number {n}" for n in reversed(range(6))), "initial commit"]


def test_as_many_commits_come_at_once_as_are_asked_for(served: Callable[..., Server]) -> None:
    hub = served()
    hub.api().create_repo("alice/long")
    for n in range(60):
        file = {"path": "a", "content": f"{n}", "encoding": "utf-8"}
        assert hub.commit("alice/long", [{"key": "file", "value": file}]).status == 200
    path = "/api/models/alice/long/commits/main"
    lengths = {query: len(hub.ask("GET", path + query).json()) for query in ("", "?limit=5", "?limit=1000")}
    assert lengths == {"": 50, "?limit=5": 5, "?limit=1000": 61}
    assert "limit=5" in hub.ask("GET", f"{path}?limit=5").headers["link"]
    assert {hub.ask("GET", f"{path}?limit={odd}").status for odd in ("0", "-1", "x", "1001")} == {400}


def test_a_revision_is_a_branch_a_tag_or_a_commit(hub: Server, repo: str) -> None:
    api = hub.api()
    first = api.model_info(repo).sha
    api.create_branch(repo, branch="feature/one", revision=first)
    api.create_tag(repo, tag="v1", tag_message="the first")
    last = hub.put(repo, "x")
    shas = {r: api.model_info(repo, revision=r).sha for r in ("feature/one", "v1", first, first[:7], "main", last)}
    assert shas == {"feature/one": first, "v1": first, first: first, first[:7]: first, "main": last, last: last}
    refs = api.list_repo_refs(repo)
    assert {b.name: b.target_commit for b in refs.branches} == {"main": last, "feature/one": first}
    assert {t.ref: t.target_commit for t in refs.tags} == {"refs/tags/v1": first}
    for wrong in ("v2", "0" * 40, first[:6]):
        with pytest.raises(RevisionNotFoundError):
            api.model_info(repo, revision=wrong)


def test_branches_come_and_go_and_no_name_is_given_twice(hub: Server, repo: str) -> None:
    api = hub.api()
    api.create_branch(repo, branch="b")
    api.create_branch(repo, branch="b", exist_ok=True)
    api.create_tag(repo, tag="t")
    for again in (lambda: api.create_branch(repo, branch="b"), lambda: api.create_tag(repo, tag="t")):
        with pytest.raises(HfHubHTTPError) as caught:
            again()
        assert caught.value.response.status_code == 409
    api.delete_branch(repo, branch="b")
    refs = api.list_repo_refs(repo)
    assert [branch.name for branch in refs.branches] == ["main"]
    assert [tag.name for tag in refs.tags] == ["t"]
    with pytest.raises(HfHubHTTPError):
        api.delete_branch(repo, branch="main")
    with pytest.raises(RevisionNotFoundError):
        api.delete_branch(repo, branch="b")


@pytest.mark.parametrize("kind", ["dataset", "space"])
def test_the_other_kinds_of_repo_work_alike(hub: Server, kind: str) -> None:
    api = hub.api()
    repo_id = f"alice/some-{kind}"
    api.create_repo(repo_id, repo_type=kind, space_sdk="gradio" if kind == "space" else None)
    hub.put(repo_id, "w.bin", payload(70_000, 9), repo_type=kind)
    assert set(api.list_repo_files(repo_id, repo_type=kind)) == {".gitattributes", "w.bin"}
    assert hub.ask("GET", f"/{kind}s/{repo_id}/resolve/main/w.bin").body == payload(70_000, 9)
    assert not api.repo_exists(repo_id)
