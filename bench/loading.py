"""What re-sharding changes about loading: the same model in several dtypes and formats, original against copy."""

import json
import subprocess
import sys
from pathlib import Path

from harness.checkpoints import build_llama, weight_bytes
from harness.processes import ROOT
from harness.results import tell
from harness.scratch import benchmark_arguments, scratch
from rich import box
from rich.table import Table


def main() -> None:
    """Build the checkpoints, compare each pair, print one row a comparison and the verdicts."""
    parser = benchmark_arguments(__doc__, pairs=3)
    parser.add_argument("--gigabytes", type=float, default=1.5, help="size of the random bf16 Llama (default: 1.5)")
    parser.add_argument("--max-shard-size", default="200MB")
    arguments = parser.parse_args()
    with scratch(arguments.folder, int(arguments.gigabytes * 12e9)) as folder:
        _build(folder, int(arguments.gigabytes * 1e9), arguments.max_shard_size)
        found = {
            title: _compare(folder, *pair, arguments.pairs, *options) for title, (pair, options) in _COMPARISONS.items()
        }
        _print(found, folder)


_COMPARISONS: dict[str, tuple[tuple[str, str], tuple[str, ...]]] = {
    "bf16, same dtype re-sharded": (("bf16", "bf16-sharded"), ()),
    "fp32, same dtype re-sharded": (("fp32", "fp32-sharded"), ()),
    "pytorch_model.bin, re-sharded as safetensors": (("bin", "bf16-sharded"), ()),
    "loaded as fp16: bf16 original, copy stored as fp16": (("bf16", "fp16-sharded"), ("--dtype", "fp16")),
    "loaded as bf16: fp32 original, copy stored as bf16": (("fp32", "bf16-sharded"), ("--dtype", "bf16")),
    "loaded as fp16: bf16 original, bf16 copy": (("bf16", "bf16-sharded"), ("--dtype", "fp16")),
    "memory mapping off: one file, many files": (("bf16-single", "bf16-sharded"), ("--no-mmap",)),
    "load_checkpoint_and_dispatch": (("bf16", "bf16-sharded"), ("--method", "load_checkpoint_and_dispatch")),
    "fp16 under a limit of 0.7 × the model above torch": (
        ("bf16", "fp16-sharded"),
        ("--dtype", "fp16", "--memory-limit", "LIMIT"),
    ),
}


def _build(folder: Path, size: int, max_shard_size: str) -> None:
    build_llama(folder / "bf16", size)
    _run("-c", _RESAVE, str(folder))
    for name, source in (("bf16-sharded", "bf16"), ("fp32-sharded", "fp32"), ("fp16-sharded", "fp16")):
        _run("-m", "sharding", "shard", str(folder / source), str(folder / name), "-s", max_shard_size, "--json")
    _run("-m", "sharding", "shard", str(folder / "bf16"), str(folder / "bf16-single"), "-s", "1TB", "--json")


_RESAVE = """
import sys, torch
from pathlib import Path
from transformers import AutoModelForCausalLM
folder = Path(sys.argv[1])
for name, dtype in (("fp32", torch.float32), ("fp16", torch.float16)):
    model = AutoModelForCausalLM.from_pretrained(folder / "bf16", dtype=dtype)
    model.save_pretrained(folder / name, max_shard_size="1TB")
model = AutoModelForCausalLM.from_pretrained(folder / "bf16")
model.config.save_pretrained(folder / "bin")
torch.save(model.state_dict(), folder / "bin" / "pytorch_model.bin")
"""


def _compare(folder: Path, original: str, sharded: str, rounds: int, *options: str) -> dict:  # type: ignore[type-arg]
    limit = str(int(275e6 + 0.7 * weight_bytes(folder / "bf16")))
    words = [limit if word == "LIMIT" else word for word in options]
    command = ["-m", "sharding", "compare", str(folder / original), str(folder / sharded), "--json"]
    said = _run(*command, "--rounds", str(rounds), *words)
    comparison = json.loads(said)
    print(f"{original} / {sharded} {' '.join(words)}: {comparison['verdict']['sentence']}", file=sys.stderr, flush=True)
    return comparison  # type: ignore[no-any-return]


def _run(*words: str) -> str:
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{words[:4]} ended with {done.returncode}: {done.stderr[-1500:]}")
    return done.stdout


def _print(found: dict[str, dict], folder: Path) -> None:  # type: ignore[type-arg]
    table = Table(
        "load",
        "side",
        "load + forward + tokens",
        "peak anonymous",
        "anonymous, predicted",
        "file-mapped",
        box=box.MARKDOWN,
    )
    for title, comparison in found.items():
        for side in ("original", "sharded"):
            table.add_row(title if side == "original" else "", side, *_cells(comparison, side))
    facts = [f"{title}: **{one['verdict']['kind']}**. {one['verdict']['sentence']}" for title, one in found.items()]
    facts.append(f"Cache: {found['bf16, same dtype re-sharded']['original']['cache']}. Medians (smallest..largest).")
    tell("Loading", table, facts, folder, ("torch", "transformers", "accelerate", "safetensors"))


def _cells(comparison: dict, side: str) -> list[str]:  # type: ignore[type-arg]
    figures, predicted = comparison[side], comparison["predicted"][side]
    if figures["outcome"] != "loaded":
        return [figures["outcome"], "", f"{predicted['peak_anon_bytes'] / 1e6:.0f} MB", ""]
    seconds, anon, file = (figures[key] for key in ("working_seconds", "peak_anon_bytes", "peak_file_bytes"))
    return [
        f"{seconds['median']:.1f} s ({seconds['low']:.1f}..{seconds['high']:.1f})",
        f"{anon['median'] / 1e6:.0f} MB ({anon['low'] / 1e6:.0f}..{anon['high'] / 1e6:.0f})",
        f"{predicted['peak_anon_bytes'] / 1e6:.0f} MB",
        f"{file['median'] / 1e6:.0f} MB",
    ]


if __name__ == "__main__":
    main()
