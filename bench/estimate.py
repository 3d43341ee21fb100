"""Estimates of time against the time that jobs take: five well-known models, fresh and after a job of another model."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.hubs import HubState, filled
from harness.processes import ROOT, Others
from harness.results import tell
from harness.scratch import benchmark_arguments, scratch
from harness.shapes import SHAPES, build_shape
from rich import box
from rich.table import Table

_RESULT = "alice/result"
_NEEDED_BYTES = 3_000_000_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """The estimate for a model by a fresh desk, the time of its job, and the estimates after jobs of other models.

    `others_cores` is what everybody else on the machine used during the job.
    """

    told: Mapping[str, Any]
    others_cores: float
    later: tuple[Mapping[str, Any], ...]

    def ratio(self, estimate: Mapping[str, Any]) -> float:
        """Return the measured time divided by the middle of an estimate."""
        return float(self.told["seconds"] / ((estimate["lower"] + estimate["upper"]) / 2))


def main() -> None:
    """Fill a Hub, estimate and do each job, print the table."""
    parser = benchmark_arguments(__doc__)
    parser.add_argument("--answers", type=float, nargs="+", default=[0, 0.05], help="seconds that the Hub waits")
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=list(SHAPES))
    arguments = parser.parse_args()
    table = Table(
        "model", "Hub waits", "files", "estimate", "took", "took / middle", "after another", "others", box=box.MARKDOWN
    )
    outside = 0
    with scratch(arguments.folder, _NEEDED_BYTES) as folder:
        for name in arguments.models:
            build_shape(name, folder / name)
        full = filled(folder, [folder / name for name in arguments.models])
        for answer in arguments.answers:
            for name, outcome in _outcomes(folder, full, answer, arguments.models).items():
                told, later = outcome.told, sorted(map(outcome.ratio, outcome.later))
                fresh = outcome.ratio(told)
                outside += sum(not 0.5 <= ratio <= 2 for ratio in (fresh, *later))
                table.add_row(
                    f"{SHAPES[name].title}, {told['bytes'] / 1e9:.1f} GB",
                    f"{1000 * answer:.0f} ms",
                    f"{told['source_files']:,} to {told['files']:,}",
                    str(told["shown"]),
                    f"{told['seconds']:.0f} s",
                    f"{fresh:.2f}",
                    f"{later[0]:.2f}..{later[-1]:.2f}" if later else "",
                    f"{outcome.others_cores:.1f} cores",
                )
        facts = [
            "Headers of these models, and holes for the weights. "
            + "; ".join(
                f"{SHAPES[name].title}: {SHAPES[name].remark}" for name in arguments.models if SHAPES[name].remark
            )
            + ".",
            "Each job is Hub to Hub, in the size that the page suggests. Its time is from Start to the end. The Hub "
            "waits so long before every answer. Its store is on the disk of the same machine, where nothing waits.",
            'The estimate is that of a desk that has done no job. "After another" is took / middle of the estimates of '
            "fresh processes that found one finished job, in turn one of each other model.",
            "Others: what everybody else on the machine used during the job. No estimate can foresee that.",
            f"Outside of 0.5 to 2: {outside}.",
        ]
        tell("Estimates of time", table, facts, folder, ("huggingface_hub", "hf-xet"))


def _outcomes(folder: Path, full: Path, answer: float, names: list[str]) -> dict[str, Outcome]:
    """Do the job of each model on a Hub that waits `answer` seconds; return what was estimated and what it took."""
    options = [f"--fault=delay:{answer}@."] if answer else []
    state = HubState(folder / "served", full, options)
    desks, told, others = {name: folder / f"desk-{answer}-{name}" for name in names}, {}, {}
    for name in names:
        meter = Others()
        with state() as around:
            told[name] = _ask(around.environment, name, desks[name], _RESULT)
        others[name] = meter.cores()
    with state() as around:
        later = {
            name: tuple(
                _ask(around.environment, name, _copied(desks[other], folder)) for other in names if other != name
            )
            for name in names
        }
    return {name: Outcome(told[name], others[name], later[name]) for name in names}


def _ask(environment: Mapping[str, str] | None, name: str, desk: Path, *destination: str) -> Mapping[str, Any]:
    desk.mkdir(mode=0o700, exist_ok=True)
    command = [sys.executable, "-m", "bench.harness.asked", f"alice/{name}", str(desk), *destination]
    done = subprocess.run(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    told: Mapping[str, Any] = json.loads(done.stdout)
    print(f"{name}: {told}", file=sys.stderr, flush=True)
    return told


def _copied(desk: Path, folder: Path) -> Path:
    copy = folder / "desk"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(desk, copy)
    return copy


if __name__ == "__main__":
    main()
