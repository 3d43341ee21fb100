"""Small files as torch writes them: some of them are in the corpus that fuzzing begins with."""

import io
import pickle
import zipfile
from collections import OrderedDict
from typing import Any

import torch


def saved(value: Any, **options: Any) -> bytes:
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
