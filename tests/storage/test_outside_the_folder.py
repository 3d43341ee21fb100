"""Whatever stands in a folder, nothing is written, emptied or removed outside of it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sharding import job
from sharding.core.errors import DestinationError
from sharding.core.events import Verified
from sharding.formats.names import REPORT_NAME, STAGING_FOLDER
from sharding.storage.folder_destination import FolderDestination
from sharding.storage.folder_source import open_folder
from sharding.storage.journal import JOURNAL_NAME
from tests.conftest import listing
from tests.folders import arrays, finish, same
from tests.storage.publications import write_pipeline
from tests.storage.recorder import recorded

VICTIMS = {"victim": b"victim", "sharding_report.json": b"{}", "model.safetensors": b"weights"}
NAMED = [
    "../theirs/{}", "{theirs}/{}", "linked/{}", "sub/../../theirs/{}", "./../theirs/{}", "sub/linked/{}",
    "above/theirs/{}",
]  # fmt: skip
ODD = ["", ".", "..", "/", "sub", "config.json/x", "a\0b", "x" * 5000, "linked", "\udcff"]
"""Names of no file, which do not stand in the way."""


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A folder that nobody may touch."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    for name, data in VICTIMS.items():
        (theirs / name).write_bytes(data)
    return theirs


@pytest.fixture
def out(source: Path, tmp_path: Path, theirs: Path) -> Path:
    """A result from which links lead elsewhere."""
    out = tmp_path / "out"
    finish(job.shard(str(source), str(out), "200B"))
    (out / "linked").symlink_to(theirs)
    (out / "sub/linked").symlink_to(theirs)
    (out / "above").symlink_to(theirs.parent)
    return out


def claim(out: Path, names: list[str]) -> None:
    """Have the report name files elsewhere first."""
    report = json.loads((out / REPORT_NAME).read_text())
    (out / REPORT_NAME).write_text(json.dumps({**report, "files": [*names, *report["files"]]}))


def elsewhere(theirs: Path) -> list[str]:
    return [named.format(victim, theirs=theirs) for named in NAMED for victim in VICTIMS]


def test_what_a_report_names_elsewhere_is_there_after_it_is_written_over(source: Path, out: Path, theirs: Path) -> None:
    assert all((out / path).read_bytes() in VICTIMS.values() for path in elsewhere(theirs))  # it would be removed
    claim(out, [*elsewhere(theirs), *ODD])
    with recorded() as recorder:
        finish(job.shard(str(source), str(out), "400B"))
    assert listing(theirs) == VICTIMS
    assert not [step for step in recorder.steps if theirs in step.path.resolve().parents]
    assert not (out / "model-00001-of-00003.safetensors").exists()


def test_what_a_report_names_elsewhere_is_there_after_a_job_is_discarded(source: Path, out: Path, theirs: Path) -> None:
    for event in job.shard(str(source), str(out), "200B"):
        if isinstance(event, Verified):
            break
    (out / "model.safetensors.index.json").unlink()  # now it is half-made, and by the same plan
    claim(out, [*elsewhere(theirs), *ODD])
    assert job.discard(str(out)).found
    assert listing(theirs) == VICTIMS
    assert not list(out.glob("*.safetensors"))


def test_a_file_over_a_link_ends_the_job_before_anything_is_touched(source: Path, out: Path, theirs: Path) -> None:
    (source / "linked").mkdir()
    (source / "linked/victim").write_text("another")
    before = listing(out)
    with pytest.raises(DestinationError, match="'linked/victim' leads out") as refusal:
        finish(job.shard(str(source), str(out), "400B"))
    assert refusal.value.hint
    assert {path: data for path, data in listing(out).items() if not path.endswith(".part")} == before
    assert listing(theirs) == VICTIMS


@pytest.mark.parametrize("linked", ["text_encoder", STAGING_FOLDER])
def test_two_folders_of_a_result_are_never_one(tmp_path: Path, linked: str) -> None:
    source, out = write_pipeline(tmp_path / "pipeline"), tmp_path / "made"
    out.mkdir()
    (out / "unet").symlink_to(linked)
    with pytest.raises(DestinationError, match="leads out of the folder"):
        finish(job.shard(str(source), str(out), "300B", overwrite=True))
    assert [path.name for path in out.iterdir()] == ["unet"]


@pytest.mark.parametrize("part", ["model-00001-of-00002.safetensors.part", "sharding_file0.part"])
def test_a_part_that_is_a_link_is_not_written_through(source: Path, out: Path, theirs: Path, part: str) -> None:
    (out / STAGING_FOLDER).mkdir()
    (out / STAGING_FOLDER / part).symlink_to(theirs / "victim")
    finish(job.shard(str(source), str(out), "400B"))
    assert listing(theirs) == VICTIMS
    assert not (out / STAGING_FOLDER).exists()


@pytest.mark.parametrize(
    "work",
    [lambda source, out: finish(job.shard(str(source), str(out), "400B")), lambda source, out: job.discard(str(out))],
    ids=["shard", "discard"],
)
@pytest.mark.parametrize("linked", ["journal", "folder"])
def test_a_journal_that_is_a_link_is_not_written_through(
    source: Path, out: Path, theirs: Path, work: Callable[[Path, Path], object], linked: str
) -> None:
    if linked == "folder":
        (theirs / JOURNAL_NAME).write_bytes(b"theirs")
        (out / STAGING_FOLDER).symlink_to(theirs)
    else:
        (out / STAGING_FOLDER).mkdir()
        (out / STAGING_FOLDER / JOURNAL_NAME).symlink_to(theirs / "victim")
    victims = listing(theirs)
    before = arrays(out)
    with pytest.raises(DestinationError, match="link to elsewhere"):
        work(source, out)
    assert listing(theirs) == victims
    assert same(arrays(out), before)


def test_no_file_is_published_under_a_name_that_leads_out_or_by_a_roundabout_path(out: Path, theirs: Path) -> None:
    target, before = FolderDestination(out), listing(out)
    roundabout = ("./x", "a/./x", "a//x", f"./{STAGING_FOLDER}/x")
    for path in ("../victim", "/etc/x", "sub/../../victim", "..", "a\\..\\b", *roundabout):
        with pytest.raises(DestinationError, match="leads out of the folder"):
            target.publish({}, [], open_folder(str(out)), {path: b"x"})
    target.close()
    assert listing(theirs) == VICTIMS and listing(out) == before
