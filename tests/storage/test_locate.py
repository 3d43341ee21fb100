"""What somebody has typed means a folder or a repo, and nothing that is the source, a stranger's, or nothing at all."""

import shutil
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote, unquote

import pytest
from huggingface_hub import parse_hf_uri
from huggingface_hub.constants import HF_URI_TYPE_PREFIXES
from hypothesis import given
from hypothesis import strategies as st

from sharding import job
from sharding.core.errors import DestinationError, SourceError, UsageError
from sharding.core.options import Options, Request
from sharding.core.origin import Place
from sharding.storage.hub.client import Hub
from sharding.storage.locate import find_destination, open_inputs
from sharding.storage.names import is_folder, new_repo_id, parse_address
from tests.conftest import listing
from tests.folders import in_cache
from tests.hubs import SOURCE, TOKEN, shard
from tests.inhouse import InHouse

HUB = "https://hub.example"
SHA = "0123456789abcdef0123456789abcdef01234567"


# --- Folders ------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of whoever runs this, which is not the folder that they are in."""
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "here/there").mkdir(parents=True)
    (tmp_path / "here/a file").write_text("x")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path / "here")
    return home


def test_a_tilde_means_ones_home_as_source_and_as_destination(home: Path, folder: Path) -> None:
    (home / "in").symlink_to(folder)
    *_, report = job.shard("~/in", "~/out", "9kB")
    assert (home / "out" / "model.safetensors.index.json").is_file()
    assert job.inspect("~/out").tensors
    assert [path.name for path in Path.cwd().iterdir()] != ["~"] and not Path("~").exists()
    assert report.verification.identical  # type: ignore[union-attr]
    for destination in ("~", "~/out", "~/out/deeper"):
        with pytest.raises(DestinationError, match="lies inside|lies in the destination"):
            list(job.shard("~/out", destination, "9kB"))


FOLDER_NAMES = ("there", "there/", "./not/there", "../not-there", ".", "/not/there", "~", "~/not-there")
NO_FOLDERS = (
    "a file",
    "not-there",
    "owner/name",
    "",
    " ",
    "\t\n",
    "s3://there",
    "https://there",
    "file:/there",
    "a\0b",
)


def test_a_folder_is_what_is_there_as_one_or_begins_like_one(home: Path) -> None:
    assert [text for text in (*FOLDER_NAMES, *NO_FOLDERS, "x" * 5000) if is_folder(text)] == list(FOLDER_NAMES)


@pytest.mark.parametrize("text", ["", " ", "\n\t"])
def test_an_empty_text_is_a_misuse_wherever_it_stands(home: Path, text: str) -> None:
    hub = Hub(HUB, TOKEN)
    for ask in (
        lambda: open_inputs({"model": text}, hub),
        lambda: find_destination(text, hub),
        lambda: parse_address(text, HUB),
        lambda: new_repo_id(text, HUB),
        lambda: job.discard(text),
    ):
        with pytest.raises(UsageError, match="is empty") as refusal:
            ask()  # type: ignore[no-untyped-call]
        assert refusal.value.hint
    assert listing(home.parent) == {"here/a file": b"x"}


# --- Repos and links ----------------------------------------------------------------------------------


RESEMBLING = ("evil-huggingface.co", "huggingface.co.evil.org", "nothf.co", "sub.huggingface.co")


@pytest.mark.parametrize("host", [*RESEMBLING, "hub.example.org", "evilhub.example", "sub.hub.example", "github.com"])
def test_a_host_that_only_resembles_the_hub_is_refused_by_name(host: str) -> None:
    for text in (f"https://{host}/owner/name", f"http://{host}/owner/name/tree/main", f"{host}/owner/name"):
        for family, ask in ((SourceError, parse_address), (DestinationError, new_repo_id)):
            with pytest.raises(family, match=rf"^{host} is not the Hub\.$") as refusal:
                ask(text, HUB)
            assert "owner/name" in refusal.value.hint


@pytest.mark.parametrize("host", ["huggingface.co", "www.huggingface.co", "hf.co", "hub.example"])
def test_a_link_of_the_public_hub_or_of_the_one_in_use_is_taken(host: str) -> None:
    assert parse_address(f"https://{host}/owner/name", HUB) == Place("hub", "owner/name")
    assert parse_address(f"https://{host}/owner/name/tree/v2", HUB) == Place("hub", "owner/name", "v2")
    assert new_repo_id(f"https://{host}/owner/name", HUB) == "owner/name"


@pytest.mark.parametrize("start", ["owner/name@", "hf://owner/name@", "name@"])
def test_a_revision_that_leads_elsewhere_is_refused_also_in_percents(start: str) -> None:
    for revision in (".", "..", "../x", "x/../y", "x/..", "./x", "x/./y"):
        for text in (revision, revision.replace(".", "%2e").replace("/", "%2F")):
            with pytest.raises(SourceError) as refusal:
                parse_address(f"{start}{text}", HUB)
            assert refusal.value.hint


def test_revisions_of_every_ordinary_kind_are_taken() -> None:
    for revision in ("main", "v1.0", "refs/pr/7", "feature%2Fx.y", "..x", "x..y", SHA):
        assert parse_address(f"owner/name@{revision}", HUB) == Place("hub", "owner/name", unquote(revision))
    assert parse_address("hf://owner/name@refs%2Fpr%2F7", HUB) == Place("hub", "owner/name", "refs/pr/7")
    assert parse_address("owner/name@feature/x.y", HUB) == Place("hub", "owner/name", "feature", "x.y/")


@pytest.mark.parametrize("name", ["x.git", "a--b", "a..b", "-x", "x-", ".x", "x.", "x" * 97, "my model!"])
def test_a_name_that_the_hub_does_not_accept_is_refused_with_the_rule(name: str) -> None:
    with pytest.raises(DestinationError, match="does not accept the name") as refusal:
        new_repo_id(f"owner/{name}", HUB)
    assert "start or end with '-' or '.'" in refusal.value.hint and "96" in refusal.value.hint


@pytest.mark.parametrize(
    "page",
    [
        *("discussions", "discussions/1", "commits/main", "settings", "edit/main/config.json"),
        *("resolve/main/model.safetensors?revision=v2", "tree/v2/../lora", "tree/v2/lora?revision=v3"),
        *("blob/v2/a/../config.json", "tree/v2/%2e%2e/lora", "tree/%2e%2e/lora", "tree/v2/a%0Ab"),
    ],
)
def test_a_link_to_another_page_or_that_leads_elsewhere_is_refused(page: str) -> None:
    for family, ask in ((SourceError, parse_address), (DestinationError, new_repo_id)):
        with pytest.raises(family) as refusal:
            ask(f"https://huggingface.co/owner/name/{page}", HUB)
        assert "owner/name" in refusal.value.hint


WITH_FOLDER = ("owner/name/sub", "owner/name@v2/sub", "hf://owner/name/sub", "hf.co/owner/name/tree/main/sub")
WITH_REVISION = ("owner/name@main", "hf://owner/name@v2", "https://hf.co/owner/name/tree/main", "name@v2")


@pytest.mark.parametrize("text", [*WITH_FOLDER, *WITH_REVISION])
def test_a_new_repo_has_no_revision_and_a_folder_of_one_is_no_destination(text: str) -> None:
    says = "names a revision" if text in WITH_REVISION else "names a (folder|revision)"
    with pytest.raises(DestinationError, match=says) as refusal:
        new_repo_id(text, HUB)
    assert "owner/name" in refusal.value.hint


@pytest.mark.parametrize(
    "rest", ["#model-card", "?library=transformers", "/blob/main/config.json", "/resolve/main/a.bin?download=true"]
)
def test_a_link_from_the_browser_to_the_top_of_a_repo_means_the_repo(rest: str) -> None:
    revision = "main" if "main" in rest else ""
    assert parse_address(f"https://huggingface.co/owner/name{rest}", HUB) == Place("hub", "owner/name", revision)


PART = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9 _+-]{0,5}[A-Za-z0-9_]", fullmatch=True).filter(
    lambda part: part not in ("tree", "blob", "resolve", "raw", "commit")
)
NAME = st.from_regex(r"[a-z0-9][a-z0-9_]{0,8}", fullmatch=True).filter(lambda name: name not in HF_URI_TYPE_PREFIXES)
REVISIONS = st.one_of(
    st.just(""), NAME, st.from_regex(r"refs/pr/[1-9]", fullmatch=True), st.just("feature/x.y"), st.just(SHA)
)
FOLDERS = st.lists(PART, max_size=3)


@given(NAME, NAME, REVISIONS, FOLDERS, st.sampled_from(["huggingface.co", "hf.co", "hub.example"]))
def test_every_way_to_write_an_address_means_what_the_hubs_own_client_takes_it_for(
    owner: str, name: str, revision: str, folders: list[str], host: str
) -> None:
    folder, at = "".join(f"{part}/" for part in folders), f"@{quote(revision, safe='')}" if revision else ""
    inside = "".join(f"/{part}" for part in folders)
    theirs = parse_hf_uri(f"hf://{owner}/{name}{at}{inside}")
    meant = Place("hub", f"{owner}/{name}", revision, folder)
    assert (theirs.type, f"{theirs.path_in_repo}/"[: len(folder)]) == ("model", folder)
    assert (theirs.id, theirs.revision or "") == (meant.repo_id, revision)
    own = f"{owner}/{name}{at}{inside}"
    written = [own, f"hf://{own}", f"hf://models/{own}", f"{own}/adapter_config.json"]
    if folder or revision:
        page = f"{quote(revision or 'main', safe='')}{quote(inside)}"
        as_link = f"{owner}/{name}/tree/{page}"
        links = [as_link, f"{host}/{as_link}", f"https://{host}/{as_link}/", f"https://{host}/{as_link}?x=1#y"]
        links += [f"https://{host}/{owner}/{name}/{route}/{page}/x.safetensors" for route in ("blob", "resolve", "raw")]
        for link in links:
            assert parse_address(link, HUB) == replace(meant, revision=revision or "main"), link
    for text in written:
        assert parse_address(text, HUB) == meant, text


@given(NAME, REVISIONS, FOLDERS)
def test_a_link_to_a_model_without_an_owner_means_it(name: str, revision: str, folders: list[str]) -> None:
    inside = "".join(f"/{quote(part)}" for part in folders)
    link = f"https://huggingface.co/{name}/tree/{quote(revision or 'main', safe='')}{inside}"
    assert parse_address(link, HUB) == Place("hub", name, revision or "main", "".join(f"{part}/" for part in folders))


# --- The source is no destination ---------------------------------------------------------------------


@pytest.mark.parametrize("text", [SOURCE, "source", "https://huggingface.co/alice/source", "hf://alice/source"])
def test_the_source_is_no_destination_however_it_is_written(hub: InHouse, text: str) -> None:
    before = hub.api().model_info(SOURCE).sha
    for source in (SOURCE, f"{SOURCE}@main", f"{hub.address}/{SOURCE}"):
        with pytest.raises(DestinationError, match="The destination is the source itself"):
            shard(hub, source, text, overwrite=True)
    with pytest.raises(DestinationError, match="The destination is the source itself"):
        shard(hub, SOURCE, f"{hub.address}/{SOURCE}")
    assert hub.asked("^(POST|PUT|DELETE) ") == 0 and hub.api().model_info(SOURCE).sha == before


def test_a_folder_in_the_source_or_around_it_is_no_destination_also_over_a_link(folder: Path, tmp_path: Path) -> None:
    source = shutil.copytree(folder, tmp_path / "around/in")
    (tmp_path / "over-a-link").symlink_to(source)
    before = listing(tmp_path)
    link = tmp_path / "over-a-link"
    for out in (source, source / "deeper", source / "deeper/still", source.parent, link, link / "deeper"):
        with pytest.raises(DestinationError, match="lies inside"):
            list(job.shard(str(source), str(out), "9kB"))
    assert listing(tmp_path) == before
    for out in (tmp_path / "around/in-2", tmp_path / "around-2"):  # beside it, however like the name
        *_, report = job.shard(str(source), str(out), "9kB")
        assert report.verification.identical  # type: ignore[union-attr]


def test_the_files_that_a_cache_links_to_are_no_destination(folder: Path, tmp_path: Path) -> None:
    source = in_cache(folder, tmp_path / "cache")
    blobs = source.parent.parent / "blobs"
    (tmp_path / "link").symlink_to(blobs)
    before = listing(tmp_path)
    for out in (blobs, blobs.parent / "snapshots" / ".." / "blobs", tmp_path / "link"):
        for more in ({}, {"overwrite": True}):
            with pytest.raises(DestinationError, match="The source's file .* lies in the destination"):
                list(job.shard(str(source), str(out), "9kB", **more))
    assert listing(tmp_path) == before


@pytest.mark.parametrize("role", ["base", "adapter"])
def test_no_other_input_is_a_destination_either(
    hub: InHouse, own: str, folder: Path, tmp_path: Path, role: str
) -> None:
    run, cached = tmp_path / "run", in_cache(folder, tmp_path / "cache")
    run.mkdir()
    for name in (".metadata", "__0_0.distcp"):
        (run / name).touch()
    hub.put(own, "sub/config.json", b"{}")
    before = hub.api().model_info(own).sha, listing(tmp_path)

    def check(named: object, out: object, says: str) -> None:
        request = Request(str(run), str(out), Options(**{role: str(named)}), overwrite=True)
        with pytest.raises(DestinationError, match=says):
            job.check(request, endpoint=hub.address, token=TOKEN)

    for named in (own, f"{own}@main", f"{own}/sub"):
        for text in (own, own.partition("/")[2], f"{hub.address}/{own}"):
            check(named, text, f"^The destination is the {role} itself")
    for out in (cached, cached / "deeper", cached.parent):
        check(cached, out, f"lies inside the {role}, or the {role} lies inside it")
    check(cached, cached.parent.parent / "blobs", f"^The {role}'s file .* lies in the destination")
    assert (hub.api().model_info(own).sha, listing(tmp_path)) == before


@pytest.mark.parametrize("name", ["gpt2", "gpt2@main", "https://huggingface.co/gpt2"])
def test_a_bare_name_is_no_adapter(name: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="not the complete name of an adapter") as refusal:
        open_inputs({"model": str(tmp_path), "adapter": name}, Hub(HUB, None))
    assert "owner/name/folder" in refusal.value.hint
