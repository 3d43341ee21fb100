"""Play the process of a job: it says and does what a test tells it, at once, and needs no Python of its own."""

import json
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

_T = TypeVar("_T")

Told = dict[str, dict[str, Any]]
"""What a job has said, the last of each kind."""

# One of a job is led through a pipe that is named after the repo that the job writes to. One that has to discard
# something says what was written down for it beforehand.
_PLAY = """#!/bin/sh
for last; do :; done
place="STAGE/${last##*/}"
case " $* " in *" discard "*)
    echo discard >> "$place.discarded"
    . "$place.discard"
    exit
esac
printf '%s\\n' "$@" > "$place.arguments"
until [ -p "$place.pipe" ]; do sleep 0.01; done
while read -r word rest <&3; do
    case $word in
        say) printf '%s\\n' "$rest" ;;
        warn) printf '%s\\n' "$rest" >&2 ;;
        do) eval "$rest" ;;
        exit) exit "$rest" ;;
    esac
done 3<> "$place.pipe"
"""

PROGRESS = {
    **{
        "event": "progress",
        "stage": "transfer",
        "bytes_done": 1,
        "bytes_total": 2,
        "file": "f",
        "bytes_per_second": 1.0,
    },
    **{"seconds_left": None, "anon_bytes": 1, "bytes_uploaded": 1, "bytes_deduplicated": 1},
}

PROBED = {
    **{"event": "probed", "side": "original", "round": 0, "rounds": 3},
    "cost": {
        **{"outcome": "loaded", "message": "", "method": "from_pretrained", "dtype_asked": None, "cache": "warm"},
        **{"memory_limited_by": None, "seconds": {}, "peak_anon_bytes": 1, "peak_file_bytes": 1, "peak_total_bytes": 2},
    },
}


@dataclass
class Actor:
    """The process of the job that writes to one repo."""

    place: Path
    pipe: int

    def say(self, event: dict[str, Any] | str, **more: object) -> None:
        """Print an event, or a line that is none."""
        self._tell(f"say {event if isinstance(event, str) else json.dumps({**event, **more})}")

    def progress(self, **more: object) -> None:
        self.say(PROGRESS, **more)

    def shard(self, number: int, shards: int = 9, **more: object) -> None:
        shard = {"event": "shard-finished", "file": f"{number}", "bytes": 1, "number": number, "shards": shards}
        self.say({**shard, "sha256": ""}, **more)

    def publish(self, told: "Told") -> None:
        """Do all at once: plan, verify, publish, report and end well."""
        for kind in ("planned", "verified", "published", "report"):
            self.say(told[kind])
        self.exit()

    def warn(self, line: str) -> None:
        """Print a line on standard error."""
        self._tell(f"warn {line}")

    def do(self, command: str) -> None:
        """Run a line of the shell."""
        self._tell(f"do {command}")

    def ignore_stop(self) -> None:
        """Have it go on when it is told to stop, from now on; its job must have begun."""
        self.do(f"trap '' TERM; : > '{self.place}.deaf'")
        until(Path(f"{self.place}.deaf").exists)

    def exit(self, status: int = 0) -> None:
        self._tell(f"exit {status}")

    def will_discard(self, said: dict[str, Any] | None, status: int = 0) -> None:
        """Say `said` when it is told to discard what it has staged, and end so."""
        line = f"echo '{json.dumps(said)}'\n" if said is not None else ""
        Path(f"{self.place}.discard").write_text(f"{line}exit {status}\n")

    @property
    def discarded(self) -> int:
        """How often it was told to discard what it has staged."""
        told = Path(f"{self.place}.discarded")
        return len(told.read_text().split()) if told.exists() else 0

    @property
    def has_begun(self) -> bool:
        return Path(f"{self.place}.arguments").exists()

    @property
    def arguments(self) -> list[str]:
        """The command line that it was started with, from `sharding` on; it must have begun."""
        path = Path(f"{self.place}.arguments")
        words = until(lambda: path.exists() and path.read_text().splitlines())
        return words[words.index("sharding") + 1 :]

    def _tell(self, line: str) -> None:
        os.write(self.pipe, line.encode() + b"\n")


class Stage:
    """Where actors stand in the place of the command line. Each is known by the repo that its job writes to."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._actors: dict[str, Actor] = {}
        script = folder / "play"
        script.write_text(_PLAY.replace("STAGE", str(folder)))
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr("sharding.core.environment.sys.executable", str(script))

    def __call__(self, destination: str) -> Actor:
        """The actor of the job that writes to `destination`, before or after it has begun."""
        name = destination.split("/")[-1]
        if name not in self._actors:
            place = self._folder / name
            os.mkfifo(f"{place}.pipe")
            self._actors[name] = Actor(place, os.open(f"{place}.pipe", os.O_RDWR))
            self._actors[name].will_discard({"repo_deleted": True, "remark": ""})
        return self._actors[name]

    def close(self) -> None:
        for actor in self._actors.values():
            os.close(actor.pipe)


def until(found: Callable[[], _T], seconds: float = 120) -> _T:
    """Return what `found` returns as soon as it is something; fail where it never is."""
    last = time.monotonic() + seconds
    while not (seen := found()):
        assert time.monotonic() < last, "it does not come"
        time.sleep(0.005)
    return seen


def is_gone(number: int) -> bool:
    """Whether a process has ended; what nobody has waited for yet has ended too."""
    try:
        return psutil.Process(number).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
