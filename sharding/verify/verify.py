"""Compare two checkpoints: by reading every byte, or by stored digests."""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sharding.checkpoint.documents import read_small
from sharding.checkpoint.read import read_inputs
from sharding.core.environment import hub_endpoint
from sharding.core.errors import Remedy, SourceError, UsageError, VariantMissing
from sharding.core.events import Progress, Verified
from sharding.core.limits import MAX_REPORT_BYTES
from sharding.core.meter import Meter
from sharding.core.options import Options, Request
from sharding.core.protocols import Inputs
from sharding.core.text import printable, values_in
from sharding.core.values import Content, Plan, TensorDigest, folder_of
from sharding.core.verification import UNCHECKED, Evidence, Mismatch, Verification
from sharding.formats.gguf import SPLIT_KEYS
from sharding.formats.names import DIGESTS_NAME
from sharding.planning.alike.told import advised
from sharding.planning.order import natural_key
from sharding.planning.plan import as_read, planned
from sharding.report.report import parse_digests
from sharding.storage.hub.client import Hub
from sharding.storage.locate import open_inputs
from sharding.transfer.lanes import progress_of_part
from sharding.verify.differences import Numbers, compare_numbers, compare_within
from sharding.verify.digests import Reader, first_read
from sharding.verify.digests import compare as compare_digests
from sharding.verify.stated import Proof, digest_as_stored, noting, stated_files

WITHOUT_QUICK = "Leave out --quick to read and compare the weights."
READ_ALL = Remedy("read_every_byte")


def verify(
    original: str,
    copy: str,
    *,
    quick: bool = False,
    numeric: bool = False,
    endpoint: str | None = None,
    token: str | None = None,
    **chosen: Any,
) -> Generator[Progress | Verified, None, None]:
    """Compare two checkpoints tensor by tensor, reading every byte of both. Yields progress, and `Verified` last.

    - `original`, `copy`: folders, or `owner/name[@revision][/folder]` on the Hub at `endpoint`, with the login `token`.
    - `quick`: read no weights. Compare, and trust, the digests that this tool has stored with both.
    - `numeric`: then read the tensors that differ once more, and say by how much (see `Difference`), or what helps.
    - `chosen`: the options of `Options` that decide bytes, by name. They are first done to the original.

    Raises UsageError, SourceError, Refused.
    """
    options = Options(**chosen)
    request = Request(original, copy, options)
    request.refuse_contradictions()
    if quick and options.computing:
        message = f"The stored digests cannot be compared, because {options.computing[0]} changes the bytes."
        raise UsageError(message, WITHOUT_QUICK, READ_ALL)
    if quick and numeric:
        raise UsageError("The stored digests hold no numbers to compare.", WITHOUT_QUICK, READ_ALL)
    meter, hub = Meter(), Hub(endpoint or hub_endpoint(), token)
    sources = open_inputs(request.inputs, hub), open_inputs({"model": copy}, hub)
    first = read_inputs(sources[0], options.variant, format=options.format)
    checkpoints = first, _read_copy(sources[1], first, options)
    if quick:
        yield Verified(_compare_stored(sources, checkpoints, meter))
        return
    plan = planned(checkpoints[0], options) if options.computing else None
    made = plan.made if plan else ()
    read = as_read(checkpoints[0], plan) if plan else checkpoints[0]
    sides = [Side(sources[0], read, plan), Side(sources[1], checkpoints[1])]
    beside = [file for checkpoint in checkpoints for file in checkpoint.copied_weights]
    total, done = sum(side.bytes for side in sides) + sum(file.bytes for file in beside), 0
    for side in sides:
        yield from progress_of_part(side.read(), done, total)
        done += side.bytes
    others = yield from progress_of_part(compare_beside(sources, checkpoints), done, total)
    wrong = (mismatch for side in sides for mismatch in side.wrong)
    of_tensors, within, undecided = compare_digests(sides[0].digests, sides[1].digests), 0, 0
    if of_tensors and not all(change.is_exact for change in made):
        of_tensors, within, undecided = yield from compare_within(of_tensors, sides[0].numbers, sides[1].numbers)
    differences = None
    if numeric:
        names = sorted((mismatch.tensor for mismatch in of_tensors), key=natural_key)
        differences = yield from compare_numbers(names, sides[0].numbers, sides[1].numbers)
    others = (*others, *_differing_keys(*checkpoints))
    evidence = Evidence(
        "both",
        rebuilt=sum(side.rebuilt for side in sides),
        reread=sum(side.reread for side in sides),
        weights=sum(side.weights for side in sides),
        beside=len(checkpoints[0].copied_weights) if any(file.bytes for file in beside) else 0,
        measured=sum(one.equal is not None for one in differences or ()),
    )
    found = len(sides[0].digests), checkpoints[1].total_bytes, meter.seconds, evidence
    unstated, unreached = any(side.unstated for side in sides), _unreached(checkpoints)
    outcome = Verification(*found, (*of_tensors, *wrong, *others), made, unstated, unreached, UNCHECKED)
    advice = advised(*checkpoints, (original, copy)) if numeric and not options.like else ()
    yield Verified(replace(outcome, differences=differences, within=within, undecided=undecided, advice=advice))


def _read_copy(copy: Inputs, original: Content, options: Options) -> Content:
    """Return the content of `copy`. Beside others, a GGUF model has the variant of the original."""
    if original.format != "gguf":
        return read_inputs(copy)
    try:
        return read_inputs(copy, format="gguf")
    except VariantMissing:
        return read_inputs(copy, options.variant or original.variant, format="gguf")


def _differing_keys(original: Content, copy: Content) -> Iterator[Mismatch]:
    """Yield the keys in which the headers of GGUF models differ, except for those that number files."""
    for one, other in zip(original.components, copy.components, strict=False):
        ours, theirs = (dict(side.gguf.keys) if side.gguf else {} for side in (one, other))
        for key in sorted((ours.keys() | theirs.keys()) - SPLIT_KEYS.keys()):
            if ours.get(key) != theirs.get(key):
                problem = (
                    "it is missing" if key not in theirs else "it is not in the original" if key not in ours else ""
                )
                yield Mismatch(f"{one.folder}{printable(key.decode(errors='replace'))}", problem or "its value differs")


def _compare_stored(sources: Sequence[Inputs], checkpoints: Sequence[Content], meter: Meter) -> Verification:
    first, second = (stored_digests(*side, MAX_REPORT_BYTES) for side in zip(sources, checkpoints, strict=True))
    differ, alike = compare_listed(checkpoints)
    return Verification(
        *(len(first), checkpoints[1].total_bytes, meter.seconds, Evidence("digests")),
        mismatches=(*compare_digests(first, second), *differ),
        unreached=_unreached(checkpoints),
        unchecked=UNCHECKED if all(alike.values()) else (*UNCHECKED, "the bytes of weight files beside the weights"),
    )


def _unreached(checkpoints: Iterable[Content]) -> tuple[str, ...]:
    return tuple(place for checkpoint in checkpoints for place in checkpoint.unreached)


class Side(Proof):
    """One of two checkpoints to compare. Its tensors are read, and checked against the hashes that a Hub states."""

    def __init__(self, origin: Inputs, checkpoint: Content, plan: Plan | None = None) -> None:
        self._checkpoint, source = checkpoint, origin.sources[0]
        self._tensors = sorted(plan.tensors, key=first_read) if plan else list(checkpoint.tensors)
        self._originals = stated_files(source.files, checkpoint) if plan is None else []
        self._sources = origin.sources if self._originals else noting(origin.sources)
        super().__init__(origin, checkpoint, self._sources, self._originals)
        self.digests: Mapping[str, TensorDigest] = {}
        self.wrong: list[Mismatch] = []
        self.bytes = sum(tensor.bytes for tensor in self._tensors) + self.reread_bytes
        """How many bytes `read` counts."""

    @property
    def numbers(self) -> Numbers:
        """Its tensors, to compare their numbers."""
        return Numbers({tensor.name: tensor for tensor in self._tensors}, self._origin.sources)

    def read(self) -> Generator[Progress, None, None]:
        """Read the checkpoint; yield progress; set `digests` and what is `wrong`. Raises SourceError."""
        here, source = Reader(), self._origin.sources[0]
        if self._originals:
            reading = digest_as_stored(self._checkpoint, source, self._originals, source, self._tensors, here)
            self.digests, self.wrong = yield from reading
        else:
            self.digests, reads = yield from here.digest_tensors(self._sources, self._tensors)
            self.wrong = yield from self.prove(reads, here)


def compare_beside(
    sources: Sequence[Inputs], checkpoints: Sequence[Content]
) -> Generator[Progress, None, tuple[Mismatch, ...]]:
    """Read the weight files beside both; yield progress; return where the second differs. Raises SourceError."""
    mismatches, alike = compare_listed(checkpoints)
    digests = []
    for source, checkpoint in zip(sources, checkpoints, strict=True):
        files = [file for file in checkpoint.copied_weights if file.path in alike]
        digests.append((yield from Reader().digest_files(source.sources, files)))
    others = (path for path in alike if digests[0][path].sha256 != digests[1][path].sha256)
    return (*mismatches, *(Mismatch(path, "its bytes differ") for path in others))


def compare_listed(checkpoints: Sequence[Content]) -> tuple[list[Mismatch], dict[str, bool]]:
    """Compare the listed sizes and hashes. Return the differences, and whether the hashes of the other files of both
    are known, by path. A file that only the second has counts if it is in a folder of the model: there, libraries find
    it with the weights."""
    ours, theirs = ({file.path: file for file in checkpoint.copied_weights} for checkpoint in checkpoints)
    folders = {component.folder for component in checkpoints[0].components}
    mismatches, alike = list[Mismatch](), dict[str, bool]()
    for path in sorted(ours.keys() | theirs.keys()):
        file, other = ours.get(path), theirs.get(path)
        if other is None:
            mismatches.append(Mismatch(path, "it is missing"))
        elif file is None:
            mismatches += [Mismatch(path, "it is not in the original")] if folder_of(path) in folders else []
        elif file.bytes != other.bytes or (file.sha256 and other.sha256 and file.sha256 != other.sha256):
            mismatches.append(Mismatch(path, "its bytes differ"))
        else:
            alike[path] = bool(file.sha256 and other.sha256)
    return mismatches, alike


def stored_digests(
    source: Inputs, checkpoint: Content, most_bytes: int, most_values: int | None = None
) -> Mapping[str, TensorDigest]:
    """Return the untrusted digests that `source` stores within these bounds. Raises SourceError."""
    name = source.ref.words
    files = {file.path: file for file in source.files}
    if DIGESTS_NAME not in files:
        raise SourceError(f"{name} has no {DIGESTS_NAME}.", WITHOUT_QUICK, READ_ALL)
    text = read_small(source, files[DIGESTS_NAME], most_bytes)
    if most_values is not None and values_in(text) > most_values:
        raise SourceError(f"{DIGESTS_NAME} of {name} holds more than a page can show.", WITHOUT_QUICK, READ_ALL)
    stored = parse_digests(text, name)
    headers = {tensor.name: (tensor.dtype, tensor.shape) for tensor in checkpoint.tensors}
    if headers != {name: (digest.dtype, digest.shape) for name, digest in stored.items()}:
        raise SourceError(f"{DIGESTS_NAME} of {name} does not describe the weights beside it.", WITHOUT_QUICK, READ_ALL)
    return stored
