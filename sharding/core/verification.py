"""Hold what a comparison of two checkpoints found, and say it in a sentence. Pure."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from sharding.core.bounds import Count, Line, Seconds
from sharding.core.made import Made, phrase
from sharding.core.text import count, format_bytes, share, undecided_sentence, within_words


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A tensor or a file that is not what it should be, in one line that a person can act on."""

    tensor: Line
    problem: Line


@dataclass(frozen=True, slots=True)
class Difference:
    """By how much the numbers of a tensor differ between two checkpoints, in float64. `largest_abs` and `mean_abs` are
    absolute differences, `cosine` is that of the angle between both as vectors. These three leave out pairs with a NaN
    or an infinity. They are None if no pair is left, and `cosine` also for a vector of zeros. `equal` is the share of
    equal elements, from 0 to 1; two NaNs are equal. All four are None if the tensor is only on one side, has another
    shape there, or a dtype without numbers: `note` says which, or that numbers that differ are not finite."""

    tensor: Line
    largest_abs: float | None = None
    mean_abs: float | None = None
    cosine: float | None = None
    equal: float | None = None
    note: Line = ""


NOT_FINITE = "NaN or infinite"
"""Stands in the note of a `Difference` if numbers that differ are not finite. The other figures leave them out."""

UNCHECKED = (
    "code",
    "configuration",
    "tokenizer",
    "other files (they may hold weights too)",
    "the figures of a report for time, memory and bytes moved",
)
"""What a comparison of the weights of two checkpoints does not check."""


Read = Literal["both", "folder", "hub", "stated", "digests"]
"""What was read of a copy.

- both: every tensor of two checkpoints.
- folder, hub: the copy that a job has just made, from there.
- stated: a sample of such a copy on a Hub, and the hashes that the Hub states of it.
- digests: no weights, only the digests that this tool stored with both.
"""

Kind = Literal["identical", "unstated", "stated", "within", "undecided", "different"]
"""How a comparison ends, from best to worst.

- identical: every tensor has the bits of the original's, or of what was computed from it.
- unstated: so it has, but the Hub states no hash for some of the files that were read.
- stated: the Hub states the hashes of what was sent, and a sample has the same bytes. The rest was not read again.
- within: some tensors have other bits, within the tolerance of what was computed.
- undecided: some have other bits in numbers that nobody can judge, and none has wrong ones.
- different: something is wrong.
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a comparison ended, and how many tensors it concerns."""

    kind: Kind
    tensors: Count


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was compared, beside the BLAKE3 of every tensor.

    - `read`: what was read.
    - `sampled`: bytes of the sample, if `read` is "stated". `xet`: whether Xet hashes of what was sent were compared.
    - `structure`: whether safetensors opened the files and found what was planned.
    - `rebuilt`: files of the source that were put together again from the copy, for the SHA-256 that a Hub states.
    - `reread` of `weights` files of the source were read whole once more, for the hash that a Hub states.
    - `loaded`: whether the files that were downloaded and loaded have the hashes that a Hub states.
    - `kept`: shards of an earlier run that were first compared with the source.
    - `beside`: weight files beside the checkpoint whose SHA-256 was compared.
    - `measured`: tensors whose numbers were compared in float64.
    - `original`: whether every tensor was compared with the original's, not only with what was loaded.
    """

    read: Read
    structure: bool = False
    rebuilt: Count = 0
    reread: Count = 0
    weights: Count = 0
    loaded: bool = False
    kept: Count = 0
    beside: Count = 0
    measured: Count = 0
    original: bool = False
    sampled: Count = 0
    xet: bool = False


@dataclass(frozen=True, slots=True)
class Verification:
    """What a comparison of two checkpoints found: where they differ, and what was compared. `made` was first done to
    the original's numbers. `within` counts tensors with other bits within the tolerance, `undecided` those with other
    bits in numbers that cannot be judged, and no wrong ones. `advice` says why one does not load where the other does.
    `unstated`: the Hub states no hash for some of the files. `unreached` are those of both, as in `Content`.
    `unchecked` names what was not compared."""

    tensors: Count
    bytes: Count
    seconds: Seconds
    evidence: Evidence
    mismatches: tuple[Mismatch, ...]
    made: Made = ()
    unstated: bool = False
    unreached: tuple[Line, ...] = ()
    unchecked: tuple[Line, ...] = ()
    differences: tuple[Difference, ...] | None = None
    within: Count = 0
    undecided: Count = 0
    advice: Annotated[tuple[Line, ...], Field(exclude_if=lambda advice: not advice)] = ()

    @property
    def outcome(self) -> Outcome:
        """How it ended."""
        if self.mismatches:
            return Outcome("different", len(self.mismatches))
        if self.undecided:
            return Outcome("undecided", self.undecided)
        if self.within:
            return Outcome("within", self.within)
        if self.evidence.read == "stated":
            return Outcome("stated", self.tensors)
        return Outcome("unstated" if self.unstated else "identical", self.tensors)

    @property
    def sentence(self) -> str:
        """How it ended, in a sentence."""
        outcome, done = self.outcome, phrase(self.made)
        of_all = f"all {count(self.tensors, 'tensor')}, {format_bytes(self.bytes)}."
        sentences: dict[Kind, str] = {
            "identical": f"{f'Equal to the original{done}' if done else 'Identical'}: {of_all}",
            "unstated": f"Matches what was read{done}: {of_all}",
            "stated": f"The Hub states the hashes of what was sent{done}; {self.sample} read again: {of_all}",
            "within": f"Not identical, but {within_words(self.tensors, self.within)}.",
            "undecided": undecided_sentence(outcome.tensors),
            "different": f"Different: {count(outcome.tensors, 'mismatch', 'mismatches')}.",
        }
        return sentences[outcome.kind]

    @property
    def identical(self) -> bool:
        """Whether every tensor is bit-identical to the original's, or to what was computed from it."""
        return self.may_be_published and self.evidence.read != "stated"

    @property
    def may_be_published(self) -> bool:
        """Whether a job publishes such a copy: no bit differs, as far as it was compared."""
        return self.holds and not self.within

    @property
    def sample(self) -> str:
        """How much of the copy was read again, in words, if only a sample was."""
        return f"{format_bytes(self.evidence.sampled)} ({share(self.evidence.sampled, self.bytes)})"

    @property
    def holds(self) -> bool:
        """Whether no tensor differs by more than another order of summation explains."""
        return not self.mismatches and not self.undecided

    @property
    def method(self) -> str:
        """What was read and compared, in a sentence without its full stop."""
        seen, first = self.evidence, phrase(self.made)
        have = "should have" if self.mismatches else "have"
        if seen.read == "digests":
            return "stored digests were compared, no weights were read"
        if seen.read == "stated":
            hashes = f"{'should state' if self.mismatches else 'states'} the SHA-256{' and Xet hash' * seen.xet}"
            said = [f"the Hub {hashes} of every file as it was sent"]
            if self.mismatches and not seen.sampled:
                said += ["no weights were read again"]
            else:
                said += [f"headers, indexes and {self.sample} of the weights were read again and compared"]
                said += ["the rest was not, and what was read of the source was not compared with hashes of the Hub"]
        elif seen.read == "both":
            said = [f"every tensor of both was read and its BLAKE3 compared with the original's{first}"]
        else:
            where = "from the Hub" if seen.read == "hub" else "from the folder, through the page cache"
            said = [f"read again {where}"] + ["structure checked by safetensors"] * seen.structure
            said += [f"headers and BLAKE3 of every tensor compared with the source's{first}"]
        again = "" if seen.read == "both" or seen.original else ", put together again from the result,"
        whose = "" if seen.read == "both" else "the source's "
        if seen.rebuilt:
            said.append(f"{seen.rebuilt} of {whose or 'the '}files{again} {have} the SHA-256 that the Hub states")
        if seen.weights:
            files = f"{seen.reread} of {whose}{seen.weights} files were read whole once more"
            said.append(f"{files}: they {have} the hash that the Hub states, and match the earlier reads")
        said += ["the files that were downloaded and loaded have the hashes that the Hub states"] * seen.loaded
        if self.unstated and not seen.weights and not seen.original:
            files = "some of the files" if seen.read == "both" else "the source's files"
            said.append(f"{files} were not compared with hashes of the Hub")
        if seen.kept:
            said.append(f"{count(seen.kept, 'shard')} of an earlier run compared with the source's tensors first")
        said += ["every tensor compared with the original's"] * seen.original
        said += [f"the SHA-256 of {count(seen.beside, 'weight file')} beside them was compared"] * bool(seen.beside)
        if self.within:
            equal = self.tensors - self.within - self.undecided
            text = f"bit-equal tensors: {equal:,}, within the tolerance: {self.within:,}"
            said.append(f"{text} (another processor or library adds up in another order)")
        if seen.measured:
            which = "1 tensor that differs" if seen.measured == 1 else f"{seen.measured:,} tensors that differ"
            said.append(f"the numbers of {which} were compared in float64")
        return "; ".join(said)
