"""Read the few bytes in which files say how their quantized weights lie."""

from collections.abc import Iterable, Iterator

from sharding.core.limits import JOIN_GAP_BYTES
from sharding.core.protocols import Files
from sharding.core.threads import readers
from sharding.core.values import Tensor
from sharding.formats.quantization import NOTES
from sharding.recipes.stored import Stored

MAX_NOTE_BYTES = 4096


def read_notes(source: Files, tensors: Iterable[Tensor]) -> dict[str, bytes]:
    """Return the bytes of the tensors without which nobody knows the shapes of others, by name. Raises SourceError."""
    noted = [tensor for tensor in tensors if NOTES.search(tensor.name)]
    if not noted:
        return {}
    # With a scale for each few columns, the scales tell how many columns there are.
    of_channels = {
        tensor.name for tensor in tensors if tensor.name.endswith(".weight_scale") and tensor.shape[1:] in ((), (1,))
    }
    wanted = [
        (tensor.recipe, tensor.name)
        for tensor in noted
        if isinstance(tensor.recipe, Stored) and 0 < tensor.bytes <= MAX_NOTE_BYTES
        if not tensor.name.endswith("_shape") or f"{tensor.name.removesuffix('_shape')}_scale" in of_channels
    ]
    with readers(source.ranges_at_once) as pool:
        found = pool.map(lambda run: _read(source, run), list(_runs(sorted(wanted))))
        return {name: data for notes in found for name, data in notes.items()}


_Run = list[tuple[Stored, str]]  # Neighbours in a file, which are read at once.


def _runs(wanted: _Run) -> Iterator[_Run]:
    run: _Run = []
    for place, name in wanted:
        if run and (place[:2] != run[-1][0][:2] or place.start_byte - run[-1][0].end_byte > JOIN_GAP_BYTES):
            yield run
            run = []
        run.append((place, name))
    if run:
        yield run


def _read(source: Files, run: _Run) -> dict[str, bytes]:
    start, file = run[0][0].start_byte, run[0][0].file
    data = b"".join(source.read(file, start, run[-1][0].end_byte))
    return {name: data[place.start_byte - start : place.end_byte - start] for place, name in run}
