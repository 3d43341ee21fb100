"""Who may see a copy: as its source and its base, unless somebody has said otherwise and confirmed it."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sharding import job
from sharding.core.errors import DestinationError
from sharding.core.options import Options, Request
from tests.folders import write_ranks
from tests.hubs import TOKEN, exists, is_private, push, shard
from tests.inhouse import InHouse, hub_in_house

WRITES = "^(POST|PUT|DELETE) .*(repos/create|repos/delete|commit|branch|preupload|info/lfs|xet-write|settings)"
FOLDERS: dict[str, str] = {}
SOURCES: dict[str, tuple[str, str, bool, str]] = {
    # source, base, whether its copy is private, what is named where a public copy is refused
    "open": ("alice/open", "", False, ""),
    "private": ("alice/hidden", "", True, "alice/hidden"),
    "gated": ("alice/gated", "", True, "alice/gated"),
    "a folder": ("FOLDER", "", True, ""),
    "open of an open base": ("alice/run", "alice/open", False, ""),
    "open of a private base": ("alice/run", "alice/hidden", True, "alice/hidden"),
    "open of a gated base": ("alice/run", "alice/gated", True, "alice/gated"),
    "private of an open base": ("alice/hidden-run", "alice/open", True, "alice/hidden-run"),
    "a folder of an open base": ("RUN", "alice/open", True, ""),
    "a folder of a private base": ("RUN", "alice/hidden", True, "alice/hidden"),
}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[InHouse]:
    """A Hub with models and runs that everybody sees, and others."""
    run = write_ranks(tmp_path_factory.mktemp("in") / "run")
    FOLDERS.update({"FOLDER": str(folder), "RUN": str(run)})
    with hub_in_house(tmp_path_factory.mktemp("hub")) as hub:
        for name in ("open", "gated", "hidden"):
            push(hub, folder, f"alice/{name}", private=name == "hidden")
        hub.api().update_repo_settings("alice/gated", gated="auto")
        push(hub, run, "alice/run")
        push(hub, run, "alice/hidden-run", private=True)
        yield hub


@pytest.fixture
def place(hub: InHouse) -> Iterator[str]:
    """A name for a copy, which goes in the end."""
    hub.log.clear()
    yield "alice/copy"
    hub.api().delete_repo("alice/copy", missing_ok=True)


def make(hub: InHouse, kind: str, place: str, **choices: Any) -> None:
    source, base, _, _ = SOURCES[kind]
    shard(hub, FOLDERS.get(source, source), place, Options("1GB", base=base), **choices)


def check(hub: InHouse, kind: str, place: str, **choices: Any) -> None:
    source, base, _, _ = SOURCES[kind]
    request = Request(FOLDERS.get(source, source), place, Options(base=base), **choices)
    job.check(request, endpoint=hub.address, token=TOKEN)


def refused(*asks: Callable[[], None]) -> str:
    """How these are refused, all in the same words."""
    said = set()
    for ask in asks:
        with pytest.raises(DestinationError) as refusal:
            ask()
        said.add(f"{refusal.value.message} {refusal.value.hint}")
    (one,) = said
    return one


@pytest.mark.parametrize("kind", SOURCES)
def test_a_new_repo_is_as_its_source_and_its_base(hub: InHouse, place: str, kind: str) -> None:
    check(hub, kind, place)
    assert not hub.asked(WRITES) and not exists(hub, place), "to check makes nothing"
    if kind not in ("private", "open of an open base", "open of a gated base", "a folder of a private base"):
        make(hub, kind, place)
        assert is_private(hub, place) is SOURCES[kind][2]


@pytest.mark.parametrize("kind", SOURCES)
def test_a_public_copy_of_what_is_not_public_needs_a_word_and_names_that(hub: InHouse, place: str, kind: str) -> None:
    named = SOURCES[kind][3]
    if not named:
        check(hub, kind, place, private=False)
        if kind == "a folder":
            make(hub, kind, place, private=False)
            assert not is_private(hub, place)
        return
    said = refused(*(partial(ask, hub, kind, place, private=False) for ask in (check, make)))
    assert said.startswith(f"{named} is private or gated") and "--yes" in said
    assert not hub.asked(WRITES) and not exists(hub, place)
    check(hub, kind, place, private=False, confirmed=True)
    if kind == "gated":
        make(hub, kind, place, private=False, confirmed=True)
        assert not is_private(hub, place)


@pytest.mark.parametrize("kind", ["open of a private base", "open", "a folder"])
def test_a_public_repo_gets_no_copy_of_what_is_private_without_a_word(hub: InHouse, place: str, kind: str) -> None:
    hub.api().create_repo(place, private=False)
    hub.log.clear()
    if SOURCES[kind][3]:
        said = refused(*(partial(ask, hub, kind, place, overwrite=True) for ask in (check, make)))
        assert f"{place} exists and is public" in said and not hub.asked(WRITES)
    check(hub, kind, place, confirmed=True)
    if kind != "open":
        make(hub, kind, place, confirmed=True)
        assert not is_private(hub, place)
