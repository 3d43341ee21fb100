"""A link in a folder is followed only where it ends inside the folder, or in the store of the Hub's cache around it."""

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants, snapshot_download

from sharding.core.errors import SourceError
from sharding.fleet.worker import open_lent
from sharding.storage.folder_source import FolderSource, open_folder
from tests.commands import Result, invoke
from tests.conftest import in_two_files, listing
from tests.folders import in_cache, write_ranks
from tests.hubs import TOKEN, push
from tests.inhouse import InHouse, hub_in_house
from tests.promises import promise
from tests.storage.publications import write_pipeline

SECRET = b'{"secret": "hf_0123456789"}'
WEIGHTS = "model-00001-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
SAYING = ("config.json", "model_index.json", "modules.json", ".metadata")
RANK = "shard-00000-model-00001-of-00002.safetensors"


def shard(source: Path, out: Path | str, *options: str) -> Result:
    return invoke("shard", source, out, "-s", "60kB", *options)


def move_and_link(path: Path, to: str) -> None:
    """Move what is at `path` to a place seen from there, and lead there by a link."""
    path.rename(path.parent / to)
    path.symlink_to(to)


def refusal(result: Result) -> str:
    """The sentence with which a command that wrote nothing has ended."""
    assert result.exit_code == 3, result.output
    return result.output.replace("\n", " ")


def left_out(source: Path, out: Path, *options: str) -> None:
    """The copy of `source` is made, and says that its tokenizer, which is a link to what is secret, is not in it."""
    result = shard(source, out, *options)
    assert result.exit_code == 0, result.output
    assert "tokenizer.json" in result.output and "a file outside" in result.output
    written = listing(out)
    assert "config.json" in written and "tokenizer.json" not in written
    assert not any(SECRET in data for data in written.values())


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file beside the source that only its owner may read."""
    path = tmp_path / "private" / "secret"
    path.parent.mkdir(mode=0o700)
    path.write_bytes(SECRET)
    path.chmod(0o600)
    return path


OUTWARD = {
    "absolute": {"tokenizer.json": "ABOVE/private/secret"},
    "relative": {"tokenizer.json": "../private/secret"},
    "chain": {"tokenizer.json": "first.json", "first.json": "second.json", "second.json": "ABOVE/private/secret"},
    "over a folder": {"tokenizer.json": "shelf/secret", "shelf": "../private"},
    "to nothing": {"tokenizer.json": "../private/nothing"},
    **{
        place: {"tokenizer.json": place}
        for place in (".git/config", ".git/annex/index", ".git/annex/objects/.git/config", "sub/.git/annex/objects/k")
    },
}
"""Links that lead out of the folder, or to what tools keep in it."""


@promise("docs/security.md#get-a-file-outside-a-local")
@pytest.mark.parametrize("lead", OUTWARD)
def test_a_link_that_leads_out_is_left_out(lead: str, checkpoint: Path, secret: Path, tmp_path: Path) -> None:
    for name, target in OUTWARD[lead].items():
        (checkpoint / name).symlink_to(target.replace("ABOVE", str(tmp_path)))
        if ".git/" in target:
            (checkpoint / target).parent.mkdir(parents=True)
            (checkpoint / target).write_bytes(SECRET)
    left_out(checkpoint, tmp_path / "out")


def test_nothing_is_read_over_a_link_that_leads_out(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "private").write_text("---\nlicense: secret\n---\n# hf_0123456789\n")
    (checkpoint / "original").mkdir()
    for name in ("README.md", "sharding_report.json", "original/model.safetensors", "optimizer.bin"):
        (checkpoint / name).symlink_to(tmp_path / "private")
    for command in (["inspect", checkpoint, "--json"], ["shard", checkpoint, tmp_path / "out"]):
        result = invoke(*command)
        assert result.exit_code == 0 and "hf_0123456789" not in result.output
    assert not any(b"secret" in data for data in listing(tmp_path / "out").values())


@promise("docs/security.md#get-a-file-outside-a-local")
@pytest.mark.parametrize("name", [WEIGHTS, INDEX, *SAYING, "pytorch_model.bin", "__0_0.distcp", RANK])
def test_a_link_that_leads_out_is_refused_where_it_is_of_the_weights(
    name: str, checkpoint: Path, tmp_path: Path
) -> None:
    (checkpoint / name).exists() or (checkpoint / name).write_text("{}")
    move_and_link(checkpoint / name, "../elsewhere")
    others = [["inspect"], ["compare", checkpoint], ["devices", "--budget", "colab-t4"], ["verify", checkpoint]]
    for command in (["plan"], *(others if name == WEIGHTS else ())):
        assert f"{name} is a link to a file outside the folder" in refusal(invoke(*command, checkpoint)), command
    assert f"{name} is a link" in refusal(shard(checkpoint, tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_a_link_is_left_out_with_a_remark_and_refused_as_a_component(tmp_path: Path) -> None:
    pipeline = write_pipeline(tmp_path / "pipeline")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/mine.json").write_bytes(SECRET)
    (pipeline / "notes").symlink_to(tmp_path / "notes")
    result = shard(pipeline, tmp_path / "out")
    assert result.exit_code == 0 and "notes" in result.output and "a file outside" in result.output
    assert not (tmp_path / "out/notes").exists()
    move_and_link(pipeline / "unet/config.json", "../../elsewhere")
    assert "unet/config.json is a link to a file outside" in refusal(shard(pipeline, tmp_path / "other"))
    move_and_link(pipeline / "unet", "../shared")
    assert "unet/ is a link to a folder" in refusal(shard(pipeline, tmp_path / "other"))


def test_links_that_end_inside_the_folder_are_followed_and_one_to_it(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / "files").mkdir()
    for name in (WEIGHTS, "config.json"):
        move_and_link(checkpoint / name, f"files/{name}.data")
    (tmp_path / "outside").symlink_to(checkpoint / "files")
    (checkpoint / "tokenizer.json").symlink_to("../outside/config.json.data")  # and back in
    (tmp_path / "link").symlink_to(checkpoint)
    result = shard(tmp_path / "link", tmp_path / "out")
    assert result.exit_code == 0 and "a file outside" not in result.output
    assert (tmp_path / "out/tokenizer.json").read_bytes() == (checkpoint / "config.json").read_bytes()


def test_what_git_annex_keeps_of_the_folder_is_read(checkpoint: Path, tmp_path: Path) -> None:
    before = (checkpoint / WEIGHTS).read_bytes()
    key = ".git/annex/objects/k7/Zx/SHA256E-s9--0.safetensors/SHA256E-s9--0.safetensors"
    (checkpoint / key).parent.mkdir(parents=True)
    move_and_link(checkpoint / WEIGHTS, key)
    result = shard(checkpoint, tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "a file outside" not in result.output and not (tmp_path / "out/.git").exists()
    assert open_folder(str(checkpoint)).path(WEIGHTS).read_bytes() == before


def test_a_circle_of_links_is_a_sentence(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / "tokenizer.json").symlink_to("tokenizer.json")
    assert "tokenizer.json cannot be read" in refusal(shard(checkpoint, tmp_path / "out"))


def test_what_is_beside_a_base_is_not_read_over_a_link(checkpoint: Path, secret: Path, tmp_path: Path) -> None:
    run = write_ranks(tmp_path / "run")
    (checkpoint / "tokenizer.json").symlink_to(secret)
    left_out(run, tmp_path / "out", "--base", str(checkpoint))


# --- Caches of the Hub ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_shared", [False, True])
def test_links_into_the_store_of_a_cache_are_followed_wherever_it_is(
    is_shared: bool, checkpoint: Path, tmp_path: Path
) -> None:
    before = listing(checkpoint)
    (tmp_path / "other disk").mkdir()
    (tmp_path / "cache").symlink_to("other disk")
    snapshot = in_cache(checkpoint, tmp_path / "cache", is_shared=is_shared)
    result = shard(snapshot, tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "out/config.json").read_bytes() == before["config.json"]
    assert "Identical" in result.output and "a file outside" not in result.output


@pytest.mark.parametrize(
    ("name", "is_cache"),
    [(name, True) for name in ("models--gpt2", "datasets--acme--small", "spaces--acme--small")]
    + [(name, False) for name in ("x", "models", "models--", "my-models--acme--small")],
)
def test_a_cache_is_told_by_the_names_of_its_repos(name: str, is_cache: bool, checkpoint: Path, tmp_path: Path) -> None:
    snapshot = in_cache(checkpoint, tmp_path / "cache", name=name)
    result = invoke("plan", snapshot)
    assert result.exit_code == 0 if is_cache else "is a link to a file outside" in refusal(result)


def test_a_part_of_a_snapshot_is_read_from_the_store_too(tmp_path: Path) -> None:
    in_two_files(tmp_path / "part")
    snapshot = in_cache(tmp_path / "part", tmp_path / "cache")
    (snapshot / "unet").mkdir()
    for link in [path for path in snapshot.iterdir() if path.is_symlink()]:
        (snapshot / "unet" / link.name).symlink_to(Path("..", os.readlink(link)))
        link.unlink()
    assert shard(snapshot / "unet", tmp_path / "out").exit_code == 0


@promise("docs/security.md#reach-other-files-of-a-hub")
@pytest.mark.parametrize(
    "place",
    ["models--acme--other/blobs/0", "models--owner--name/refs/main", "models--owner--name/blobs/sub/x", "token",
     "blobs/ab/short", "blobs/ab/" + "cd" * 32, "blobs/" + "ab" * 32],
)  # fmt: skip
def test_nothing_else_of_a_cache_is_reached_over_a_link(place: str, checkpoint: Path, tmp_path: Path) -> None:
    snapshot = in_cache(checkpoint, tmp_path / "cache")
    (tmp_path / "cache" / place).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "cache" / place).write_bytes(SECRET)
    (snapshot / "tokenizer.json").symlink_to(tmp_path / "cache" / place)
    left_out(snapshot, tmp_path / "out")


def test_blobs_that_are_a_link_are_no_store(checkpoint: Path, tmp_path: Path) -> None:
    snapshot = in_cache(checkpoint, tmp_path / "cache")
    move_and_link(tmp_path / "cache/models--owner--name/blobs", "../../elsewhere")
    assert "is a link to a file outside" in refusal(invoke("plan", snapshot))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InHouse]:
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
    with hub_in_house(tmp_path / "hub") as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield hub


def test_what_the_hubs_own_client_has_downloaded_is_read(hub: InHouse, checkpoint: Path, tmp_path: Path) -> None:
    push(hub, checkpoint, "alice/source")
    cache = tmp_path / "cache"
    snapshot = Path(snapshot_download("alice/source", endpoint=hub.address, token=TOKEN, cache_dir=cache))
    assert (snapshot / WEIGHTS).is_symlink()
    ends = {path.resolve().relative_to(cache).parts[0] for path in snapshot.iterdir()}
    assert ends == {"blobs", "models--alice--source"}  # large files lie in a store for all repos
    assert "Identical" in shard(snapshot, tmp_path / "out").output


# --- What changes meanwhile ----------------------------------------------------------------------------------


def alike(path: Path, secret: Path) -> None:
    """Give the file at `path` the size and the time of the `secret`."""
    path.write_bytes(b" " * secret.stat().st_size)
    os.utime(path, ns=(0, secret.stat().st_mtime_ns))


@promise("docs/security.md#replace-a-file-by-such-a")
@pytest.mark.parametrize("is_steady", [True, False])
@pytest.mark.parametrize("is_folder", [True, False])
def test_a_file_that_became_a_link_is_not_read(
    is_folder: bool, is_steady: bool, checkpoint: Path, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharding.storage.folder_source.is_steady", lambda _: is_steady)
    (checkpoint / "sub").mkdir()
    alike(checkpoint / "sub/secret", secret)
    source = open_folder(str(checkpoint))
    assert b"".join(source.read("sub/secret", 0, len(SECRET))) == b" " * len(SECRET)
    (checkpoint / "sub").rename(checkpoint / "was")
    if is_folder:
        (checkpoint / "sub").symlink_to(secret.parent)
    else:
        (checkpoint / "sub").mkdir()
        (checkpoint / "sub/secret").symlink_to(secret)
    with pytest.raises(SourceError, match="changed while"):
        list(source.read("sub/secret", 0, len(SECRET)))


def test_a_file_that_became_a_pipe_is_noticed(checkpoint: Path) -> None:
    source = open_folder(str(checkpoint))
    (checkpoint / WEIGHTS).unlink()
    os.mkfifo(checkpoint / WEIGHTS)
    with pytest.raises(SourceError, match="changed while"):
        list(source.read(WEIGHTS, 0, 8))


def test_a_file_that_is_swapped_before_it_is_uploaded_is_noticed(
    hub: InHouse, checkpoint: Path, secret: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = checkpoint / "tokenizer.json"
    alike(tokenizer, secret)
    lend = FolderSource.read

    def read(source: FolderSource, file: str, start: int, end: int) -> Iterator[bytes]:
        if file.endswith(".safetensors") and not tokenizer.is_symlink():
            tokenizer.unlink()
            tokenizer.symlink_to(secret)
        return lend(source, file, start, end)

    monkeypatch.setattr(FolderSource, "read", read)
    assert "tokenizer.json changed while" in refusal(shard(checkpoint, "alice/made"))
    assert not hub.api().file_exists("alice/made", "tokenizer.json")


def test_what_is_written_is_as_closed_as_the_umask_says(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / "sub").mkdir()
    (checkpoint / "sub/tokenizer.json").write_text(json.dumps({}))
    (checkpoint / "config.json").chmod(0o666)
    before = os.umask(0o077)
    try:
        assert shard(checkpoint, tmp_path / "out").exit_code == 0
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in (tmp_path / "out", *(tmp_path / "out").rglob("*"))}
    assert modes == {0}


def test_a_lent_file_is_found_over_links_above_it_and_not_read_where_it_is_one(
    checkpoint: Path, tmp_path: Path
) -> None:
    lent = open_folder(str(checkpoint)).lend([WEIGHTS])
    checkpoint.rename(tmp_path / "mounted")
    checkpoint.symlink_to("mounted")
    first = next(open_lent(lent).read(WEIGHTS, 0, 8))
    assert first == (checkpoint / WEIGHTS).read_bytes()[:8]
    move_and_link(checkpoint / WEIGHTS, str(tmp_path / "weights"))
    with pytest.raises(SourceError, match="cannot be read"):
        open_lent(lent)
