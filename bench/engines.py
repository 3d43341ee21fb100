"""The job itself, streaming against classic: time, memory and disk of the same command with either engine."""

import json
import sys
from pathlib import Path

from harness.checkpoints import build_llama, weight_bytes
from harness.figures import Figure, anon_megabytes, print_figures, ratio, seconds
from harness.processes import ROOT, Cost
from harness.scratch import benchmark_arguments, scratch
from harness.state import State
from harness.turns import Contender, take_turns

_POINTS = 300
_STREAM, _CLASSIC, _CAST = "--engine stream", "--engine classic", "--engine classic --dtype fp16"


def main() -> None:
    """Build a checkpoint, run the engines in turn, print the table, draw the picture."""
    parser = benchmark_arguments(__doc__, pairs=3)
    parser.add_argument("--gigabytes", type=float, default=1.5, help="size of the random Llama (default: 1.5)")
    parser.add_argument("--max-shard-size", default="200MB")
    parser.add_argument("--picture", type=Path, help="draw memory over time into this SVG file")
    arguments = parser.parse_args()
    with scratch(arguments.folder, int(arguments.gigabytes * 5e9)) as folder:
        source, destination = folder / "source", folder / "destination"
        build_llama(source, int(arguments.gigabytes * 1e9))
        size = ("-s", arguments.max_shard_size)
        shard = (sys.executable, "-m", "sharding", "shard", str(source), str(destination), "--json", *size)
        contenders = [Contender(title, (*shard, *title.split())) for title in (_STREAM, _CLASSIC, _CAST)]
        written: dict[str, int] = {}
        costs: dict[str, list[Cost]] = {contender.title: [] for contender in contenders}
        for _ in range(arguments.pairs):
            for contender in contenders:
                state = State((destination,), (source,), int(arguments.gigabytes * 3.2e9))
                costs[contender.title] += take_turns([contender], 1, state)[contender.title]
                report = json.loads((destination / "sharding_report.json").read_text())
                written[contender.title] = report["resources"]["disk_bytes_written"]
        if arguments.picture:
            arguments.picture.write_text(_draw(costs))
        figures = list[Figure]()
        for title in (_CLASSIC, _CAST):
            figures.append(ratio(f"time, {title} to {_STREAM}", seconds(costs[title]), seconds(costs[_STREAM])))
            memory = anon_megabytes(costs[title]), anon_megabytes(costs[_STREAM])
            figures.append(ratio(f"peak anonymous memory, {title} to {_STREAM}", *memory))
        facts = [
            f"A random bf16 Llama of {weight_bytes(source):,} bytes into shards of {arguments.max_shard_size}; digests "
            "and verification included with either engine.",
            f"Written to the disk: {', '.join(f'{title} {size / 1e6:,.0f} MB' for title, size in written.items())}.",
            str(state),
        ]
        libraries = ("torch", "transformers", "accelerate", "safetensors", "huggingface_hub")
        print_figures("Streaming against classic", figures, costs, facts, folder, libraries)


def _draw(costs: dict[str, list[Cost]]) -> str:
    sys.path.append(str(ROOT))
    from sharding.loading.chart import Curve, draw_curves
    from sharding.loading.costs import Moment

    curves = []
    for title, runs in costs.items():
        curve = runs[0].curve
        thinned = curve[:: max(1, len(curve) // _POINTS)]
        curves.append(Curve(title, tuple(Moment(at, size, 0, size) for at, size in thinned)))
    return draw_curves("Memory while re-sharding", curves)


if __name__ == "__main__":
    main()
