"""Dequantizing while streaming, FP8 and MXFP4 to bf16, against loading dequantized and saving."""

import sys
from pathlib import Path

from harness.checkpoints import build_quantized, weight_bytes
from harness.figures import Figure, anon_megabytes, print_figures, ratio, seconds
from harness.processes import ROOT
from harness.scratch import benchmark_arguments, scratch
from harness.state import State
from harness.turns import Contender, take_turns

_OURS = "ours, a Llama in FP8"
_LOAD = "from_pretrained(dequantize) + save_pretrained"
_COPY = "cp + sync of as many bytes as are written"
_FP8 = "ours, one weight in FP8"
_MXFP4 = "ours, one weight in MXFP4"


def main() -> None:
    """Build quantized checkpoints, run all in turn, print the table."""
    parser = benchmark_arguments(__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0, help="size of each quantized checkpoint (default: 1)")
    parser.add_argument("--max-shard-size", default="500MB")
    arguments = parser.parse_args()
    size = int(arguments.gigabytes * 1e9)
    with scratch(arguments.folder, 10 * size) as folder:
        sources = {kind: folder / kind for kind in ("llama", "fp8", "mxfp4")}
        for kind, source in sources.items():
            build_quantized(source, kind, size)
        written, destination = folder / "written", folder / "destination"
        written.mkdir()
        (written / "bytes").write_bytes(bytes(1 << 20) * (2 * size >> 20))
        state = State((destination,), (*sources.values(), written), 4 * size)
        contenders = _contenders(sources, written, destination, arguments.max_shard_size)
        costs = take_turns(contenders, arguments.pairs, state)
        figures = [
            ratio(f"time, {_LOAD} to ours", seconds(costs[_LOAD]), seconds(costs[_OURS])),
            ratio(f"time, ours to {_COPY}", seconds(costs[_OURS]), seconds(costs[_COPY])),
            ratio(
                f"peak anonymous memory, {_LOAD} to ours", anon_megabytes(costs[_LOAD]), anon_megabytes(costs[_OURS])
            ),
        ]
        for name in (_OURS, _FP8, _MXFP4):
            figures.append(
                Figure(f"peak anonymous memory, {name}", anon_megabytes(costs[name]), "{:.1f} MB", "at most 150")
            )
        facts = [
            f"A random Llama of {weight_bytes(sources['llama']):,} bytes in FP8, a scale for each 128 x 128, and "
            f"single weights of {weight_bytes(sources['fp8']):,} bytes in FP8 and "
            f"{weight_bytes(sources['mxfp4']):,} in MXFP4, into bf16 shards of {arguments.max_shard_size}; digests, "
            "sync and verification included.",
            "The benchmark makes the peer's model forget how it was loaded. Otherwise save_pretrained (5.23) quantizes "
            "it again and does not write bf16.",
            str(state),
        ]
        print_figures("Dequantizing", figures, costs, facts, folder, ("torch", "transformers", "safetensors"))


def _contenders(sources: dict[str, Path], written: Path, destination: Path, max_shard_size: str) -> list[Contender]:
    def ours(kind: str) -> tuple[str, ...]:
        words = ("shard", str(sources[kind]), str(destination), "--dequantize", "--json", "-s", max_shard_size)
        return (sys.executable, "-m", "sharding", *words)

    peer = (sys.executable, str(ROOT / "bench/harness/peers.py"), "dequantize")
    copy = ("/bin/sh", "-c", 'cp -r "$1" "$2" && sync "$2"/* "$2"', "sh", str(written), str(destination))
    return [
        Contender(_OURS, ours("llama")),
        Contender(_LOAD, (*peer, str(sources["llama"]), str(destination), "--max-shard-size", max_shard_size)),
        Contender(_COPY, copy),
        Contender(_FP8, ours("fp8")),
        Contender(_MXFP4, ours("mxfp4")),
    ]


if __name__ == "__main__":
    main()
