"""Read the sides of a comparison: tensors, weight files beside them, or only what they store and state of these."""

from collections.abc import Generator, Mapping, Sequence

from sharding.checkpoint.documents import read_small
from sharding.core.errors import Remedy, SourceError
from sharding.core.events import Progress
from sharding.core.repo import Repo
from sharding.core.text import source_name, values_in
from sharding.core.values import BytesRead, Checkpoint, FileEntry, Mismatch, Plan, TensorDigest, folder_of
from sharding.formats.names import DIGESTS_NAME
from sharding.recipes.stored import are_stored
from sharding.report.report import parse_digests
from sharding.transfer.noting_source import NotingSource
from sharding.verify.differences import Numbers
from sharding.verify.digests import ThisMachine, digest_tensors, expected_digests, first_read, in_groups
from sharding.verify.stated import digest_as_stored, noting, prove_reads, read_from_hub, stated_files, stated_of

WITHOUT_QUICK = "Leave out --quick to read and compare the weights."
READ_ALL = Remedy("read_every_byte")


class Side:
    """One of two checkpoints to compare. Its tensors are read, and checked against the hashes that a Hub states."""

    def __init__(self, origin: Repo, checkpoint: Checkpoint, plan: Plan | None = None) -> None:
        """Take `checkpoint` of `origin`. With a `plan`, its tensors are made as the plan says, and then compared."""
        self._origin, self._checkpoint = origin, checkpoint
        self._tensors = sorted(plan.tensors, key=first_read) if plan else list(checkpoint.tensors)
        self._as_stored = stated_files(origin.sources[0].files, checkpoint) if plan is None else []
        self._sources = origin.sources if self._as_stored else noting(origin.sources)
        self._is_noted = self._sources != origin.sources
        self._stated = stated_of(origin, checkpoint) if self._is_noted else []
        self.digests: Mapping[str, TensorDigest] = {}
        self.wrong: list[Mismatch] = []
        self.unstated = bool(read_from_hub(origin, checkpoint)) and not self._as_stored and not self._is_noted
        self.remark = ""

    @property
    def bytes(self) -> int:
        """How many bytes `read` counts: the tensors, and the files that are read again for their hash."""
        return sum(tensor.bytes for tensor in self._tensors) + sum(file.bytes for file in self._stated)

    @property
    def numbers(self) -> Numbers:
        """Its tensors, to compare their numbers."""
        return Numbers({tensor.name: tensor for tensor in self._tensors}, self._origin.sources)

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
            groups = list(in_groups(self._tensors))
            records = yield from here.digest_shards(groups, lambda _: b"", self._sources)
            self.digests = expected_digests(groups, records)
            reads = [read for record in records.values() for read in record.reads]
        if self._is_noted:
            reads += [read for noted in self._sources if isinstance(noted, NotingSource) for read in noted.take()]
            self.wrong = yield from prove_reads(origin.sources, self._stated, reads, here)
            self.unstated = len(self._stated) < len(read_from_hub(origin, checkpoint))
            self.remark = f"; {len(self._stated)} files of {name} were read whole and compared with the Hub's hash"


def compare_beside(
    sources: Sequence[Repo], checkpoints: Sequence[Checkpoint]
) -> Generator[Progress, None, tuple[Mismatch, ...]]:
    """Read the weight files beside both checkpoints; yield progress; return where the second differs.

    Raises SourceError, also if the bytes from a Hub do not match the hash that it states.
    """
    mismatches, alike = compare_listed(checkpoints)
    digests = []
    for source, files in zip(sources, alike, strict=True):
        digests.append((yield from ThisMachine().digest_files(source.sources, files.values())))
    for path in alike[0]:
        if digests[0][path].sha256 != digests[1][path].sha256:
            mismatches.append(Mismatch(path, "its bytes differ"))
    return tuple(mismatches)


def compare_listed(
    checkpoints: Sequence[Checkpoint],
) -> tuple[list[Mismatch], tuple[Mapping[str, FileEntry], Mapping[str, FileEntry]]]:
    """Compare the listed sizes and hashes. Return the differences, and the other files of both, by path.

    A file that only the second has counts if it is in a folder of the model: there, libraries find it with the weights.
    """
    ours, theirs = ({file.path: file for file in checkpoint.copied_weights} for checkpoint in checkpoints)
    folders = {component.folder for component in checkpoints[0].components}
    mismatches, alike = list[Mismatch](), list[str]()
    for path in sorted(ours.keys() | theirs.keys()):
        if path not in theirs:
            mismatches.append(Mismatch(path, "it is missing"))
        elif path not in ours:
            if folder_of(path) in folders:
                mismatches.append(Mismatch(path, "it is not in the original"))
        elif _differ(ours[path], theirs[path]):
            mismatches.append(Mismatch(path, "its bytes differ"))
        else:
            alike.append(path)
    return mismatches, ({path: ours[path] for path in alike}, {path: theirs[path] for path in alike})


def _differ(file: FileEntry, other: FileEntry) -> bool:
    return file.bytes != other.bytes or bool(file.sha256 and other.sha256 and file.sha256 != other.sha256)


def stored_digests(
    source: Repo, checkpoint: Checkpoint, most_bytes: int, most_values: int | None = None
) -> Mapping[str, TensorDigest]:
    """Return the digests that `source` stores, from a file of at most `most_bytes` and `most_values` JSON values.

    Whoever uploaded it may have written any digests.
    Raises SourceError if there are none, if they are not valid, or if they do not describe `checkpoint`.
    """
    name = source_name(source.ref.kind, source.ref.name)
    files = {file.path: file for file in source.files}
    if DIGESTS_NAME not in files:
        raise SourceError(f"{name} has no {DIGESTS_NAME}.", WITHOUT_QUICK, READ_ALL)
    text = read_small(source, files[DIGESTS_NAME], most_bytes)
    if most_values is not None and values_in(text) > most_values:
        raise SourceError(f"{DIGESTS_NAME} of {name} holds more than a page can show.", WITHOUT_QUICK, READ_ALL)
    stored = parse_digests(text, name)
    headers = {tensor.name: (tensor.dtype, tensor.shape) for tensor in checkpoint.tensors}
    if headers != {name: (digest.dtype, digest.shape) for name, digest in stored.items()}:
        message = f"{DIGESTS_NAME} of {name} does not describe the weights beside it."
        raise SourceError(message, WITHOUT_QUICK, READ_ALL)
    return stored
