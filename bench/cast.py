"""Casting while streaming, fp32 to fp16 and bf16, against copying the same bytes and against loading and saving."""

import sys
from pathlib import Path

from harness.checkpoints import build_llama, weight_bytes
from harness.figures import Figure, anon_megabytes, print_figures, ratio, seconds
from harness.processes import ROOT
from harness.scratch import benchmark_arguments, scratch
from harness.state import State
from harness.turns import Contender, take_turns

_KEPT = "ours, no cast"
_COPY = "cp + sync"
_PLAN = "plan"
_LOADED = {dtype: f"from_pretrained(dtype={dtype}) + save_pretrained" for dtype in ("float16", "bfloat16")}
_OURS = {"float16": "ours, fp32 to fp16", "bfloat16": "ours, fp32 to bf16"}
_OPTIONS = {"float16": "fp16", "bfloat16": "bf16"}


def main() -> None:
    """Build a checkpoint, run all in turn, print the table."""
    parser = benchmark_arguments(__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.5, help="size of the random Llama (default: 1.5)")
    parser.add_argument("--max-shard-size", default="200MB")
    arguments = parser.parse_args()
    with scratch(arguments.folder, int(arguments.gigabytes * 3.2e9)) as folder:
        source, destination = folder / "source", folder / "destination"
        build_llama(source, int(arguments.gigabytes * 1e9), "F32")
        state = State((destination,), (source,), int(arguments.gigabytes * 3.2e9))
        costs = take_turns(_contenders(source, destination, arguments.max_shard_size), arguments.pairs, state)
        copied = seconds(costs[_COPY])
        figures = [ratio(f"time, {ours} to {_COPY}", seconds(costs[ours]), copied) for ours in _OURS.values()]
        for dtype, ours in _OURS.items():
            peer, memory = _LOADED[dtype], anon_megabytes(costs[ours])
            figures += [
                ratio(f"time, {peer} to {ours}", seconds(costs[peer]), seconds(costs[ours]), "at least 1.5"),
                ratio(f"peak anonymous memory, {peer} to ours", anon_megabytes(costs[peer]), memory),
                Figure(f"peak anonymous memory, {ours}", memory, "{:.1f} MB", "at most 150"),
            ]
        planned = seconds(costs[f"{_PLAN} --dtype fp16"])
        figures.append(ratio(f"time, {_PLAN} --dtype fp16 to {_PLAN}", planned, seconds(costs[_PLAN]), "at most 1.5"))
        facts = [
            f"A random fp32 Llama of {weight_bytes(source):,} bytes into shards of {arguments.max_shard_size}.",
            "Digests, sync and verification are included.",
            "What the class keeps in fp32 stands in a table of this package: nobody is asked.",
            str(state),
        ]
        print_figures("Casting", figures, costs, facts, folder, ("numpy", "ml_dtypes", "torch", "transformers"))


def _contenders(source: Path, destination: Path, max_shard_size: str) -> list[Contender]:
    ours = (sys.executable, "-m", "sharding", "shard", str(source), str(destination), "--json", "-s", max_shard_size)
    plan = (sys.executable, "-m", "sharding", "plan", str(source), "--json", "-s", max_shard_size)
    peer = (sys.executable, str(ROOT / "bench/harness/peers.py"), "transformers", str(source), str(destination))
    copy = ("/bin/sh", "-c", 'cp -r "$1" "$2" && sync "$2"/* "$2"', "sh", str(source), str(destination))
    return [
        *(Contender(_OURS[dtype], (*ours, "--dtype", option)) for dtype, option in _OPTIONS.items()),
        Contender(_KEPT, ours),
        Contender(_COPY, copy),
        *(
            Contender(_LOADED[dtype], (*peer, "--max-shard-size", max_shard_size, "--dtype", option))
            for dtype, option in _OPTIONS.items()
        ),
        Contender(_PLAN, plan),
        Contender(f"{_PLAN} --dtype fp16", (*plan, "--dtype", "fp16")),
    ]


if __name__ == "__main__":
    main()
