"""Check the reads of a job against the hashes that a Hub states, by reading each file whole again.

If tensors are cast, computed or put together, the result cannot rebuild the source's files. So a job notes the BLAKE3
of every range that it reads. Here each file is read once, from its first byte to its last. That gives its SHA-256, and
the BLAKE3 of the same ranges.
"""

from collections.abc import Generator, Iterable, Mapping, Sequence

from sharding.core.errors import DamagedError
from sharding.core.events import Progress
from sharding.core.protocols import Source
from sharding.core.values import BytesRead, FileEntry, Mismatch
from sharding.verify.digests import Reader


def prove_reads(
    sources: Sequence[Source], stated: Iterable[FileEntry], reads: Iterable[BytesRead], reader: Reader
) -> Generator[Progress, None, list[Mismatch]]:
    """Let `reader` read the `stated` files whole; return where they, or earlier `reads` of them, do not match the Hub.

    A file in git has no SHA-256 but a name in git: the source compares that itself. Raises SourceError if a file cannot
    be read.
    """
    wrong, stated, reads = list[Mismatch](), list(stated), list(reads)
    for number, source in enumerate(sources):
        files = {file.path: file for file in stated if file.source == number}
        noted = [read for read in reads if read.source == number and read.file in files]
        if files:
            try:
                wrong += yield from _prove(sources, files, noted, reader)
            except DamagedError as error:
                wrong.append(Mismatch(source.ref.repo_id, error.message))
    return wrong


def _prove(
    sources: Sequence[Source], files: Mapping[str, FileEntry], noted: Sequence[BytesRead], reader: Reader
) -> Generator[Progress, None, list[Mismatch]]:
    ranges = {path: {(read.start_byte, read.end_byte) for read in noted if read.file == path} for path in files}
    whole_files = yield from reader.digest_files(sources, files.values(), ranges, "verify")
    wrong = [
        Mismatch(path, "it does not have the SHA-256 that the Hub states")
        for path, file in files.items()
        if file.sha256 and whole_files[path].sha256 != file.sha256
    ]
    # Check each read on its own: of two reads of the same range, one may be right.
    other = {
        read.file: None
        for read in noted
        if whole_files[read.file].ranges[read.start_byte, read.end_byte] != read.blake3
    }
    return [*wrong, *(Mismatch(path, "an earlier read of it does not match the file on the Hub") for path in other)]
