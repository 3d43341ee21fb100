"""See every step that changes a disk, in order; let one of them fail, or be the one that a kill comes before.

Steps are what Python's `os` and `open` are asked to do, wherever that is on the disk. Reading is none.
"""

import builtins
import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock
from typing import Any, Literal

import pytest

Kind = Literal["create", "write", "truncate", "sync", "rename", "link", "remove", "mkdir", "rmdir"]

_OF_ONE: dict[str, Kind] = {
    "mkdir": "mkdir",
    "rmdir": "rmdir",
    "unlink": "remove",
    "remove": "remove",
    "truncate": "truncate",
}
_OF_TWO: dict[str, Kind] = {"rename": "rename", "replace": "rename", "link": "link", "symlink": "link"}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Killed(BaseException):
    """What was running is no more: no step comes after it, not even of tidying up."""


@dataclass(frozen=True, slots=True)
class Step:
    """Something that is done to `path`; a file that is renamed becomes `to`."""

    kind: Kind
    path: Path
    to: Path | None = None

    def __str__(self) -> str:
        return f"{self.kind} {self.path.name}" + (f" to {self.to.name}" if self.to else "")


@dataclass
class Recorder:
    """The `steps` so far. Number `fails_at` does not work; before number `dies_at` the process is killed."""

    fails_at: int | None = None
    dies_at: int | None = None
    steps: list[Step] = field(default_factory=list)
    _paths: dict[int, Path] = field(default_factory=dict)
    _files: list[io.FileIO] = field(default_factory=list)
    _lock: Any = field(default_factory=RLock)

    @property
    def is_reached(self) -> bool:
        """Whether there was a step of the number given."""
        wanted = self.fails_at if self.dies_at is None else self.dies_at
        return wanted is not None and len(self.steps) > wanted

    def take(self, kind: Kind, path: Any, to: Any = None) -> None:
        """Note a step; raise what comes of it."""
        with self._lock:
            self.steps.append(Step(kind, _absolute(path), None if to is None else _absolute(to)))
            if self.dies_at is not None and len(self.steps) > self.dies_at:
                raise Killed
            if self.fails_at == len(self.steps) - 1:
                raise OSError(errno.EIO, "a fault on purpose")

    def opened(self, path: Any, mode: str = "r", buffering: int = -1, *more: Any, **options: Any) -> Any:
        """Open a file as `open` does, so that what is written to it is seen."""
        if isinstance(path, int) or not set(mode) & set("wax+"):
            file = _OPEN(path, mode, buffering, *more, **options)
            self._files += [file] * (buffering == 0)  # a job has no other open for long
            return file
        if "a" not in mode or not os.path.exists(path):
            self.take("create", path)
        raw = _Watched(path, mode.replace("b", "").replace("t", ""), self)
        self._files.append(raw)
        self._paths[raw.fileno()] = _absolute(path)
        if buffering == 0:
            return raw
        assert "+" not in mode, "no job of ours opens a file so"
        buffered = io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, *more, **options)

    def descriptor(self, path: Any, flags: int, *more: Any, **options: Any) -> int:
        """Open a descriptor as `os.open` does."""
        if flags & _WRITING:
            self.take("create", path)
        number = _OS_OPEN(path, flags, *more, **options)
        self._paths[number] = _absolute(path)
        return number

    def sync(self, file: Any) -> None:
        """Note what `os.fsync` would sync, and leave it at that: it takes long."""
        self.take("sync", self._paths[file if isinstance(file, int) else file.fileno()])

    def close(self) -> None:
        """Close what a killed job has left open, as the system does."""
        for file in self._files:
            file.close()


class _Watched(io.FileIO):
    def __init__(self, path: Any, mode: str, recorder: Recorder) -> None:
        super().__init__(path, mode)
        self._place, self._recorder = _absolute(path), recorder

    def write(self, data: Any) -> int:
        try:
            self._recorder.take("write", self._place)
        except BaseException:
            if self._recorder.is_reached and len(self._recorder.steps) - 1 == self._recorder.dies_at:
                super().write(memoryview(data)[: len(data) // 2])  # a kill may come in the middle
            raise
        return super().write(data)

    def truncate(self, size: int | None = None) -> int:
        self._recorder.take("truncate", self._place)
        return super().truncate(size)


_OPEN, _OS_OPEN = builtins.open, os.open


def _absolute(path: Any) -> Path:
    return Path(os.path.abspath(os.fsdecode(path)))


@contextmanager
def recorded(*, fails_at: int | None = None, dies_at: int | None = None) -> Iterator[Recorder]:
    """Record the steps of the block. A `Killed` that comes out of it ends here."""
    recorder = Recorder(fails_at, dies_at)

    def of_one(kind: Kind, usual: Callable[..., Any]) -> Callable[..., Any]:
        def step(path: Any, *more: Any, **options: Any) -> Any:
            if os.path.lexists(path) != (kind == "mkdir"):  # else nothing changes
                recorder.take(kind, path)
            return usual(path, *more, **options)

        return step

    def of_two(kind: Kind, usual: Callable[..., Any]) -> Callable[..., Any]:
        def step(path: Any, to: Any, *more: Any, **options: Any) -> Any:
            recorder.take(kind, path, to)
            return usual(path, to, *more, **options)

        return step

    with pytest.MonkeyPatch.context() as patch:
        for name, kind in _OF_ONE.items():
            patch.setattr(os, name, of_one(kind, getattr(os, name)))
        for name, kind in _OF_TWO.items():
            patch.setattr(os, name, of_two(kind, getattr(os, name)))
        patch.setattr(os, "open", recorder.descriptor)
        patch.setattr(os, "fsync", recorder.sync)
        patch.setattr(builtins, "open", recorder.opened)
        patch.setattr(io, "open", recorder.opened)
        try:
            yield recorder
        except Killed:
            pass
        finally:
            recorder.close()
