"""Read one side of a comparison, and check it against the hashes that a Hub states."""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from sharding.core.events import Progress
from sharding.core.limits import SPAN_BYTES
from sharding.core.protocols import Source
from sharding.core.recipe import Extent
from sharding.core.repo import Repo
from sharding.core.values import BytesRead, Checkpoint, FileEntry, Mismatch, Plan, Shard, Tensor, TensorDigest
from sharding.recipes.stored import are_stored
from sharding.transfer.noting_source import NotingSource
from sharding.verify.differences import Numbers
from sharding.verify.digests import ThisMachine, digest_tensors, expected_digests
from sharding.verify.source_hashes import digest_as_stored, stated_files
from sharding.verify.source_reads import prove_reads


def noting(sources: Sequence[Source]) -> tuple[Source, ...]:
    """Return `sources`. Those with hashes from a Hub are wrapped, so that they record their reads."""
    return tuple(
        NotingSource(source, number) if any(map(_is_stated, source.files)) else source
        for number, source in enumerate(sources)
    )


def stated_of(origin: Repo, checkpoint: Checkpoint) -> list[FileEntry]:
    """Return the weight files that have a hash from a Hub: a SHA-256, or their name in git."""
    stated = [{file.path: file for file in source.files if _is_stated(file)} for source in origin.sources]
    weights = (file for file in checkpoint.read_files if file.path in stated[file.source])
    return [replace(stated[file.source][file.path], source=file.source) for file in weights]


def read_from_hub(origin: Repo, checkpoint: Checkpoint) -> list[FileEntry]:
    """Return the files of a Hub that numbers are read from. An adapter may lie in a folder."""
    return [file for file in checkpoint.read_files if origin.sources[file.source].ref.kind == "hub"]


def sources_to_read(origin: Repo, noted: tuple[Source, ...], checkpoint: Checkpoint, plan: Plan) -> tuple[Source, ...]:
    """Return the sources to read: `noted`, which record their reads, if only that can prove the reads.

    Else return the sources of `origin`. If all tensors are moved as they are, the proof rebuilds the source's files
    instead. One rank reads only a part of the files, so they are not read whole for a proof.
    """
    is_moved = are_stored(plan.tensors) and bool(stated_files(origin.sources[0].files, checkpoint))
    return origin.sources if is_moved or plan.options.rank is not None else noted


def _is_stated(file: FileEntry) -> bool:
    return bool(file.sha256 or file.git_sha1)


class Side:
    """One of two checkpoints to compare. Its tensors are read, and checked against the hashes that a Hub states."""

    def __init__(self, origin: Repo, checkpoint: Checkpoint, plan: Plan | None = None) -> None:
        """Take `checkpoint` of `origin`. With a `plan`, its tensors are made as the plan says, and then compared."""
        self._origin, self._checkpoint = origin, checkpoint
        self._tensors = sorted(plan.tensors, key=_first_read) if plan else list(checkpoint.tensors)
        self._as_stored = stated_files(origin.sources[0].files, checkpoint) if plan is None else []
        self._sources = origin.sources if self._as_stored else noting(origin.sources)
        self._is_noted = self._sources != origin.sources
        self.digests: Mapping[str, TensorDigest] = {}
        self.wrong: list[Mismatch] = []
        self.unstated = bool(read_from_hub(origin, checkpoint)) and not self._as_stored and not self._is_noted
        self.remark = ""

    @property
    def bytes(self) -> int:
        """How many bytes `read` counts: the tensors, and the files that are read again for their hash."""
        again = sum(file.bytes for file in self._stated) if self._is_noted else 0
        return sum(tensor.bytes for tensor in self._tensors) + again

    @property
    def numbers(self) -> Numbers:
        """Its tensors, to compare their numbers."""
        return Numbers({tensor.name: tensor for tensor in self._tensors}, self._origin.sources)

    @property
    def _stated(self) -> list[FileEntry]:
        return stated_of(self._origin, self._checkpoint)

    def read(self) -> Generator[Progress, None, None]:
        """Read the whole checkpoint; yield progress; set `digests`, `wrong`, `unstated` and `remark`.

        Raises SourceError.
        """
        origin, checkpoint, here = self._origin, self._checkpoint, ThisMachine()
        (source, *_), name = origin.sources, origin.ref.repo_id
        if self._as_stored:
            reading = digest_as_stored(checkpoint, source, self._as_stored, source, checkpoint.tensors, here)
            self.digests, self.wrong = yield from reading
            self.remark = f"; {len(self._as_stored)} files of {name} were compared with the Hub's SHA-256"
            return
        if are_stored(self._tensors):
            self.digests = yield from digest_tensors(self._sources[0], self._tensors)
            reads: list[BytesRead] = []
        else:
            groups = list(_in_groups(self._tensors))
            records = yield from here.digest_shards(groups, lambda _: b"", self._sources)
            self.digests = expected_digests(groups, records)
            reads = [read for record in records.values() for read in record.reads]
        if self._is_noted:
            reads += [read for noted in self._sources if isinstance(noted, NotingSource) for read in noted.take()]
            self.wrong = yield from prove_reads(origin.sources, self._stated, reads, here)
            self.unstated = len(self._stated) < len(read_from_hub(origin, checkpoint))
            self.remark = f"; {len(self._stated)} files of {name} were read whole and compared with the Hub's hash"


def _first_read(tensor: Tensor) -> Extent:
    """Return where a tensor begins in its source. Sorting by it gives the order of the source."""
    return next(tensor.recipe.reads(), Extent(0, tensor.file, 0, 0))


def _in_groups(tensors: Iterable[Tensor]) -> Iterator[Shard]:
    """Yield `tensors` in groups, which are made in parallel."""
    group, size, number = list[Tensor](), 0, 0
    for tensor in tensors:
        group.append(tensor)
        size += tensor.bytes
        if size >= SPAN_BYTES:
            yield Shard(str(number), tuple(group), size)
            group, size, number = [], 0, number + 1
    if group:
        yield Shard(str(number), tuple(group), size)
