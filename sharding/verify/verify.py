"""Compare two checkpoints: by reading every byte, or by stored digests."""

from collections.abc import Generator, Sequence
from dataclasses import replace

from sharding.checkpoint.adapter import with_adapter
from sharding.checkpoint.read import read_checkpoint
from sharding.core.environment import hub_endpoint
from sharding.core.errors import UsageError
from sharding.core.events import Progress, Verified
from sharding.core.limits import MAX_REPORT_BYTES
from sharding.core.meter import Meter
from sharding.core.options import Options, Request, TargetDtype
from sharding.core.protocols import Repo
from sharding.core.text import count
from sharding.core.values import UNCHECKED, Checkpoint, Verification
from sharding.planning.order import natural_key
from sharding.planning.plan import planned
from sharding.storage.hub.client import Hub
from sharding.storage.locate import open_source
from sharding.transfer.lanes import progress_of_part
from sharding.verify.differences import compare_numbers, compare_within
from sharding.verify.digests import compare as compare_digests
from sharding.verify.sides import READ_ALL, WITHOUT_QUICK, Side, compare_beside, compare_listed, stored_digests


def verify(
    original: str,
    copy: str,
    *,
    quick: bool = False,
    dtype: TargetDtype = "keep",
    variant: str = "",
    base: str = "",
    dequantize: bool = False,
    adapter: str = "",
    numeric: bool = False,
    endpoint: str | None = None,
    token: str | None = None,
) -> Generator[Progress | Verified, None, None]:
    """Compare two checkpoints tensor by tensor, reading every byte of both.

    Yields progress, and `Verified` last.

    - `quick`: read no weights. Compare, and trust, the digests that this tool has stored with both.
    - `dtype`: first cast the tensors of the original.
    - `variant`: which weights of the original to compare.
    - `base`: the model that was trained, if the original is what a training run saved.
    - `dequantize`: first compute ordinary weights from the quantized ones of the original.
    - `adapter`: first merge this LoRA into the original. If the bits of a merged tensor differ, its numbers
      are compared within the tolerance of a merge: see `recipes.tolerance`.
    - `numeric`: then read the tensors that differ once more, and say by how much: see `Difference`.

    Raises UsageError, SourceError, Refused.
    """
    options = Options(
        dtype=dtype, variant=variant, base=base, allow_overflow=True, dequantize=dequantize, adapter=adapter
    )
    Request(original, copy, options).refuse_contradictions()
    dtype, how = options.dtype_made, ""
    if quick and (dtype != "keep" or adapter):
        what = "cast" if dtype != "keep" else "merge"
        message = f"The stored digests cannot be compared, because a {what} changes the bytes."
        raise UsageError(message, WITHOUT_QUICK, READ_ALL)
    if quick and numeric:
        raise UsageError("The stored digests hold no numbers to compare.", WITHOUT_QUICK, READ_ALL)
    meter = Meter()
    hub = Hub(endpoint or hub_endpoint(), token)
    sources = [open_source(original, hub, base, adapter), open_source(copy, hub)]
    checkpoints = [
        with_adapter(read_checkpoint(source, asked), source)
        for source, asked in zip(sources, (variant, ""), strict=True)
    ]
    if quick:
        yield Verified(_compare_stored(sources, checkpoints, meter))
        return
    sides = [Side(source, checkpoint) for source, checkpoint in zip(sources, checkpoints, strict=True)]
    merge = None
    if dtype != "keep" or adapter:
        plan = planned(checkpoints[0], options)
        sides[0], how, merge = Side(sources[0], checkpoints[0], plan), plan.dequantized, plan.merged
    beside = [sum(file.bytes for file in checkpoint.copied_weights) for checkpoint in checkpoints]
    total, done = sum(side.bytes for side in sides) + sum(beside), 0
    for side in sides:
        yield from progress_of_part(side.read(), done, total)
        done += side.bytes
    others = yield from progress_of_part(compare_beside(sources, checkpoints), done, total)
    method = "every tensor of both was read and its BLAKE3 compared"
    if merge:
        method += f"; {merge.words} was first merged into the original's"
        method += "" if dtype == "keep" else ", and the result cast with tensor.to(dtype)"
    elif dtype != "keep":
        computed = f"dequantized ({how}) and " if how else ""
        method += f"; the original's were first {computed}cast with tensor.to(dtype)"
    method += "".join(side.remark for side in sides if side.remark)
    if any(beside):
        files = count(len(checkpoints[0].copied_weights), "weight file")
        method += f"; the SHA-256 of {files} beside them was compared"
    wrong = (mismatch for side in sides for mismatch in side.wrong)
    of_tensors, within, undecided = compare_digests(sides[0].digests, sides[1].digests), 0, 0
    if merge and of_tensors:
        of_tensors, within, undecided = yield from compare_within(of_tensors, sides[0].numbers, sides[1].numbers)
        if within:
            equal = len(sides[0].digests) - len(of_tensors) - within - undecided
            method += (
                f"; bit-equal tensors: {equal:,}, within the tolerance of a merge: {within:,} (another processor or "
            )
            method += "library adds up in another order)"
    differences = None
    if numeric:
        names = sorted((mismatch.tensor for mismatch in of_tensors), key=natural_key)
        differences = yield from compare_numbers(names, sides[0].numbers, sides[1].numbers)
        if compared := sum(one.equal is not None for one in differences):
            which = "1 tensor that differs" if compared == 1 else f"{compared:,} tensors that differ"
            method += f"; the numbers of {which} were compared in float64"
    outcome = Verification(
        *(len(sides[0].digests), checkpoints[1].total_bytes, meter.seconds, method, (*of_tensors, *wrong, *others)),
        *(dtype, how, any(side.unstated for side in sides)),
        differences=differences,
        merged=merge,
        within=within,
        undecided=undecided,
    )
    yield Verified(_of_weights(outcome, checkpoints))


def _compare_stored(sources: Sequence[Repo], checkpoints: Sequence[Checkpoint], meter: Meter) -> Verification:
    """Return how the digests compare that this tool has stored with both. Raises SourceError, Refused."""
    stored = [
        stored_digests(source, checkpoint, MAX_REPORT_BYTES)
        for source, checkpoint in zip(sources, checkpoints, strict=True)
    ]
    first, second = stored
    method, size = "stored digests were compared, no weights were read", checkpoints[1].total_bytes
    differ, (ours, theirs) = compare_listed(checkpoints)
    mismatches = (*compare_digests(first, second), *differ)
    is_known = all(file.sha256 and theirs[path].sha256 for path, file in ours.items())
    more = () if is_known else ("the bytes of weight files beside the weights",)
    return _of_weights(Verification(len(first), size, meter.seconds, method, mismatches), checkpoints, more)


def _of_weights(outcome: Verification, checkpoints: Sequence[Checkpoint], more: tuple[str, ...] = ()) -> Verification:
    """Return `outcome` with the things that it does not check: the usual ones, and `more`."""
    unreached = tuple(place for checkpoint in checkpoints for place in checkpoint.unreached)
    return replace(outcome, unreached=unreached, unchecked=(*UNCHECKED, *more))
