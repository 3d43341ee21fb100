"""Compare two checkpoints by what is known without reading weights: headers, and hashes that a Hub states. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from sharding.core.dtypes import BY_OPTION, CASTABLE
from sharding.core.errors import SourceError, UsageError
from sharding.core.hints import Hints
from sharding.core.made import Made, phrase
from sharding.core.options import Options, TargetDtype
from sharding.core.origin import Place
from sharding.core.recipe import Extent
from sharding.core.text import count
from sharding.core.values import Content, Tensor, TensorDigest
from sharding.planning.alike.told import advised
from sharding.planning.cast import keeping
from sharding.planning.draft import Draft, draft_of
from sharding.planning.order import natural_key
from sharding.planning.steps import NO_CLASS, drafted
from sharding.verify.digests import compare
from sharding.verify.verify import compare_listed

Verdict = Literal["different", "converted", "same-structure", "same-files"]
"""A copy has other tensors; names and shapes of the original, cast or dequantized; dtypes too; or the same SHA-256s."""

Kind = Literal["missing", "added", "shape", "dtype", "file"]  # A "file" lies beside it, such as an adapter.
_KEPT = "F32"  # a cast may leave tensors in this dtype, because their model class needs it


@dataclass(frozen=True, slots=True)
class Contrast:
    """A tensor or file that differs. `original` and `copy` are its dtype and shape there, "" if it is missing."""

    tensor: str
    kind: Kind
    problem: str
    original: str = ""
    copy: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Claims:
    """How many tensors have equal digests in two results, and the names of the others. Anybody may have written it."""

    equal: int
    differing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Likeness:
    """How alike two checkpoints are, as far as it is known without reading weights.

    `asked` are the options that make the headers of the original those of the copy, and `made` is what they do.
    `in_same_files` of its `tensors` are in files with equal hashes. `bytes` are those of both. `unread` are weights
    of the copy that are not compared. `claims` is never a proof. `advice` says why only the original loads.
    """

    verdict: Verdict
    original: Place
    copy: Place
    variant: str
    asked: Mapping[str, str | bool]
    made: Made
    tensors: int
    bytes: int
    in_same_files: int
    mismatches: tuple[Contrast, ...]
    unreached: tuple[str, ...]
    unread: tuple[str, ...] = ()
    claims: Claims | None = None
    advice: tuple[str, ...] = ()

    @property
    def have_common(self) -> bool:
        """Whether both have tensors of the same name, so that there are bytes to compare."""
        return sum(one.kind == "missing" for one in self.mismatches) < self.tensors


def compare_structure(original: Content, copy: Content) -> Likeness:
    """Return how alike two checkpoints are. If the copy differs, the reading with the fewest differences counts."""
    now = _by_name(copy.tensors)
    readings = [(draft, contrasts_of(draft, now)) for draft in _readings(original, now)]
    draft, contrasts = min(readings, key=lambda pair: len(pair[1]))
    made, count_ = draft.made, len(draft.tensors)
    was, held = _evidence(original), _evidence(copy)
    same = 0 if made else sum(held.get(name) == place for name, place in was.items())
    mismatches, alike = compare_listed((original, copy))
    beside = [Contrast(mismatch.tensor, "file", mismatch.problem) for mismatch in mismatches]
    if contrasts or beside:
        verdict: Verdict = "different"
    elif made:
        verdict = "converted"
    else:
        verdict = "same-files" if same == count_ and all(alike.values()) else "same-structure"
    return Likeness(
        *(verdict, original.source, copy.source, original.variant, draft.options.deciding, made),
        *(count_, original.total_bytes + copy.total_bytes, same, (*contrasts, *beside)),
        *(tuple(dict.fromkeys((*original.unreached, *copy.unreached))), copy.other_weights),
        advice=advised(copy, original) if verdict == "different" else (),
    )


def sentence_of(likeness: Likeness) -> str:
    """Return what is known in one or two sentences, which claim no more."""
    if not likeness.have_common and likeness.advice:
        return "Not the same: the copy has other names or another form than the original."
    if not likeness.have_common and likeness.verdict == "different":
        return "These are different models: no tensor of one is in the other."
    number = count(len(likeness.mismatches), "tensor")
    sentences: dict[Verdict, str] = {
        "different": f"Not the same: the copy differs from the original in {number}.",
        "converted": f"Same names and shapes{phrase(likeness.made)}. Bytes not checked yet.",
        "same-structure": "Same names, shapes and dtypes. Bytes not checked yet.",
        "same-files": "The same files, by the hashes that the Hub states. Bytes not read yet.",
    }
    return sentences[likeness.verdict]


def claims_of(original: Mapping[str, TensorDigest], copy: Mapping[str, TensorDigest]) -> Claims:
    """Return how the stored digests of two checkpoints with the same structure compare."""
    differing = tuple(mismatch.tensor for mismatch in compare(original, copy))
    return Claims(len(original) - len(differing), differing)


def _readings(original: Content, copy: Mapping[str, Tensor]) -> Iterator[Draft]:
    yield draft_of(original, Options(variant=original.variant))
    if original.format == "gguf":  # nothing is done to its numbers
        return
    target = _target(copy.values())

    def kept(before: Content, options: Options) -> Hints:
        """Return what a model class must keep in fp32, of the tensors that a cast changes, to give the copy."""
        cast = BY_OPTION[options.dtype].name if options.dtype in BY_OPTION else _KEPT
        both = ((tensor.dtype, copy[tensor.name]) for tensor in before.tensors if tensor.name in copy)
        return keeping(tensor for was, tensor in both if was != cast and tensor.dtype == _KEPT)

    for dequantize in (False, True):
        for dtype in ("keep", *([target] if target else [])):
            with suppress(SourceError, UsageError):
                options = Options(variant=original.variant, dtype=dtype, dequantize=dequantize)
                draft = drafted(original, options, NO_CLASS._replace(hints=kept))
                yield from [draft] if draft.made else []


def _by_name(tensors: Iterable[Tensor]) -> dict[str, Tensor]:
    return {tensor.name: tensor for tensor in tensors}


def _target(tensors: Iterable[Tensor]) -> TargetDtype | None:
    """Return the dtype to which all of `tensors` may have been cast, None if there is none."""
    dtypes = {tensor.dtype for tensor in tensors if tensor.dtype in CASTABLE}
    targets: list[TargetDtype] = [option for option, dtype in BY_OPTION.items() if dtypes <= {dtype.name, _KEPT}]  # type: ignore[misc]
    exact = [option for option in targets if BY_OPTION[option].name in dtypes]
    return min(exact, key=lambda option: BY_OPTION[option].name == _KEPT, default=None)


def contrasts_of(draft: Draft, copy: Mapping[str, Tensor]) -> list[Contrast]:
    """Return the tensors in which `copy` differs from the original that is read like this, in natural order."""
    tensors = _by_name(draft.tensors)
    expected, there = (
        {name: TensorDigest(tensor.dtype, tensor.shape, "") for name, tensor in side.items()}
        for side in (tensors, copy)
    )
    mismatches = sorted(compare(expected, there), key=lambda mismatch: natural_key(mismatch.tensor))
    if not mismatches:
        return []
    ours, theirs = _by_place(tensors.values(), copy), _by_place(copy.values(), tensors)
    found = []
    for mismatch in mismatches:
        was, now = tensors.get(mismatch.tensor), copy.get(mismatch.tensor)
        kind: Kind = "missing" if not now else "added" if not was else "dtype" if was.shape == now.shape else "shape"
        only, places = (was, ours) if was else (now, theirs)
        recipe = only.recipe if only and not (was and now) else None
        tied = places.get(recipe.place) if recipe and recipe.place else None
        note = f"tied: its bytes are those of {tied}, which both have" if tied else ""
        found.append(Contrast(mismatch.tensor, kind, mismatch.problem, _form(was), _form(now), note))
    return found


def _by_place(tensors: Iterable[Tensor], common: Mapping[str, Tensor]) -> dict[Extent, str]:
    return {
        tensor.recipe.place: tensor.name
        for tensor in tensors
        if tensor.name in common and tensor.recipe.place and tensor.bytes
    }


def _form(tensor: Tensor | None) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}" if tensor else ""


def _evidence(checkpoint: Content) -> dict[str, tuple[str, int, int]]:
    """Return the SHA-256 of its file and the range in it, for each tensor that is stored in one file with a hash."""
    hashes = {(file.source, file.at): file.sha256 for file in checkpoint.weight_files}
    places = ((tensor.name, tensor.recipe.place) for tensor in checkpoint.tensors)
    return {
        name: (sha256, place.start_byte, place.end_byte)
        for name, place in places
        if place and (sha256 := hashes.get((place.source, place.file)))
    }
