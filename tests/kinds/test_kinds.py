"""What a library loads from a copy is what it loads from the source, for every kind of repo that is taken."""

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from safetensors.torch import load_file

from sharding.report.schema import Report
from tests.conftest import listing
from tests.folders import bits, reshard
from tests.kinds import libraries
from tests.kinds.kind import Kind
from tests.kinds.table import KINDS, loaded, save

pytestmark = [
    # transformers and diffusers warn about themselves.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
SIZE = "20kB"
elsewhere = libraries.elsewhere
HERE = [name for name, kind in KINDS.items() if not kind.write]
"""What the libraries load that are there in any case."""
BY_HAND = [name for name, kind in KINDS.items() if kind.write]


def copy(kind: Kind, source: Path, out: Path) -> Report:
    """Copy a repo; what its loader knows by one name is there whole, and all else is cut."""
    report = reshard(source, out, SIZE, variant=kind.variant)
    there = listing(out)
    assert set(kind.cut) <= set(there)
    # One of them at least is larger than the limit, which so does not hold for it.
    assert not kind.whole or max(len(there.get(name, "")) for name in kind.whole) > 20_000
    for name in kind.whole:
        assert name in there and f"{name}.index.json" not in there
        if not name.endswith(".safetensors"):
            assert there[name] == (source / name).read_bytes()
            continue
        one, other = load_file(source / name), load_file(out / name)
        assert {tensor: bits(value) for tensor, value in one.items()} == {
            tensor: bits(value) for tensor, value in other.items()
        }
    assert not kind.finding or kind.finding in {finding.code for finding in report.plan.findings}
    return report


@pytest.mark.parametrize("name", HERE)
def test_a_copy_is_loaded_with_the_bits_of_its_source(name: str, tmp_path: Path) -> None:
    save(name, tmp_path / "in")
    copy(KINDS[name], tmp_path / "in", tmp_path / "out")
    weights = loaded(name, tmp_path / "in")
    assert weights and loaded(name, tmp_path / "out") == weights


@pytest.mark.parametrize("name", BY_HAND)
def test_a_file_that_is_loaded_by_its_name_stays_whole(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    assert kind.write
    kind.write(tmp_path / "in")
    copy(kind, tmp_path / "in", tmp_path / "out")


@pytest.mark.thorough
@pytest.mark.parametrize("name", BY_HAND)
def test_the_library_of_every_kind_loads_a_copy_with_the_bits_of_its_source_whose_files_are_those_written_by_hand(
    name: str, tmp_path: Path, elsewhere: ProcessPoolExecutor
) -> None:
    elsewhere.submit(save, name, tmp_path / "in").result()
    kind = KINDS[name]
    assert kind.write
    kind.write(tmp_path / "written")
    assert set(listing(tmp_path / "written")) == set(listing(tmp_path / "in"))
    copy(kind, tmp_path / "in", tmp_path / "out")
    weights = elsewhere.submit(loaded, name, tmp_path / "in").result()
    assert weights and elsewhere.submit(loaded, name, tmp_path / "out").result() == weights
