"""Re-sharding against the floor: copying the same bytes, syncing the copy and hashing it once."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.cgroup import reason_for_none
from harness.checkpoints import build_llama, weight_bytes
from harness.figures import Figure, anon_megabytes, print_figures, ratio, seconds
from harness.processes import Cost
from harness.scratch import benchmark_arguments, scratch
from harness.state import State
from harness.turns import Contender, take_turns

_OURS = "ours"
_COPY = 'cp -r "$1" "$2" && sync "$2"/* "$2"'
_HASHES = {"openssl": ' && openssl dgst -sha256 "$2"/*', "": ""}
_LIMIT_BYTES = 200_000_000


def main() -> None:
    """Build a checkpoint, run all in turn, print the table."""
    parser = benchmark_arguments(__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.5, help="size of the random Llama (default: 1.5)")
    parser.add_argument("--max-shard-size", default="200MB")
    parser.add_argument("--cold", action="store_true", help="drop the page cache before every run (as root)")
    arguments = parser.parse_args()
    with scratch(arguments.folder, int(arguments.gigabytes * 2.2e9)) as folder:
        source, destination = folder / "source", folder / "destination"
        build_llama(source, int(arguments.gigabytes * 1e9))
        state = State((destination,), (source,), int(arguments.gigabytes * 2.2e9), arguments.cold)
        no_cgroup = reason_for_none()
        costs = take_turns(
            _contenders(source, destination, arguments.max_shard_size, limited=no_cgroup is None),
            arguments.pairs,
            state,
        )
        facts = [
            f"A random bf16 Llama of {weight_bytes(source):,} bytes into shards of {arguments.max_shard_size}, "
            "digests and verification included.",
            str(state),
            _said_of_limit(costs, no_cgroup),
        ]
        print_figures("Sharding", _figures(costs), costs, facts, folder, ("safetensors", "huggingface_hub"))


def _contenders(source: Path, destination: Path, max_shard_size: str, *, limited: bool) -> list[Contender]:
    ours = (sys.executable, "-m", "sharding", "shard", str(source), str(destination))
    contenders = [Contender(_OURS, (*ours, "--max-shard-size", max_shard_size, "--json"))]
    for tool in _HASHES:
        if not tool or shutil.which(tool):
            command = ("/bin/sh", "-c", _COPY + _HASHES[tool], "sh", str(source), str(destination))
            contenders.append(Contender(_floor(tool), command))
    if limited:
        contenders += [Contender(_within(one.title), one.command, _LIMIT_BYTES) for one in contenders[:2]]
    return contenders


def _figures(costs: dict[str, list[Cost]]) -> list[Figure]:
    ours = costs[_OURS]
    targets = {_floor("openssl"): "at most 1", _floor(""): "at most 2.2"}
    floors = [_floor(tool) for tool in _HASHES if _floor(tool) in costs]
    figures = [
        ratio(f"time, ours to {floor}", seconds(ours), seconds(costs[floor]), targets.get(floor, ""))
        for floor in floors
    ]
    inside, floor_inside = (costs.get(_within(title), []) for title in (_OURS, floors[0]))
    if _finished(inside) and _finished(floor_inside):
        figures.append(ratio(f"time within 200 MB, ours to {floors[0]}", seconds(inside), seconds(floor_inside)))
    figures.append(
        Figure("peak anonymous memory, ours", anon_megabytes(ours), "{:.1f} MB", "at most 64 MB in every run")
    )
    return figures


def _said_of_limit(costs: dict[str, list[Cost]], no_cgroup: str | None) -> str:
    if no_cgroup:
        return f"Within 200 MB: not measured, no memory cgroup (v1) can be made here ({no_cgroup})."
    runs = costs[_within(_OURS)]
    finished = sum(cost.exit_status == 0 for cost in runs)
    return (
        f"In a memory cgroup of {_LIMIT_BYTES:,} bytes, page cache included, ours finished {finished} of {len(runs)}."
    )


def _finished(costs: Sequence[Cost]) -> bool:
    return bool(costs) and all(cost.exit_status == 0 for cost in costs)


def _floor(tool: str) -> str:
    return f"cp + sync + {tool}" if tool else "cp + sync"


def _within(title: str) -> str:
    return f"{title}, within 200 MB"


if __name__ == "__main__":
    main()
