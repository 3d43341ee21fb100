"""Ordinary weights of packed integers, against the converter of their own library, and of GPTQ in little memory."""

import sys
from pathlib import Path

from harness.checkpoints import build_quantized, weight_bytes
from harness.figures import Figure, anon_megabytes, print_figures, ratio, seconds
from harness.processes import ROOT
from harness.scratch import benchmark_arguments, scratch
from harness.state import State
from harness.turns import Contender, take_turns

_OURS = "ours, a Llama in 4-bit integers"
_CONVERT = "convert_checkpoint of compressed-tensors"
_GPTQ = "ours, one weight of 28672 x 8192 in GPTQ"


def main() -> None:
    """Build quantized checkpoints, run all in turn, print the table."""
    parser = benchmark_arguments(__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.5, help="size of the ordinary weights (default: 1.5)")
    arguments = parser.parse_args()
    size = int(arguments.gigabytes * 1e9)
    with scratch(arguments.folder, 3 * size + 1_000_000_000) as folder:
        sources = {kind: folder / kind for kind in ("int4", "gptq")}
        for kind, source in sources.items():
            build_quantized(source, kind, size // 4)
        destination = folder / "destination"
        state = State((destination,), tuple(sources.values()), size)
        costs = take_turns(_contenders(sources, destination), arguments.pairs, state)
        figures = [
            ratio(f"time, {_OURS} to {_CONVERT}", seconds(costs[_OURS]), seconds(costs[_CONVERT]), "at most 0.8")
        ]
        for name in (_OURS, _GPTQ, _CONVERT):
            goal = "" if name is _CONVERT else "at most 200"
            figures.append(Figure(f"peak anonymous memory, {name}", anon_megabytes(costs[name]), "{:.1f} MB", goal))
        facts = [
            f"A random Llama of {weight_bytes(sources['int4']):,} bytes in 4-bit integers, a bf16 scale for each 128, "
            f"and a weight of {weight_bytes(sources['gptq']):,} bytes in GPTQ, into bf16. Ours includes digests, sync "
            "and verification. The converter has none of them.",
            str(state),
        ]
        print_figures("Ordinary weights", figures, costs, facts, folder, ("compressed-tensors", "torch", "safetensors"))


def _contenders(sources: dict[str, Path], destination: Path) -> list[Contender]:
    def ours(kind: str) -> tuple[str, ...]:
        return (
            sys.executable,
            "-m",
            "sharding",
            "shard",
            str(sources[kind]),
            str(destination),
            "--dequantize",
            "--json",
        )

    peer = (sys.executable, str(ROOT / "bench/harness/peers.py"), "convert", str(sources["int4"]), str(destination))
    return [Contender(_OURS, ours("int4")), Contender(_CONVERT, peer), Contender(_GPTQ, ours("gptq"))]


if __name__ == "__main__":
    main()
