"""What terminal, card and page say of a result is what somebody has read and found right."""

from tests.report.golden import CASES, PLACE, text


def test_what_people_read_is_what_the_golden_files_hold() -> None:
    """If a change is meant, make them again by `python -m tests.report.golden`, and read what has changed."""
    assert {path.stem for path in PLACE.iterdir()} == CASES.keys()
    for name in CASES:
        assert text(name).splitlines() == (PLACE / f"{name}.txt").read_text().splitlines(), name
