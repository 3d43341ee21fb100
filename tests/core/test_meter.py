"""Memory is that of the kernel on Linux; elsewhere something stands in, and the report says what."""

import gc
import mmap
import os
from pathlib import Path

import psutil
import pytest

from sharding.core.meter import Meter, anon_bytes
from sharding.loading.measure import describe_machine

SIZE = 64 << 20
has_proc = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the kernel's own figures are in /proc")


def kernels_own() -> int:
    """Pages that are there and not mapped of a file or shared (proc(5), statm), in bytes."""
    _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


@has_proc
def test_anonymous_memory_is_that_of_the_kernel_and_mapped_files_are_none(tmp_path: Path) -> None:
    # Other threads of this process may take some, or give it back.
    (tmp_path / "file").write_bytes(b"1" * SIZE)
    gc.collect()
    own = pytest.approx(kernels_own(), rel=0.1)
    assert anon_bytes() == own and anon_bytes(os.getpid()) == own
    before = anon_bytes()
    with mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE) as taken, (tmp_path / "file").open("rb") as stream:
        taken.write(b"1" * SIZE)
        gc.collect()
        assert anon_bytes() - before == pytest.approx(SIZE, rel=0.1)
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            assert sum(mapped[:: mmap.PAGESIZE]) == 49 * SIZE // mmap.PAGESIZE
            assert anon_bytes() - before == pytest.approx(SIZE, rel=0.1)
    assert anon_bytes() - before < SIZE // 10


@has_proc
def test_the_peak_is_remembered_when_the_memory_is_given_back() -> None:
    with Meter() as meter, mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE) as taken:
        taken.write(b"1" * SIZE)
        high, seen = anon_bytes(), meter.peak_anon_bytes
        while meter.peak_anon_bytes < 0.99 * high and seen >= 0:
            seen = meter.peak_anon_bytes
    assert meter.peak_anon_bytes == pytest.approx(high, rel=0.02)


@has_proc
def test_where_there_is_no_proc_the_unique_set_stands_in_and_the_report_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = "memory counted as psutil's unique or resident set size"
    assert "psutil" not in describe_machine()
    own = psutil.Process().memory_full_info().uss
    monkeypatch.setattr("sharding.core.meter._STATUS", "/no/proc/{}/status")
    assert anon_bytes() == pytest.approx(own, rel=0.05)
    assert describe_machine().endswith(f", {said}")


def test_a_process_that_is_not_there_takes_no_memory() -> None:
    assert anon_bytes(2**22 + 1) == 0  # no number of a process is so high (proc(5), pid_max)
