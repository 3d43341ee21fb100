"""Show that a result holds what the Hub states of the source: put together again, its files have the same SHA-256.

A result is read again anyway before it is published. Read in the order in which the source's files hold its tensors,
behind their headers, it gives the bytes of these files, and so their hashes: one pass proves what was read, moved and
written, in this run or an earlier one, and costs one hash more.
"""

from collections.abc import Generator, Iterable, Sequence

from sharding.checkpoint.read import merge_metadata
from sharding.core.events import Progress
from sharding.core.protocols import Source
from sharding.core.values import Checkpoint, FileEntry, Header, Mismatch, Shard, Tensor, TensorDigest
from sharding.formats.names import RANK_SHARD_NAME
from sharding.formats.safetensors_header import parse_header
from sharding.recipes.stored import are_stored, place_of
from sharding.verify.digests import Reader


def stated_files(files: Iterable[FileEntry], checkpoint: Checkpoint) -> list[FileEntry]:
    """Return the weight files of `checkpoint`, whose tensors are as they lie, with the SHA-256 that `files` state.

    Empty where a tensor is made of several pieces, or a file is the base's, is not stated, holds something else than a
    header and tensors from there to its end, or is one rank's, whose names and metadata are not those of the result.
    """
    if not are_stored(checkpoint.tensors) or any(file.source for file in checkpoint.weight_files):
        return []
    starts: dict[str, int] = {}
    filled: dict[str, int] = {}
    for tensor in checkpoint.tensors:
        start = place_of(tensor).start_byte
        starts[tensor.file] = min(start, starts.get(tensor.file, start))
        filled[tensor.file] = filled.get(tensor.file, 0) + tensor.bytes
    ends = {path: start + filled[path] for path, start in starts.items()}
    stated = {file.path: file for file in files if file.sha256 and file.path.endswith(".safetensors")}
    weights = [stated[file.path] for file in checkpoint.weight_files if file.path in stated]
    complete = {file.path for file in weights if ends.get(file.path, file.bytes) == file.bytes}
    if any(RANK_SHARD_NAME.fullmatch(file.path) for file in weights):
        return []
    return weights if complete >= ends.keys() and len(complete) == len(checkpoint.weight_files) else []


def digest_as_stored(
    checkpoint: Checkpoint,
    origin: Source,
    stated: Sequence[FileEntry],
    staged: Source,
    tensors: Iterable[Tensor],
    reader: Reader,
) -> Generator[Progress, None, tuple[dict[str, TensorDigest], list[Mismatch]]]:
    """Have `tensors`, those of `checkpoint` where they lie in `staged`, read as the files of `origin` hold them.

    Return their digests by name, and what is not as it is `stated`. Headers are read from `origin` once more.
    Raises SourceError, HeaderError.
    """
    place = {tensor.name: tensor for tensor in tensors}
    files = {file.path: file for file in stated}
    originals: dict[str, list[Tensor]] = {path: [] for path in files}
    for tensor in checkpoint.tensors:
        originals[tensor.file].append(tensor)
    headers: dict[str, Header] = {}
    wrong: list[Mismatch] = []

    def header(shard: Shard) -> bytes:
        original = originals[shard.file]
        end = min((place_of(tensor).start_byte for tensor in original), default=files[shard.file].bytes)
        text = b"".join(origin.read(shard.file, 0, end))
        parsed = parse_header(text, files[shard.file].bytes, shard.file)
        if list(parsed.tensors) != original:
            wrong.append(Mismatch(shard.file, "its header says something else than it did when it was first read"))
        headers[shard.file] = parsed
        return text

    shards = [_shard(file, [place[tensor.name] for tensor in held]) for file, held in originals.items()]
    read = yield from reader.digest_shards(shards, header, [staged])
    wrong += [
        Mismatch(file.path, "what was read of it does not have the SHA-256 that the Hub states")
        for file in stated
        if read[file.path].sha256 != file.sha256
    ]
    wrong += [
        Mismatch(f"{component.folder}__metadata__", "it is not what the headers said when they were first read")
        for component in checkpoint.components
        if merge_metadata([headers[shard.file] for shard in shards if shard.folder == component.folder])[0]
        != component.metadata
    ]
    digests = {
        tensor.name: TensorDigest(tensor.dtype, tensor.shape, read[shard.file].tensor_blake3[tensor.name])
        for shard in shards
        for tensor in shard.tensors
    }
    return digests, wrong


def _shard(file: str, tensors: Sequence[Tensor]) -> Shard:
    return Shard(file, tuple(tensors), sum(tensor.bytes for tensor in tensors))
