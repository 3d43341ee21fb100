"""What a job costs in memory is what the kernel cannot drop: files that are mapped are not in it."""

import builtins
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from sharding.core.meter import Meter, anon_bytes

MB = 1_000_000
HAS_PROC = Path("/proc/self/status").exists()


@pytest.fixture
def no_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system without /proc."""
    usual: Callable[..., Any] = builtins.open

    def opened(path: Any, *given: Any, **more: Any) -> Any:
        if str(path).startswith("/proc/"):
            raise FileNotFoundError(path)
        return usual(path, *given, **more)

    monkeypatch.setattr("builtins.open", opened)


@pytest.mark.skipif(not HAS_PROC, reason="only Linux has /proc")
def test_memory_of_this_process_is_counted_and_a_mapped_file_is_not(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(80 * MB))
    with (tmp_path / "file").open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        before, resident = anon_bytes(), psutil.Process().memory_info().rss
        assert int(np.frombuffer(mapped, np.uint8)[::4096].sum()) == 0  # touches every page
        assert psutil.Process().memory_info().rss - resident > 60 * MB
        assert anon_bytes() - before < 20 * MB
        kept = np.ones(80 * MB, np.uint8)
        assert 70 * MB < anon_bytes() - before < 100 * MB
        assert anon_bytes(psutil.Process().pid) == pytest.approx(anon_bytes(), abs=5 * MB)
    assert kept[0] == 1


@pytest.mark.parametrize("pid", [None, 1234])
def test_where_there_is_no_proc_the_unique_set_of_psutil_stands_in(
    no_proc: None, monkeypatch: pytest.MonkeyPatch, pid: int | None
) -> None:
    class Process:
        def __init__(self, asked: int | None) -> None:
            assert asked == pid

        def memory_full_info(self) -> Any:
            return type("Memory", (), {"uss": 123 * MB, "rss": 999 * MB, "vms": 9999 * MB})

    monkeypatch.setattr("psutil.Process", Process)
    assert anon_bytes(pid) == 123 * MB


def test_a_process_that_has_ended_takes_nothing(no_proc: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(pid: int | None) -> None:
        raise psutil.NoSuchProcess(pid or 0)

    monkeypatch.setattr("psutil.Process", gone)
    assert anon_bytes(1 << 22) == 0


def test_a_peak_is_kept_when_the_memory_is_free_again() -> None:
    with Meter() as meter:
        kept = np.ones(80 * MB, np.uint8)
        now = anon_bytes()
        while meter.peak_anon_bytes < now - 20 * MB:
            pass  # it looks fifty times a second
        del kept
    assert now - 20 * MB < meter.peak_anon_bytes < now + 50 * MB
    assert meter.anon_bytes <= meter.peak_anon_bytes and meter.seconds > 0
