"""Check a result against the SHA-256 that the Hub states for the source's files.

A result is read again anyway before it is published. Here it is read in the order of the source's files, each after
its header. That gives the bytes of these files again, and so their SHA-256. One pass proves what was read, moved and
written, in this run or an earlier one. It costs one more hash.
"""

from collections.abc import Generator, Iterable, Sequence

from sharding.checkpoint.read import merge_metadata
from sharding.core.events import Progress
from sharding.core.protocols import Source
from sharding.core.values import Checkpoint, FileEntry, Mismatch, Shard, Tensor, TensorDigest
from sharding.formats.names import RANK_SHARD_NAME
from sharding.formats.safetensors_header import Header, parse_header
from sharding.recipes.stored import are_stored, place_of
from sharding.verify.digests import Reader


def stated_files(files: Iterable[FileEntry], checkpoint: Checkpoint) -> list[FileEntry]:
    """Return the weight files of `checkpoint` with the SHA-256 that `files` state, if a result can rebuild them all.

    Else the list is empty. That is so if

    - a tensor is made of several pieces, or is in two files,
    - a file belongs to the base, or an adapter is merged,
    - a file has no SHA-256,
    - a file holds other bytes than a header and the tensors after it, or
    - a file belongs to one rank, so its names and metadata differ from the result's.
    """
    is_other = checkpoint.has_twice or checkpoint.adapter or any(file.source for file in checkpoint.weight_files)
    if is_other or not are_stored(checkpoint.tensors):
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
    """Read `tensors` of the result in `staged`, in the order of the files of `origin`; yield progress.

    Returns their digests by name, and where the rebuilt files are not as `stated`. Reads the headers of `checkpoint`
    from `origin` again. Raises SourceError, HeaderError.
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
            wrong.append(Mismatch(shard.file, "its header has changed since it was first read"))
        headers[shard.file] = parsed
        return text

    shards = [_shard(file, [place[tensor.name] for tensor in held]) for file, held in originals.items()]
    read = yield from reader.digest_shards(shards, header, [staged])
    wrong += [
        Mismatch(file.path, "the bytes that were read from it do not have the SHA-256 that the Hub states")
        for file in stated
        if read[file.path].sha256 != file.sha256
    ]
    wrong += [
        Mismatch(f"{component.folder}__metadata__", "it has changed since the headers were first read")
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
