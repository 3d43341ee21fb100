"""Merging an adapter while streaming, against loading both with PEFT, merging in memory and saving."""

import filecmp
import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

import numpy as np
from harness.checkpoints import build_adapter, build_llama, weight_bytes
from harness.figures import Figure, anon_megabytes, print_figures, ratio, seconds
from harness.hubs import HubState, filled
from harness.processes import ROOT, Cost, Surroundings, run
from harness.scratch import benchmark_arguments, scratch
from harness.state import State
from harness.turns import Contender, take_turns

_PEFT = "PEFT: load, merge_and_unload, save_pretrained"
_OURS, _PLAIN, _HUB = "ours", "ours without torch", "ours, Hub to Hub"
_COPY = "cp + sync of as many bytes as are written"
_DORA, _PEFT_DORA = "ours, DoRA", "PEFT, DoRA"
_DISK_BYTES = 64_000_000


def main() -> None:
    """Build a base and two adapters, run all in turn, print the table."""
    parser = benchmark_arguments(__doc__, pairs=3)
    parser.add_argument("--gigabytes", type=float, default=1.5, help="size of the random Llama (default: 1.5)")
    parser.add_argument("--rank", type=int, default=64, help="rank of both adapters (default: 64)")
    parser.add_argument("--max-shard-size", default="200MB")
    arguments = parser.parse_args()
    with scratch(arguments.folder, int(arguments.gigabytes * 9e9)) as folder:
        base = folder / "base"
        build_llama(base, int(arguments.gigabytes * 1e9))
        for kind in ("lora", "dora"):
            build_adapter(folder / kind, base, arguments.rank, is_dora=kind == "dora")
        adapters = [folder / kind for kind in ("lora", "dora")]
        state = State((folder / "out", folder / "served"), (base, *adapters), int(arguments.gigabytes * 3.2e9))
        contenders = _contenders(folder, arguments.max_shard_size)
        costs = take_turns(contenders.values(), arguments.pairs, state)
        facts = [
            f"A random bf16 Llama of {weight_bytes(base):,} bytes, and adapters of rank {arguments.rank} on all linear "
            f"layers of {weight_bytes(adapters[0]):,} bytes in fp32; into shards of {arguments.max_shard_size}.",
            "Ours includes sync, digests and reading the result again. PEFT does none of that.",
            "Without torch: an interpreter that finds no torch, so numpy multiplies.",
            f"Hub to Hub: HF_HOME, TMPDIR and the working directory are on a file system of {_DISK_BYTES:,} bytes, in "
            "memory. There is no network: the client's time includes the work of the loopback Hub's store.",
            *_said_of_bytes(folder, contenders),
            str(state),
        ]
        libraries = ("torch", "transformers", "peft", "numpy", "huggingface_hub")
        print_figures("Merging an adapter", _figures(costs), costs, facts, folder, libraries)


def _contenders(folder: Path, max_shard_size: str) -> dict[str, Contender]:
    base, out = str(folder / "base"), str(folder / "out")
    size = ("--max-shard-size", max_shard_size)
    ours = ("-m", "sharding", "shard", base, out, "--json", *size, "--adapter")
    peer = (sys.executable, str(ROOT / "bench/harness/peers.py"), "merge", base, out, *size, "--adapter")
    written = folder / "written"
    written.mkdir()
    (written / "bytes").write_bytes(bytes(1 << 20) * (weight_bytes(folder / "base") >> 20))
    copy = ("/bin/sh", "-c", 'cp -r "$1" "$2" && sync "$2"/* "$2"', "sh", str(written), out)
    full = filled(folder, [folder / "base", folder / "lora"])
    hub = (sys.executable, "-m", "sharding", "shard", "alice/base", "alice/out", "--json", *size)
    lora, dora = str(folder / "lora"), str(folder / "dora")
    every = [
        Contender(_OURS, (sys.executable, *ours, lora)),
        Contender(_PEFT, (*peer, lora)),
        _without_torch(folder / "packages", (*ours, lora)),
        Contender(_COPY, copy),
        Contender(
            _HUB, (*hub, "--adapter", "alice/lora"), within=HubState(folder / "served", full, (), _DISK_BYTES)
        ),
        Contender(_DORA, (sys.executable, *ours, dora)),
        Contender(_PEFT_DORA, (*peer, dora)),
    ]  # fmt: skip
    return {contender.title: contender for contender in every}


def _without_torch(packages: Path, arguments: tuple[str, ...]) -> Contender:
    """Return `arguments` for an interpreter that finds all packages of this one except torch."""
    packages.mkdir()
    for place in [Path(entry) for entry in sys.path if entry.endswith("site-packages")]:
        for path in place.iterdir():
            if not path.name.startswith("torch") and not (packages / path.name).exists():
                (packages / path.name).symlink_to(path)
    surroundings = Surroundings({**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, packages)))})
    interpreter = getattr(sys, "_base_executable", sys.executable)
    return Contender(_PLAIN, (interpreter, "-S", *arguments), within=lambda: nullcontext(surroundings))


def _figures(costs: Mapping[str, list[Cost]]) -> list[Figure]:
    pairs = ((_PEFT, _OURS), (_PEFT, _PLAIN), (_PEFT_DORA, _DORA))
    return [
        *(ratio(f"time, {one} to {other}", seconds(costs[one]), seconds(costs[other])) for one, other in pairs),
        ratio(f"time, {_OURS} to {_COPY}", seconds(costs[_OURS]), seconds(costs[_COPY])),
        *(
            ratio(f"peak anonymous memory, {one} to {other}", anon_megabytes(costs[one]), anon_megabytes(costs[other]))
            for one, other in pairs
        ),
        *(
            Figure(f"peak anonymous memory, {title}", anon_megabytes(costs[title]), "{:.1f} MB", most)
            for title, most in ((_OURS, "at most 200"), (_PLAIN, "at most 200"), (_HUB, "at most 500"))
        ),
    ]


def _said_of_bytes(folder: Path, contenders: Mapping[str, Contender]) -> list[str]:
    """Run those that write the same once more, and return what differs between their files."""
    out = folder / "out"
    for title in (_OURS, _PLAIN, _PEFT):
        State((out, folder / title)).restore()
        with contenders[title].within() as surroundings:
            run(contenders[title].command, surroundings=surroundings)
        out.rename(folder / title)
    names = sorted(path.name for path in (folder / _PEFT).glob("model*"))
    same, _, _ = filecmp.cmpfiles(folder / _OURS, folder / _PEFT, names, shallow=False)
    files = [name for name in names if name.endswith(".safetensors")]
    pairs = [[np.memmap(folder / title / name, np.uint16) for title in (_OURS, _PLAIN)] for name in files]
    others = sum(int((one != other).sum()) for one, other in pairs) / sum(len(one) for one, _ in pairs)
    return [
        f"{len(same)} of the {len(names)} files (shards and index) of PEFT are byte for byte in ours.",
        f"Without torch, {others:.1e} of the bf16 numbers have other bits.",
    ]


if __name__ == "__main__":
    main()
