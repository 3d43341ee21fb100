"""Does memory grow with the model if a Hub reads or writes more slowly than the other side?"""

import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.checkpoints import build_llama, weight_bytes
from harness.figures import Figure, anon_megabytes, print_figures, ratio
from harness.hubs import UNKNOWN_CHUNKS, environment, serve
from harness.processes import ROOT, Surroundings
from harness.scratch import benchmark_arguments, scratch
from harness.state import State
from harness.turns import Contender, take_turns

_OVER_HTTP = "--xet-over-http"
_WAYS: Mapping[str, Sequence[str]] = {
    "Hub to Hub": (),
    "Hub to Hub, slow upload": ("POST /cas/v1/xorbs/",),
    "Hub to Hub, slow download": ("GET /cas/xorbs/",),
    "folder to Hub, slow upload": ("POST /cas/v1/xorbs/",),
}


@dataclass(frozen=True, slots=True)
class _Served:
    """Surroundings for a run: a Hub that is served where it lies, with `options`, and an empty home."""

    folder: Path
    options: Sequence[str]

    @contextmanager
    def __call__(self) -> Iterator[Surroundings]:
        home = self.folder.with_name("home")
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir()
        with serve(self.folder, (_OVER_HTTP, UNKNOWN_CHUNKS, *self.options)) as address:
            yield Surroundings(environment(address, home), home)


def main() -> None:
    """Put two checkpoints on a Hub, run all in turn, print the table."""
    parser = benchmark_arguments(__doc__, pairs=1)
    parser.add_argument("--gigabytes", type=float, nargs=2, default=[1.0, 3.0], metavar=("SMALL", "LARGE"))
    parser.add_argument("--max-shard-size", default="1GB", help="larger than all buffers (default: 1GB)")
    parser.add_argument("--megabytes-a-second", type=float, default=20.0, help="of each slow request (default: 20)")
    arguments = parser.parse_args()
    with scratch(arguments.folder, int(sum(arguments.gigabytes) * 3e9)) as folder:
        sources = {f"{gigabytes:g} GB": folder / f"source-{gigabytes:g}" for gigabytes in arguments.gigabytes}
        for source, gigabytes in zip(sources.values(), arguments.gigabytes, strict=True):
            build_llama(source, int(gigabytes * 1e9))
            _upload(source, folder / "served")
        slowly = f"--fault=slow:{arguments.megabytes_a_second * 1e6:.0f}@"
        contenders = [
            Contender(
                f"{way}, {size}",
                (
                    *(sys.executable, "-m", "sharding", "shard"),
                    str(source) if way.startswith("folder") else f"alice/{source.name}",
                    f"alice/{way}-{size[0]}".lower().replace(", ", "-").replace(" ", "-"),
                    *("--max-shard-size", arguments.max_shard_size, "--json"),
                ),
                within=_Served(folder / "served", [slowly + pattern for pattern in slow]),
            )
            for way, slow in _WAYS.items()
            for size, source in sources.items()
        ]
        state = State()
        costs = take_turns(contenders, arguments.pairs, state)
        facts = [
            *(f"{size}: {weight_bytes(source):,} bytes of weights." for size, source in sources.items()),
            f"Random bf16 Llamas, into shards of {arguments.max_shard_size}, verified. The loopback Hub serves its Xet "
            f"store over HTTP, and slow requests at {arguments.megabytes_a_second:g} MB a second each.",
            "Every run began with an empty home, so that nothing was known to be in the store and every byte went up.",
            str(state),
        ]
        figures = list(_figures(*sources, {title: anon_megabytes(runs) for title, runs in costs.items()}))
        print_figures("Back-pressure", figures, costs, facts, folder, ("huggingface_hub", "hf-xet"))


def _upload(source: Path, served: Path) -> None:
    with _Served(served, ())() as around:
        command = (sys.executable, str(ROOT / "bench/harness/peers.py"), "upload", str(source), f"alice/{source.name}")
        subprocess.run(command, env=dict(around.environment or {}), check=True)


def _figures(small: str, large: str, peaks: Mapping[str, tuple[float, ...]]) -> Iterator[Figure]:
    for way in _WAYS:
        one, other = peaks[f"{way}, {small}"], peaks[f"{way}, {large}"]
        yield ratio(f"peak anonymous memory, {way}, {large} to {small}", other, one, "about 1")
    for way in ("Hub to Hub, slow upload", "Hub to Hub, slow download"):
        slow, fast = peaks[f"{way}, {large}"], peaks[f"Hub to Hub, {large}"]
        yield ratio(f"peak anonymous memory, {way} to full speed, {large}", slow, fast, "about 1")


if __name__ == "__main__":
    main()
