"""Check what was read and made against the hashes that a Hub states for the source's files.

A result is read again anyway before it is published. If its tensors were moved as they are, it is read in the order of
the source's files, each after its header. That gives their SHA-256, so one pass proves what was read, moved and
written, in this run or an earlier one. If tensors are cast, computed or put together, a job notes the BLAKE3 of every
range that it reads. Then each file is read once more as a whole: for its SHA-256, and the BLAKE3 of the same ranges.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import replace

from sharding.checkpoint.readers.safetensors import merge_metadata
from sharding.core.errors import DamagedError
from sharding.core.events import Progress
from sharding.core.protocols import Inputs, Source
from sharding.core.values import BytesRead, Component, Content, FileEntry, Piece, Plan, Shard, Tensor, TensorDigest
from sharding.core.verification import Mismatch
from sharding.formats import gguf
from sharding.formats.names import RANK_SHARD_NAME, SAFETENSORS
from sharding.formats.safetensors_file import Header, parse_header
from sharding.recipes.stored import are_stored, place_of
from sharding.transfer.noting_source import NotingSource
from sharding.transfer.stream import expected_digests
from sharding.verify.digests import Reader, shard_of


def noting(sources: Sequence[Source]) -> tuple[Source, ...]:
    """Return `sources`. Those with hashes from a Hub are wrapped, so that they record their reads."""
    return tuple(
        NotingSource(source, number) if any(map(_is_stated, source.files)) else source
        for number, source in enumerate(sources)
    )


def stated_of(origin: Inputs, checkpoint: Content) -> list[FileEntry]:
    """Return the weight files that have a hash from a Hub: a SHA-256, or their name in git."""
    stated = [{file.path: file for file in source.files if _is_stated(file)} for source in origin.sources]
    weights = (file for file in checkpoint.read_files if file.path in stated[file.source])
    return [replace(stated[file.source][file.path], source=file.source) for file in weights]


def read_from_hub(origin: Inputs, checkpoint: Content) -> list[FileEntry]:
    """Return the files of a Hub that numbers are read from. An adapter may lie in a folder."""
    return [file for file in checkpoint.read_files if origin.sources[file.source].ref.states_hashes]


def sources_to_read(origin: Inputs, noted: tuple[Source, ...], checkpoint: Content, plan: Plan) -> tuple[Source, ...]:
    """Return `noted`, which record reads, if only that can prove reads of whole files; else `origin`'s."""
    is_moved = are_stored(plan.tensors) and bool(stated_files(origin.sources[0].files, checkpoint))
    return origin.sources if is_moved or plan.options.rank is not None else noted


def _is_stated(file: FileEntry) -> bool:
    return bool(file.sha256 or file.git_sha1)


def stated_files(files: Iterable[FileEntry], checkpoint: Content) -> list[FileEntry]:
    """Return the weight files with the SHA-256 that `files` state, [] if a result cannot rebuild all: tensors are in
    pieces, twice or merged, or a file is of a base or a rank, has no SHA-256, or holds more than a header and
    tensors."""
    is_gguf = checkpoint.format == "gguf"
    stated = {
        file.path: file for file in files if file.sha256 and file.path.endswith(gguf.GGUF if is_gguf else SAFETENSORS)
    }
    weights = [stated[file.path] for file in checkpoint.weight_files if file.path in stated]
    is_other = checkpoint.has_twice or checkpoint.others or any(file.source for file in checkpoint.weight_files)
    is_other = is_other or len(weights) < len(checkpoint.weight_files)
    if is_other or not are_stored(checkpoint.tensors) or any(RANK_SHARD_NAME.fullmatch(file.path) for file in weights):
        return []
    sizes = {file.path: file.bytes for file in weights}
    if is_gguf:  # between its tensors and at its end are some bytes, usually zeros
        ends = {tensor.file: place_of(tensor).end_byte for tensor in checkpoint.tensors}
        is_all = ends.keys() == sizes.keys() and all(
            sizes[file] - end <= gguf.MAX_ALIGNMENT for file, end in ends.items()
        )
        return weights if is_all else []
    ends = {}
    for tensor in sorted(checkpoint.tensors, key=lambda tensor: place_of(tensor).start_byte):
        ends[tensor.file] = ends.get(tensor.file, place_of(tensor).start_byte) + tensor.bytes
    return weights if sizes | ends == sizes else []  # a file without tensors has no end


def digest_as_stored(
    checkpoint: Content,
    origin: Source,
    stated: Sequence[FileEntry],
    staged: Source,
    tensors: Iterable[Tensor],
    reader: Reader,
) -> Generator[Progress, None, tuple[dict[str, TensorDigest], list[Mismatch]]]:
    """Read `tensors` in the order of the files that `origin` has `stated`, if any; return digests, and what differs."""
    if not stated:
        return (yield from reader.digest_tensors([staged], tensors))[0], []
    place = {tensor.name: tensor for tensor in tensors}
    files, headers = {file.path: file for file in stated}, dict[str, Header | gguf.Header]()
    originals, wrong = {path: list[Tensor]() for path in files}, list[Mismatch]()
    for tensor in checkpoint.tensors:
        originals[tensor.file].append(tensor)

    def pieces(shard: Shard) -> Iterator[Piece]:
        original = originals[shard.file]
        end = min(place_of(tensor).start_byte for tensor in original)
        text = b"".join(origin.read(shard.file, 0, end))
        size, folder = files[shard.file].bytes, original[0].folder
        is_gguf = checkpoint.format == "gguf"
        parsed = gguf.parse_header(text, size, shard.file, folder) if is_gguf else parse_header(text, size, shard.file)
        headers[shard.file] = parsed
        if list(parsed.tensors) != original:
            wrong.append(Mismatch(shard.file, "its header has changed since it was first read"))
        yield text
        ends = [place_of(tensor).end_byte for tensor in original]
        starts = [*(place_of(tensor).start_byte for tensor in original[1:]), size]
        for tensor, end, start in zip(shard.tensors, ends, starts, strict=True):
            yield tensor
            if start > end:
                yield b"".join(origin.read(shard.file, end, start))

    shards = [shard_of(file, [place[tensor.name] for tensor in held]) for file, held in originals.items()]
    read = yield from reader.digest_shards(shards, pieces, [staged])
    wrong += [
        Mismatch(file.path, "the bytes that were read from it do not have the SHA-256 that the Hub states")
        for file in stated
        if read[file.path].sha256 != file.sha256
    ]
    wrong += [
        Mismatch(f"{component.folder}__metadata__", "it has changed since the headers were first read")
        for component in checkpoint.components
        if not _says_as(component, [headers[shard.file] for shard in shards if shard.folder == component.folder])
    ]
    return expected_digests(shards, read), wrong


def _says_as(component: Component, headers: Sequence[Header | gguf.Header]) -> bool:
    """Return whether the headers of all files of `component` say of it what they said when they were first read."""
    if component.gguf:
        return isinstance(headers[0], gguf.Header) and headers[0].keys == component.gguf.keys
    return merge_metadata([one for one in headers if isinstance(one, Header)])[0] == component.metadata


def prove_reads(
    sources: Sequence[Source], stated: Iterable[FileEntry], reads: Iterable[BytesRead], reader: Reader
) -> Generator[Progress, None, list[Mismatch]]:
    """Let `reader` read the `stated` files; return where they, or `reads` of them, do not match. Raises SourceError."""
    wrong, stated, reads = list[Mismatch](), list(stated), list(reads)
    for number, source in enumerate(sources):
        files = {file.path: file for file in stated if file.source == number}
        noted = [read for read in reads if read.source == number and read.file in files]
        ranges = {path: {(read.start_byte, read.end_byte) for read in noted if read.file == path} for path in files}
        if not files:
            continue
        try:
            whole = yield from reader.digest_files(sources, files.values(), ranges, "verify")
        except DamagedError as error:
            wrong.append(Mismatch(source.ref.repo_id, error.message))
            continue
        for path, file in files.items():
            if file.sha256 and whole[path].sha256 != file.sha256:
                wrong.append(Mismatch(path, "it does not have the SHA-256 that the Hub states"))
        # Check each read on its own: of two reads of the same range, one may be right.
        others = (read for read in noted if whole[read.file].ranges[read.start_byte, read.end_byte] != read.blake3)
        for path in dict.fromkeys(read.file for read in others):
            wrong.append(Mismatch(path, "an earlier read of it does not match the file on the Hub"))
    return wrong
