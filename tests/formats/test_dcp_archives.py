"""Pieces in `.distcp` files are what `.metadata` says of them, however many one file holds."""

import io
from pathlib import Path

import pytest
import torch

from sharding.core.errors import SourceError
from sharding.job import inspect
from sharding.recipes.laid import Laid
from tests.cli.test_forged_ranks import write_ranks
from tests.promises import promise

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
ROW = torch.zeros(1, 4)
SAYS = r", but .metadata says float32 \[1, 4\]"


def write(folder: Path, *rows: object) -> Path:
    """Write a checkpoint of one tensor in float32 with as many rows; the file holds what `torch.save` makes of each."""
    data, places = b"", []
    for row in rows:
        stream = io.BytesIO()
        torch.save(row, stream)
        places.append((len(data), stream.tell()))
        data += stream.getvalue()
    return write_ranks(folder, data, places)


@pytest.mark.parametrize(
    ("piece", "problem"),
    [
        (ROW.int(), r"it is int32 \[1, 4\]" + SAYS),
        (ROW.half(), r"it is float16 \[1, 4\]" + SAYS),
        (ROW.view(4), r"it is float32 \[4\]" + SAYS),
        (torch.zeros(2, 4), r"it is float32 \[2, 4\]" + SAYS),
        ({"w": ROW}, "it is not a tensor"),
    ],
    ids=["dtype", "shorter dtype", "dimensions", "length", "dictionary"],
)
def test_a_piece_of_another_dtype_or_shape_is_refused_wherever_it_stands(
    piece: object, problem: str, tmp_path: Path
) -> None:
    for place in range(3):
        source = write(tmp_path / str(place), *[ROW] * place, piece, *[ROW] * (2 - place))
        with pytest.raises(SourceError, match=f"The piece of w in __0_0.distcp cannot be read: {problem}"):
            inspect(str(source))


@promise("docs/formats.md#what-a-training-run-has-saved")
def test_more_pieces_in_one_file_than_are_looked_for_at_once_are_one_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharding.checkpoint.readers.dcp._PIECES_AT_ONCE", 50)
    source = write(tmp_path / "in", *[ROW] * 101)
    found = inspect(str(source))
    assert [(tensor.name, tensor.shape) for tensor in found.tensors] == [("w", (101, 4))]
    recipe = found.tensors[0].recipe
    assert isinstance(recipe, Laid)
    assert [box.offsets for box in sorted(recipe.boxes, key=lambda box: box.origin)] == [(n, 0) for n in range(101)]
    assert len({box.origin for box in recipe.boxes}) == 101
