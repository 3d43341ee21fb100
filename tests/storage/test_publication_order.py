"""In which order a folder is written, synced and tidied up: what a power cut leaves is whole or visibly unfinished."""

from pathlib import Path

import pytest

from sharding import job
from sharding.formats.names import REPORT_NAME, STAGING_FOLDER, is_index, is_weights
from sharding.storage.folder_names import TRIAL
from sharding.storage.folder_writing import RECORD
from sharding.storage.journal import JOURNAL_NAME, LEASE_NAME
from tests.storage.publications import BEFORE, Scene
from tests.storage.recorder import Kind, Step, recorded

PIPELINE = "model_index.json"


@pytest.fixture(scope="module", params=BEFORE)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """A folder that holds what the parameter says."""
    place = BEFORE[request.param](tmp_path_factory.mktemp("place"))
    place.again()
    return place


@pytest.fixture(scope="module")
def steps(place: Scene) -> list[Step]:
    """What a job does there from its beginning to its end, apart from the empty files by which it tries names."""
    with recorded() as recorder:
        place.publish()
    assert {"create", "write", "sync", "rename", "remove"} <= {step.kind for step in recorder.steps}
    return [step for step in recorder.steps if TRIAL not in step.path.parts]


def numbers(steps: list[Step], *kinds: Kind) -> list[int]:
    """Where steps of these kinds are; there must be some."""
    found = [number for number, step in enumerate(steps) if step.kind in kinds]
    assert found
    return found


def is_synced(steps: list[Step], path: Path, after: int, before: int) -> bool:
    return any(step == Step("sync", path) for step in steps[after + 1 : before])


def is_written(steps: list[Step], path: Path, before: int) -> bool:
    """Whether all bytes of a file are on the disk before a step, under whatever name they were written."""
    for number in range(before - 1, -1, -1):
        step = steps[number]
        if step.to == path:  # it was another file under that name
            return is_written(steps, step.path, number)
        if step.path == path and step.kind in ("create", "write"):
            return is_synced(steps, path, number, before)
    raise AssertionError(f"nobody has written {path}")


def name_in(place: Scene, path: Path | None) -> str:
    assert path is not None
    return path.relative_to(place.out).as_posix()


def shows(place: Scene, path: str) -> int:
    """0 for what does not make anything a checkpoint; the more it shows, the more."""
    if PIPELINE in place.new:
        return 2 * (path == PIPELINE) + is_index(path)
    return int(is_index(path) or path == "model.safetensors")


def shards_of(place: Scene) -> int:
    return sum(path.endswith(".safetensors") for path in place.new)


def renames(place: Scene, steps: list[Step]) -> list[tuple[int, str]]:
    """Where files get the names that they are to have, and which."""
    named = [(number, name_in(place, steps[number].to)) for number in numbers(steps, "rename")]
    return [(number, path) for number, path in named if not path.startswith(f"{STAGING_FOLDER}/")]


def test_every_file_gets_its_name_once_and_when_its_bytes_are_on_the_disk(place: Scene, steps: list[Step]) -> None:
    assert all(steps[number].path.name.endswith(".part") for number in numbers(steps, "create", "write", "truncate"))
    named = renames(place, steps)
    for number, _ in named:
        assert is_written(steps, steps[number].path, number), steps[number]
    assert sorted(path for _, path in named) == sorted({*place.new, REPORT_NAME, "README.md"})
    shards = [path for _, path in named if path.endswith(".safetensors")]
    assert shards[-1] == min(shards), "a loader begins with the first one"


def test_the_names_of_all_else_are_on_the_disk_before_what_shows_it(place: Scene, steps: list[Step]) -> None:
    named, checked = renames(place, steps), 0
    order = [shows(place, path) for _, path in named]
    assert order == sorted(order) and order[-1] > 0, "an index comes before what makes a pipeline"
    for shown, entrance in named:
        for number, path in named:
            if shows(place, path) < shows(place, entrance):
                assert is_synced(steps, (place.out / path).parent, number, shown), f"{path} before {entrance}"
                checked += 1
    assert checked


def test_a_new_folder_is_on_the_disk_before_what_shows_the_result(place: Scene, steps: list[Step]) -> None:
    shown = next(number for number, path in renames(place, steps) if shows(place, path))
    for number in numbers(steps, "mkdir"):
        assert is_synced(steps, steps[number].path.parent, number, shown), steps[number]


def test_a_shard_is_noted_once_it_is_on_the_disk_and_so_is_the_note(place: Scene, steps: list[Step]) -> None:
    named = {steps[number].to: number for number in numbers(steps, "rename")}
    parts = {path: number for path, number in named.items() if path and path.name.endswith(".safetensors.part")}
    notes = {path: number for path, number in named.items() if path and path.name.endswith(RECORD)}
    assert len(parts) == len(notes) == shards_of(place)
    for part, number in parts.items():
        (note,) = [made for path, made in notes.items() if path.name.startswith(part.name.removesuffix("part"))]
        assert number < note
        assert is_written(steps, steps[number].path, number) and is_written(steps, steps[note].path, note)
        following = next(later for later in sorted(named.values()) if later > note)
        assert is_synced(steps, part.parent, number, note) and is_synced(steps, part.parent, note, following)
    journal = place.out / STAGING_FOLDER / JOURNAL_NAME
    assert is_written(steps, journal, min(parts.values()))


def test_the_journal_goes_when_the_result_is_on_the_disk_and_then_for_good(place: Scene, steps: list[Step]) -> None:
    (gone,) = [number for number in numbers(steps, "remove") if steps[number].path.name == JOURNAL_NAME]
    for number, path in renames(place, steps):
        assert is_synced(steps, (place.out / path).parent, number, gone), path
    assert is_synced(steps, place.out, gone, len(steps))


def test_an_earlier_result_ceases_to_be_one_before_anything_of_it_goes(place: Scene, steps: list[Step]) -> None:
    removed = [(number, name_in(place, steps[number].path)) for number in numbers(steps, "remove")]
    *records, lease, journal = [path for _, path in removed if path.startswith(f"{STAGING_FOLDER}/")]
    assert [lease, journal] == [f"{STAGING_FOLDER}/{name}" for name in (LEASE_NAME, JOURNAL_NAME)]
    assert len(records) == shards_of(place) and all(path.endswith(RECORD) for path in records)
    removed = removed[: -2 - len(records)]
    if not place.old:
        assert not removed
        return
    # The report stays, because it names what is still to go. The new one takes its place.
    assert {path for _, path in removed} == set(place.old) - {*place.mine, REPORT_NAME}
    ranks = [(shows(place, path), is_weights(path)) for _, path in removed]
    assert ranks == sorted(ranks, reverse=True)
    for (number, path), (later, _) in zip(removed, removed[1:], strict=False):
        if shows(place, path) and not shows(place, name_in(place, steps[later].path)):
            assert is_synced(steps, (place.out / path).parent, number, later), path
    first, report = renames(place, steps)[0]
    assert report == REPORT_NAME
    for number, path in removed:
        assert is_synced(steps, (place.out / path).parent, number, first), path


def test_nothing_but_the_folder_is_touched(place: Scene, steps: list[Step]) -> None:
    for step in steps:
        if step.kind == "sync" and step.path == place.out.parent:
            assert not place.old  # the folder is new, and so is its name in there
        else:
            assert all(path.is_relative_to(place.out) for path in (step.path, step.to) if path), step
    assert not {name_in(place, step.path) for step in steps if step.kind == "remove"} & set(place.mine)


def test_a_discard_takes_the_journal_last(tmp_path: Path) -> None:
    place = BEFORE["shards"](tmp_path)
    place.again()
    with recorded(dies_at=22):
        place.publish()
    with recorded() as recorder:
        job.discard(str(place.out))
    removed = [recorder.steps[number].path.name for number in numbers(recorder.steps, "remove")]
    assert len(removed) > 1
    assert removed[-1] == JOURNAL_NAME
