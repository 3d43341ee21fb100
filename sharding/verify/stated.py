"""Check what was read and made against the hashes that a Hub states for the source's files.

A result is read again anyway before it is published. If its tensors were moved as they are, it is read in the order of
the source's files, each after its header. That gives their SHA-256, so one pass proves what was read, moved and
written, in this run or an earlier one. If tensors are cast, computed or put together, a job notes the BLAKE3 of every
range that it reads. Then each file is read once more as a whole: for its SHA-256, and the BLAKE3 of the same ranges.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from sharding.checkpoint.readers.safetensors import merge_metadata
from sharding.core.errors import DamagedError
from sharding.core.events import Progress
from sharding.core.protocols import Inputs, Source
from sharding.core.values import BytesRead, Content, FileEntry, Piece, Plan, Shard, Tensor, TensorDigest
from sharding.core.verification import Mismatch
from sharding.formats import gguf
from sharding.formats.names import RANK_SHARD_NAME, SAFETENSORS
from sharding.formats.safetensors_file import parse_header
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
    ending, most_padding = (gguf.GGUF, gguf.MAX_ALIGNMENT) if checkpoint.format == "gguf" else (SAFETENSORS, 0)
    stated = {file.path: file for file in files if file.sha256 and file.path.endswith(ending)}
    weights = [stated[file.path] for file in checkpoint.weight_files if file.path in stated]
    is_other = checkpoint.has_twice or checkpoint.others or any(file.source for file in checkpoint.weight_files)
    is_other = is_other or len(weights) < len(checkpoint.weight_files)
    if is_other or not are_stored(checkpoint.tensors) or any(RANK_SHARD_NAME.fullmatch(file.path) for file in weights):
        return []
    ends: dict[str, int] = {}
    for place in sorted(place_of(tensor) for tensor in checkpoint.tensors):
        if not 0 <= place.start_byte - ends.get(place.file, place.start_byte) <= most_padding:
            return []
        ends[place.file] = place.end_byte
    return weights if all(0 <= file.bytes - ends.get(file.path, 0) <= most_padding for file in weights) else []


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
    files, headers = {file.path: file for file in stated}, dict[str, Any]()
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
    for component in checkpoint.components:
        held = [headers[shard.file] for shard in shards if shard.folder == component.folder]
        is_same = (
            held[0].keys == component.gguf.keys if component.gguf else merge_metadata(held)[0] == component.metadata
        )
        if not is_same:
            wrong.append(
                Mismatch(f"{component.folder}__metadata__", "it has changed since the headers were first read")
            )
    return expected_digests(shards, read), wrong


class Proof:
    """The reads of a source, to compare them with the hashes that a Hub states of its files.

    `rebuilt` counts the files that a result puts together again. `reread` of its `weights` files are read whole once
    more if reads are recorded: `reread_bytes`. It is `unstated` if some files have no hash.
    """

    def __init__(
        self, origin: Inputs, checkpoint: Content, sources: Iterable[Source], originals: Sequence[FileEntry]
    ) -> None:
        self._origin, self._noted = origin, [source for source in sources if isinstance(source, NotingSource)]
        stated = [{file.path: file for file in source.files if _is_stated(file)} for source in origin.sources]
        files = [file for file in checkpoint.read_files if self._noted and file.path in stated[file.source]]
        self._stated = [replace(stated[file.source][file.path], source=file.source) for file in files]
        # An adapter may lie in a folder.
        on_hub = [file for file in checkpoint.read_files if origin.sources[file.source].ref.states_hashes]
        self.rebuilt, self.reread = len(originals), len(files)
        self.weights = len(on_hub or files) if self._noted else 0
        self.unstated = self.reread < self.weights if self._noted else bool(on_hub) and not originals
        self.reread_bytes = sum(file.bytes for file in self._stated)

    def prove(self, reads: Iterable[BytesRead], reader: Reader) -> Generator[Progress, None, list[Mismatch]]:
        """Let `reader` read the files; return where they, or `reads` and those recorded, do not match."""
        reads = [*reads, *(read for noted in self._noted for read in noted.take())]
        return (yield from prove_reads(self._origin.sources, self._stated, reads, reader))


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
        right = {one[:4] for record in whole.values() for one in record.samples}
        others = (read for read in noted if read[:4] not in right)
        for path in dict.fromkeys(read.file for read in others):
            wrong.append(Mismatch(path, "an earlier read of it does not match the file on the Hub"))
    return wrong
