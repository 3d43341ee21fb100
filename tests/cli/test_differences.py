"""What `diff` and `verify --numeric` print, for people and for programs, and how they end."""

import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from sharding.core.verification import Difference
from tests.commands import invoke

LONG = "layers.0." + "very_long_name." * 20 + "weight"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two checkpoints, `one` and `two`, in the current folder."""
    same = np.arange(100_000, dtype=np.float32)
    nearly = same.copy()
    nearly[7] += 1
    one = {"same": same, "nearly": same, LONG: same[:4], "gone": same[:1], "bent": same[:4].reshape(1, 4)}
    two = {"same": same, "nearly": nearly, LONG: -same[:4], "new": same[:1], "bent": same[:4].reshape(4, 1)}
    for name, tensors in (("one", one), ("two", two)):
        (tmp_path / name).mkdir()
        save_file(tensors, tmp_path / name / "model.safetensors", {"format": "pt"})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def without_time(text: str) -> str:
    return text.rpartition("; ")[0]


def test_the_table_has_whole_names_also_at_80_columns(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = {}
    for columns in ("80", "300"):
        monkeypatch.setenv("COLUMNS", columns)
        done = invoke("diff", "./one", "./two")
        assert done.exit_code == 1
        printed[columns] = done.stdout
    first, head, *rows, _, _ = printed["80"].splitlines()
    assert first == "Different: 5 mismatches."
    assert [row.split(maxsplit=4)[4] for row in (head, *rows)] == [
        *("tensor", "bent ([1, 4] in the first and [4, 1] in the second)", "gone (only in the first)"),
        *(LONG, "nearly", "new (only in the second)"),
    ]
    figures = {row.split(maxsplit=4)[4].partition(" ")[0]: row.split()[:4] for row in rows}
    assert figures["gone"] == figures["new"] == figures["bent"] == ["-"] * 4
    assert figures["nearly"] == ["1.000e+00", "1.000e-05", "1.00000000", ">99.99%"]
    assert figures[LONG] == ["6.000e+00", "3.000e+00", "-1.00000000", "25.00%"]
    assert without_time(printed["80"]) == without_time(printed["300"])
    assert without_time(invoke("verify", "--numeric", "./one", "./two").stdout) == without_time(printed["80"])


def test_programs_get_every_figure_and_status_1_only_if_anything_differs(place: Path) -> None:
    done = invoke("diff", "./one", "./two", "--json")
    document = json.loads(done.stdout, parse_constant=pytest.fail)
    found = {one["tensor"]: one for one in document["differences"]}
    assert (done.exit_code, document["identical"]) == (1, False)
    assert found.keys() == {LONG, "nearly", "gone", "new", "bent"}
    assert all(list(one) == [field.name for field in fields(Difference)] for one in found.values())
    about = {"mean_abs": pytest.approx(1e-5), "cosine": pytest.approx(1.0), "note": ""}
    assert found["nearly"] == {"tensor": "nearly", "largest_abs": 1.0, "equal": 0.99999, **about}
    assert {found["gone"]["equal"], found["gone"]["cosine"]} == {None} and "first" in found["gone"]["note"]
    done = invoke("diff", "./one", "./one", "--json")
    assert (done.exit_code, json.loads(done.stdout)["differences"]) == (0, [])
    assert "differences" not in json.loads(invoke("verify", "./one", "./two", "--json").stdout)


def test_numbers_at_the_ends_of_float64_are_valid_json(tmp_path: Path) -> None:
    for name, sign in (("one", 1), ("two", -1)):
        (tmp_path / name).mkdir()
        save_file({"w": sign * np.array([1.5e308, np.inf, np.nan])}, tmp_path / name / "model.safetensors")
    done = invoke("diff", tmp_path / "one", tmp_path / "two", "--json")
    (found,) = json.loads(done.stdout, parse_constant=pytest.fail)["differences"]
    assert (found["largest_abs"], found["cosine"], found["equal"]) == (np.finfo(float).max, -1.0, 1 / 3)


def test_events_tell_of_the_phase_and_the_last_one_has_the_figures(place: Path) -> None:
    *before, last = map(json.loads, invoke("diff", "./one", "./two", "--events").stdout.splitlines())
    assert {event["stage"] for event in before} == {"verify", "numbers"}
    assert last["event"] == "verified" and len(last["differences"]) == 5


def test_numbers_need_the_weights(place: Path) -> None:
    done = invoke("verify", "./one", "./two", "--numeric", "--quick")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "hold no numbers" in done.stderr and "Leave out --quick" in done.stderr
    assert invoke("diff", "./one", "./two", "--quick").exit_code == 2
