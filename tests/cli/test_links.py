"""Links in a folder are followed within it, and into the cache of a Hub; where others lead is not read and not copied."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from stat import S_IMODE

import pytest
from click.testing import Result
from typer.testing import CliRunner

from sharding.cli.commands import app
from tests.folders import in_cache
from tests.storage.publications import write_pipeline

Invoke = Callable[..., Result]
SECRET = "not for everybody"


@pytest.fixture
def invoke() -> Invoke:
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "secret").chmod(0o600)
    return tmp_path / "secret"


def texts(folder: Path) -> str:
    return "".join(path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file())


def by_chain(link: Path, end: Path) -> None:
    """Link by way of another link, which lies in the folder itself."""
    (link.parent / "between").symlink_to(end)
    link.symlink_to("between")


def upwards(link: Path, end: Path) -> None:
    link.symlink_to(Path("..") / end.name)


def by_a_folder(link: Path, end: Path) -> None:
    (link.parent / "more").symlink_to(end.parent)
    link.symlink_to(f"more/{end.name}")


@pytest.mark.parametrize("lead", [Path.symlink_to, upwards, by_chain, by_a_folder])
def test_a_file_beside_the_weights_that_leads_out_is_left_out_with_a_finding(
    lead: Callable[[Path, Path], None], checkpoint: Path, secret: Path, tmp_path: Path, invoke: Invoke
) -> None:
    lead(checkpoint / "tokenizer.json", secret)
    for arguments in (["inspect", checkpoint], ["plan", checkpoint], ["shard", checkpoint, tmp_path / "out"]):
        done = invoke(*arguments)
        assert done.exit_code == 0, done.stderr
        assert "tokenizer.json" in done.stderr and "leads out of the folder" in done.stderr
    assert not (tmp_path / "out/tokenizer.json").exists()
    assert SECRET not in texts(tmp_path / "out")
    findings = json.loads((tmp_path / "out/sharding_report.json").read_text())["plan"]["findings"]
    assert "link-outside" in [finding["code"] for finding in findings]


@pytest.mark.parametrize("name", ["model-00001-of-00002.safetensors", "model.safetensors.index.json", "config.json"])
def test_what_the_checkpoint_is_read_from_is_refused_where_it_leads_out(
    name: str, checkpoint: Path, tmp_path: Path, invoke: Invoke
) -> None:
    (checkpoint / name).rename(tmp_path / "elsewhere")
    (checkpoint / name).symlink_to(tmp_path / "elsewhere")
    done = invoke("shard", checkpoint, tmp_path / "out")
    assert done.exit_code == 3
    assert f"{name} is a link that leads out of the folder." in " ".join(done.stderr.split())
    assert not (tmp_path / "out").exists()


def test_a_component_that_leads_out_is_refused(tmp_path: Path, invoke: Invoke) -> None:
    pipeline = write_pipeline(tmp_path / "pipeline")
    (pipeline / "unet").rename(tmp_path / "unet")
    (pipeline / "unet").symlink_to(tmp_path / "unet")
    done = invoke("shard", pipeline, tmp_path / "out")
    assert done.exit_code == 3 and "unet/ is a link to a folder" in done.stderr


def test_a_folder_that_leads_out_is_named_and_left_out(
    checkpoint: Path, secret: Path, tmp_path: Path, invoke: Invoke
) -> None:
    (checkpoint / "extras").symlink_to(secret.parent)
    done = invoke("shard", checkpoint, tmp_path / "out")
    assert done.exit_code == 0 and "Left out: extras (leads out of the folder" in " ".join(done.stderr.split())
    assert SECRET not in texts(tmp_path / "out")


def test_a_link_within_the_folder_is_followed(checkpoint: Path, tmp_path: Path, invoke: Invoke) -> None:
    (checkpoint / "store").mkdir()
    (checkpoint / "store/words").write_text("within")
    (checkpoint / "tokenizer.json").symlink_to("store/words")
    assert invoke("shard", checkpoint, tmp_path / "out").exit_code == 0
    assert (tmp_path / "out/tokenizer.json").read_text() == "within"
    assert not (tmp_path / "out/tokenizer.json").is_symlink()


def test_a_folder_that_is_itself_a_link_is_read(checkpoint: Path, tmp_path: Path, invoke: Invoke) -> None:
    (tmp_path / "linked").symlink_to(checkpoint)
    assert invoke("shard", tmp_path / "linked", tmp_path / "out").exit_code == 0


def test_the_cache_of_a_hub_is_read_and_of_that_repo_only(
    checkpoint: Path, secret: Path, tmp_path: Path, invoke: Invoke
) -> None:
    snapshot = in_cache(checkpoint, tmp_path / "cache")
    assert invoke("shard", snapshot, tmp_path / "out").exit_code == 0
    others = tmp_path / "cache/models--other--name/blobs"
    others.mkdir(parents=True)
    (others / "1").write_text(SECRET)
    (snapshot / "tokenizer.json").symlink_to("../../../models--other--name/blobs/1")
    blob = snapshot.parent.parent / "blobs/secret"
    blob.symlink_to(secret)
    (snapshot / "vocab.json").symlink_to(blob)
    done = invoke("shard", snapshot, tmp_path / "again")
    assert done.exit_code == 0 and "tokenizer.json, vocab.json" in done.stderr
    assert SECRET not in texts(tmp_path / "again")


def test_a_cache_whose_blobs_lead_elsewhere_is_none(checkpoint: Path, tmp_path: Path, invoke: Invoke) -> None:
    snapshot = in_cache(checkpoint, tmp_path / "cache")
    blobs = snapshot.parent.parent / "blobs"
    blobs.rename(tmp_path / "elsewhere")
    blobs.symlink_to(tmp_path / "elsewhere")
    done = invoke("inspect", snapshot)
    assert done.exit_code == 3 and "leads out of the folder" in " ".join(done.stderr.split())


def test_what_is_copied_can_be_read_by_those_whom_the_umask_lets(
    checkpoint: Path, tmp_path: Path, invoke: Invoke
) -> None:
    before = os.umask(0o077)
    try:
        (checkpoint / "tokenizer.json").write_text("words")
        assert invoke("shard", checkpoint, tmp_path / "out").exit_code == 0
    finally:
        os.umask(before)
    modes = {S_IMODE(path.stat().st_mode) & 0o077 for path in (tmp_path / "out").rglob("*")}
    assert modes == {0}
