"""Read few bytes in many places of files, such as those that say how quantized weights lie."""

from bisect import bisect
from collections.abc import Sequence

from sharding.core.limits import JOIN_GAP_BYTES
from sharding.core.protocols import Files
from sharding.core.threads import readers
from sharding.core.values import Tensor
from sharding.formats.quantization import NOTES
from sharding.recipes.stored import Stored

MAX_NOTE_BYTES = 4096


def read_notes(source: Files, tensors: Sequence[Tensor]) -> dict[str, bytes]:
    """Return the bytes of the tensors without which nobody knows the shapes of others, by name. Raises SourceError."""
    # With a scale for each few columns, the scales tell how many columns there are.
    scales = (tensor for tensor in tensors if tensor.name.endswith(".weight_scale"))
    of_channels = {scale.name for scale in scales if scale.shape[1:] in ((), (1,))}
    wanted = {
        tensor.name: (tensor.recipe.file, tensor.recipe.start_byte, tensor.recipe.end_byte)
        for tensor in tensors
        if NOTES.search(tensor.name) and isinstance(tensor.recipe, Stored) and 0 < tensor.bytes <= MAX_NOTE_BYTES
        if not tensor.name.endswith("_shape") or f"{tensor.name.removesuffix('_shape')}_scale" in of_channels
    }
    return dict(zip(wanted, read_ranges(source, list(wanted.values()), JOIN_GAP_BYTES), strict=True))


def read_ranges(source: Files, ranges: Sequence[tuple[str, int, int]], join_gap_bytes: int) -> list[bytes]:
    """Return the bytes of each range (file, start, end). Those close together are read at once. Raises SourceError."""
    runs = list[tuple[str, int, int]]()
    for file, start, end in sorted(ranges):
        if runs and file == runs[-1][0] and start <= runs[-1][2] + join_gap_bytes:
            runs[-1] = file, runs[-1][1], max(runs[-1][2], end)
        else:
            runs.append((file, start, end))
    with readers(source.ranges_at_once) as pool:
        data = list(pool.map(lambda run: b"".join(source.read(*run) if run[1] < run[2] else ()), runs))
    found = [(bisect(runs, (file, start, 1 << 63)) - 1, start, end) for file, start, end in ranges]
    return [data[at][start - runs[at][1] : end - runs[at][1]] for at, start, end in found]
