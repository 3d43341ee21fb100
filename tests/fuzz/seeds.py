"""Write the corpus that fuzzing begins with: `python -m tests.fuzz.seeds`. Small files of every kind."""

import io
import json
import pickle
import struct
import tempfile
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save

from sharding import job
from tests.conftest import write_checkpoint

CORPUS = Path(__file__).parent / "corpus"


def saved(value: Any, **options: Any) -> bytes:
    """Return what torch.save writes."""
    stream = io.BytesIO()
    torch.save(value, stream, **options)
    return stream.getvalue()


def rezipped(data: bytes) -> bytes:
    """Return a torch file packed again by Python, which aligns nothing."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(stream, "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    return stream.getvalue()


def archives() -> dict[str, bytes]:
    """Return `.bin` files: of both formats, with views, wrapped, and with a pickle that is refused."""
    matrix = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    state = {
        "w": matrix,
        "tied": matrix,
        "t": matrix.t(),
        "e": torch.ones(1).expand(4),
        "p": torch.nn.Parameter(matrix),
    }
    typed = OrderedDict(a=torch.ones(2).bfloat16(), u=torch.ones(2, dtype=torch.uint16), s=torch.tensor(1.5), n=3)
    plain = saved({"w": matrix})
    return {
        "views": saved(state),
        "dtypes": saved(typed),
        "wrapped": saved({"state_dict": state, "epoch": 3}),
        "old": saved(state, _use_new_zipfile_serialization=False),
        "rezipped": rezipped(plain),
        "refused": pickle.dumps({"w": print}, protocol=2),
        "sparse": saved({"w": matrix.to_sparse()}),
    }


def pickles() -> dict[str, bytes]:
    """Return the pickles in those of `archives` that are zip files."""
    files = {name: data for name, data in archives().items() if data.startswith(b"PK")}
    return {name: zipfile.ZipFile(io.BytesIO(data)).read("archive/data.pkl") for name, data in files.items()}


def indexes() -> dict[str, bytes]:
    """Return indexes of both formats."""
    return {
        suffix: json.dumps({"metadata": {"total_parameters": 6}, "weight_map": {"a": f"x.{suffix}"}}).encode()
        for suffix in ("safetensors", "bin")
    }


def headers() -> dict[str, bytes]:
    """Return safetensors files."""
    tensors = {"a": np.zeros((2, 3), np.float32), "b": np.ones(5, np.int8), "é": np.zeros(())}
    extra = b'{"__metadata__":null,"a":["F4",[2],[0,1]],"b":{"dtype":"BOOL","shape":[],"data_offsets":[1,2],"x":{"y":[1e5]}}}'
    return {"plain": save(tensors, {"format": "pt"}), "extra": struct.pack("<Q", len(extra)) + extra + b"12"}


def reports() -> dict[str, bytes]:
    """Return a report as this tool writes it."""
    with tempfile.TemporaryDirectory() as place:
        tensors = {"model.safetensors": {"a": np.zeros(3, np.float32), "b": np.zeros(3, np.float32)}}
        source = write_checkpoint(Path(place) / "in", tensors, index=False)
        for _ in job.shard(str(source), str(Path(place) / "out"), "12"):
            pass
        return {"written": (Path(place) / "out/sharding_report.json").read_bytes(), "changed": b"\5\1\x20\4"}


if __name__ == "__main__":
    made = {"archive": archives(), "pickle": pickles(), "index": indexes(), "header": headers(), "report": reports()}
    for target, files in made.items():
        (CORPUS / target).mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (CORPUS / target / name).write_bytes(data)
