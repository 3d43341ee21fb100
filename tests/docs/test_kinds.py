"""The kinds of repos in the docs are those that are tested, with the versions and the tests that are there."""

from tests.core.test_extras import LOADERS, USUAL, versions
from tests.docs.pages import ARCHITECTURES, code, table
from tests.kinds import test_kinds
from tests.kinds.table import KINDS, title

ROWS = {kind: cells for kind, *cells in table(ARCHITECTURES, "kind | how it is recognised")}


def test_every_kind_that_is_tested_stands_in_the_docs_and_none_besides() -> None:
    assert list(ROWS) == list(dict.fromkeys(map(title, KINDS)))


def test_the_versions_that_load_them_are_those_that_are_pinned() -> None:
    pinned = versions(*USUAL, LOADERS)
    for name, kind in KINDS.items():
        loader = ROWS[title(name)][1]
        if kind.library:
            assert f"{kind.library} {pinned[kind.library.replace('_', '-')]}" in loader, name
        for part in loader.replace(";", ",").replace("with ", "").split(","):
            package, _, version = part.strip().partition(" ")
            if version[:1].isdigit():
                assert version.split()[0] == pinned[package.replace("_", "-")], part


def test_each_row_names_the_tests_that_try_its_kind() -> None:
    for row, cells in ROWS.items():
        kinds = [kind for name, kind in KINDS.items() if title(name) == row]
        holding = {
            test_kinds.test_the_library_of_every_kind_loads_a_copy_with_the_bits_of_its_source_whose_files_are_those_written_by_hand
        }
        if any(kind.write for kind in kinds):
            holding.add(test_kinds.test_a_file_that_is_loaded_by_its_name_stays_whole)
        if not all(kind.write for kind in kinds):
            holding.add(test_kinds.test_a_copy_is_loaded_with_the_bits_of_its_source)
        assert set(code(cells[-1])) == {f"tests/kinds/test_kinds.py::{test.__name__}" for test in holding}, row
