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
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.numpy import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from tests.conftest import write_checkpoint
from tests.folders import reshard
from tests.scenarios.ranks import on_ranks

CORPUS = Path(__file__).parent / "corpus"
DISTCP = Path(__file__).parent / "distcp"


def saved(value: Any, **options: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream, **options)
    return stream.getvalue()


def rezipped(data: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(stream, "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    return stream.getvalue()


def archives() -> dict[str, bytes]:
    """Return `.bin` files: of both formats, with views, wrapped, and with a pickle that is refused."""
    matrix = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    views = {"w": matrix, "tied": matrix, "t": matrix.t(), "e": torch.ones(1).expand(4)}
    state = {**views, "p": torch.nn.Parameter(matrix)}
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
    files = {name: data for name, data in archives().items() if data.startswith(b"PK")}
    return {name: zipfile.ZipFile(io.BytesIO(data)).read("archive/data.pkl") for name, data in files.items()}


def indexes() -> dict[str, bytes]:
    metadata = {"total_parameters": 6}
    made = {end: {"metadata": metadata, "weight_map": {"a": f"x.{end}"}} for end in ("safetensors", "bin")}
    return {end: json.dumps(index).encode() for end, index in made.items()}


def headers() -> dict[str, bytes]:
    tensors = {"a": np.zeros((2, 3), np.float32), "b": np.ones(5, np.int8), "é": np.zeros(())}
    extra = b'{"__metadata__":null,"a":["F4",[2],[0,1]],"b":{"dtype":"BOOL","shape":[],"data_offsets":[1,2],"x":{"y":[1e5]}}}'
    return {"plain": save(tensors, {"format": "pt"}), "extra": struct.pack("<Q", len(extra)) + extra + b"12"}


def reports() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as place:
        tensors = {"model.safetensors": {"a": np.zeros(3, np.float32), "b": np.zeros(3, np.float32)}}
        source = write_checkpoint(Path(place) / "in", tensors, index=False)
        reshard(source, Path(place) / "out", "12")
        return {"written": (Path(place) / "out/sharding_report.json").read_bytes(), "changed": b"\5\1\x20\4"}


def sharding_infos() -> dict[str, bytes]:
    """Return what the headers of two ranks say, a line each: cut by columns and by rows, the second rank's alone."""
    first = {"a": {"saved_offsets": [0, 0]}, "b": {"saved_offsets": [0]}, "c": {"saved_offsets": []}}
    by_columns = {"a": {"saved_offsets": [0, 3]}, "b": {"saved_offsets": [4]}, "c": {"saved_offsets": []}}
    lines = [json.dumps(first), json.dumps(by_columns)]
    return {"twice": "\n".join(lines).encode(), "alone": lines[0].encode(), "none": b"{}", "list": b"[1]"}


def metadata() -> dict[str, bytes]:
    """Save tensors by two ranks; return their `.metadata`, and put the files that it names into DISTCP."""

    def save_part(_: int) -> None:
        dist.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (2,))
        rows = distribute_tensor(torch.arange(6.0).reshape(2, 3), mesh, [Shard(1)])
        state = {"a": rows, "b": distribute_tensor(torch.ones(5).bfloat16(), mesh, [Shard(0)]), "c": torch.tensor(7)}
        dcp.save({"model": state, "step": 3}, storage_writer=dcp.FileSystemWriter(f"{place}/saved"))

    with tempfile.TemporaryDirectory() as place:
        assert on_ranks(2, save_part)
        for path in Path(place, "saved").glob("*.distcp"):
            (DISTCP / path.name).write_bytes(path.read_bytes())
        data = Path(place, "saved/.metadata").read_bytes()
        return {"saved": data, "refused": pickle.dumps({"w": print}, protocol=4), "cut": data[:-40]}


if __name__ == "__main__":
    made = {"archive": archives(), "pickle": pickles(), "index": indexes(), "header": headers(), "report": reports()}
    made |= {"sharding_info": sharding_infos(), "metadata": metadata()}
    for target, files in made.items():
        (CORPUS / target).mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (CORPUS / target / name).write_bytes(data)
