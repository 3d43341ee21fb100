"""What each of two ranks downloads and holds: the whole repo, a repo cut with pp:2, a folder of its own part."""

import json
import subprocess
import sys
from pathlib import Path

from harness.checkpoints import build_llama, weight_bytes
from harness.hubs import environment, filled, serve
from harness.processes import ROOT
from harness.results import tell
from harness.scratch import benchmark_arguments, scratch
from rich import box
from rich.table import Table

_RANKS = 2
_SOURCE, _CUT = "alice/source", "alice/cut"
_MB = 1_000_000


def main() -> None:
    """Build a checkpoint, put it on a Hub, load it over two processes in each way, print the table."""
    parser = benchmark_arguments(__doc__, pairs=1)
    parser.add_argument("--gigabytes", type=float, default=1.5, help="size of the random bf16 Llama (default: 1.5)")
    arguments = parser.parse_args()
    with scratch(arguments.folder, int(arguments.gigabytes * 8e9)) as folder:
        build_llama(folder / "source", int(arguments.gigabytes * 1e9))
        size = weight_bytes(folder / "source")
        full = filled(folder, [folder / "source"])
        table = Table("what two ranks load", "rank", "bytes from the Hub", "peak anonymous memory", box=box.MARKDOWN)
        with serve(full) as address:
            env = dict(environment(address, folder / "home"))
            _sharding(env, _SOURCE, _CUT, "--strategy", f"pp:{_RANKS}")
            parts = [folder / f"part{rank}" for rank in range(_RANKS)]
            read = [
                _sharding(env, _SOURCE, str(part), "--strategy", f"pp:{_RANKS}", "--rank", str(rank))
                for rank, part in enumerate(parts)
            ]
            for title, places, variant, fetched in (
                ("the whole repo", [_SOURCE] * _RANKS, "", None),
                ("its variant of a repo cut with pp:2", [_CUT] * _RANKS, f"rank{{rank}}-of-{_RANKS}", None),
                ("a folder made with --rank", list(map(str, parts)), "", read),
            ):
                for rank, told in enumerate(_loaded(env, folder / title.replace(" ", "-"), places, variant)):
                    count = fetched[rank] if fetched else told["bytes"]
                    table.add_row(title, str(rank), f"{count / _MB:,.0f} MB", f"{told['anon'] / _MB:,.0f} MB")
        facts = (
            f"A random bf16 Llama of {size:,} bytes, loaded with DistributedConfig(pp_size={_RANKS}) over gloo and run "
            "once; each rank has a cache of its own.",
            "A repo is downloaded in the process that is measured, and the download takes part of its memory.",
        )
        tell("What a rank takes", table, facts, folder, ("torch", "transformers", "huggingface_hub"))


def _sharding(env: dict[str, str], *words: str) -> int:
    command = [sys.executable, "-m", "sharding", "shard", *words, "--json"]
    done = subprocess.run(command, env=env, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return int(json.loads(done.stdout)["resources"]["bytes_read"])


def _loaded(env: dict[str, str], home: Path, places: list[str], variant: str) -> list[dict[str, int]]:
    """Return the bytes that came into the cache of each rank, and its peak anonymous memory."""
    home.mkdir()
    script = str(ROOT / "bench/harness/rank.py")
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(_RANKS), script]
    command = [sys.executable, *launch, str(home), variant, *places]
    subprocess.run(command, env={**env, "OMP_NUM_THREADS": "1"}, cwd=ROOT, check=True)
    return [json.loads((home / f"{rank}.json").read_text()) for rank in range(_RANKS)]


if __name__ == "__main__":
    main()
