"""Turn what is known of a copy into panels that claim no more. Pure."""

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from markupsafe import Markup

from sharding.core.made import phrase
from sharding.core.options import Options
from sharding.core.origin import Place
from sharding.core.text import count, format_bytes, unchecked_sentence, within_words
from sharding.core.verification import UNCHECKED, Difference
from sharding.desk import JobStatus
from sharding.drawing.heat import distance_of, draw_heat, level_of
from sharding.page.job_panels import mismatches_of
from sharding.page.links import Wish, query_of
from sharding.page.render import render
from sharding.page.result_panels import CLAIMED, FITS, READ, READ_HERE, Rung, named
from sharding.planning.alike.told import MEND
from sharding.storage.names import parse_address
from sharding.verify.structure import Contrast, Kind, Likeness, sentence_of
from sharding.verify.trust import Trust

_SHAPES = "", "names, shapes and dtypes", ""  # What the steps below the last rest on.
_KINDS: Mapping[Kind, str] = {
    "missing": "only in the original",
    "added": "only in the copy",
    "shape": "with another shape",
    "dtype": "with another dtype",
    "file": "in files beside the weights",
}


def likeness_panel(likeness: Likeness, trust: Trust, endpoint: str) -> str:
    """Return the verdict on two repos: a sentence, the ladder of proofs, and what differs."""
    headline, tone, rung = _verdict(likeness, trust)
    reasons = [reason for reason in trust.reasons if reason != sentence_of(likeness)]
    known = [] if trust.level in READ_HERE else _facts(likeness)
    facts, counts = [*_advice(likeness), *known, *reasons, *trust.caveats], _counts(likeness.mismatches)
    command = ["shard-my-repo", "diff", likeness.original.text, likeness.copy.text]
    command += [*(["--variant", likeness.variant] if likeness.variant else []), "--json"]
    values = {"tone": tone, "rung": rung, "counts": counts, "facts": facts, "command": shlex.join(command)}
    return render("same", likeness=likeness, endpoint=endpoint, headline=headline, **values)


def _verdict(likeness: Likeness, trust: Trust) -> tuple[str, str, Rung]:
    """Return the headline, its tone, and how far the ladder of proofs is climbed."""
    tensors, how, size = count(likeness.tensors, "tensor"), phrase(likeness.made), format_bytes(likeness.bytes)
    if trust.level in READ_HERE:
        headline, tone = f"The same: all {tensors} are identical.", "" if trust.caveats or how else "good"
        if trust.caveats:
            headline = f"All {tensors} that were compared match{how}. But not all is known."
        elif how:
            equal = within_words(likeness.tensors, trust.within) if trust.within else "all are exactly the original's"
            headline = f"Not the original's bytes. Of {tensors}, {equal}{how}."
        until = f"; known {trust.until}" if trust.until else ""
        return headline, tone, Rung(READ, words=(*_SHAPES, f"{size}, by this page{until}"))
    tone = "bad" if trust.level == "contradicted" else ""
    if likeness.verdict == "different":
        return sentence_of(likeness), tone, Rung(CLAIMED, FITS, (*_SHAPES, "not read"))
    if trust.level == "contradicted":
        headline = "Not the same, although names, shapes and dtypes are."
        return headline, tone, Rung(FITS, READ)
    return sentence_of(likeness), tone, Rung(FITS, words=(*_SHAPES, f"not yet: {size}"))


def _advice(likeness: Likeness) -> list[str]:
    """Return why the copy does not load where the original does, with a link to the plan that mends that."""
    *sentences, last = likeness.advice or ("",)
    if not last.startswith(MEND):
        return [*likeness.advice]
    wish = Wish(likeness.copy.text, Options(like=likeness.original.text), "make-it-load", sized=False)
    return [*sentences, Markup('<a href="{}">Make it load again</a>').format(query_of(wish))]


def outcome_panel(status: JobStatus, endpoint: str, address: str) -> str:
    """Return the panel of a job that has found no difference beyond a tolerance. Its links begin with `address`."""
    proof = status.verification
    within = f"They are {within_words(proof.tensors, proof.within)}" if proof and proof.within else ""
    values: dict[str, Any] = {"sides": _sides(status, endpoint), "link": address + link_of(status), "rung": Rung(READ)}
    values |= {"unchecked": unchecked_sentence(UNCHECKED), "unstated": bool(proof and proof.unstated)}
    values |= {"first": phrase(proof.made, named) if proof else "", "unreached": status.unreached}
    return render("checked", endpoint=endpoint, within=within, **values)


def _sides(status: JobStatus, endpoint: str) -> list[Place]:
    return [parse_address(text, endpoint) for text in (status.request.source, status.request.destination)]


def link_of(status: JobStatus) -> str:
    """Return the link to the comparison of the two commits that a job has read."""
    return query_of(Wish(compare=status.request.source, against=status.request.destination))


def differences_panel(status: JobStatus, names: Iterable[str], endpoint: str, address: str) -> str:
    """Return by how much the tensors of two repos differ. `names` are all tensors. Its links begin with `address`."""
    proof = status.verification
    differences = (proof.differences if proof else None) or ()
    reason = " ".join(status.error) if status.error else ""
    worst = sorted(differences, key=lambda one: (-level_of(one), -distance_of(one), one.tensor))
    headline = f"{count(len(worst), 'tensor')} of {proof.tensors if proof else 0:,} differ{'s' * (len(worst) == 1)}."
    reached = FITS if all(one.equal is not None for one in differences) else CLAIMED
    rung = Rung(reached, READ)
    values: dict[str, Any] = {"sides": _sides(status, endpoint), "link": address + link_of(status), "reason": reason}
    values |= {"heat": Markup(draw_heat(names, differences)), "ended": status.ended}
    values |= {"mismatches": mismatches_of(status)}
    rows = [(one, _shown(one)) for one in worst]
    return render("differences", endpoint=endpoint, headline=headline, rung=rung, rows=rows, **values)


def _shown(difference: Difference) -> dict[str, str]:
    one = difference
    numbers = {"largest": (one.largest_abs, ".3g"), "mean": (one.mean_abs, ".3g"), "cosine": (one.cosine, ".6f")}
    shown = {name: "" if number is None else format(number, digits) for name, (number, digits) in numbers.items()}
    return {**shown, "equal": "" if one.equal is None else _percent(one.equal)}


def _percent(part: float) -> str:
    """Return a share in per cent. Only all is "100%", and only none is "0%".

    >>> _percent(1.0), _percent(0.99999), _percent(0.5), _percent(0.0)
    ('100%', '99.99%', '50%', '0%')
    """
    if part in (0.0, 1.0):
        return f"{100 * part:.0f}%"
    return f"{min(max(100 * part, 0.01), 99.99):.4g}%"


def _facts(likeness: Likeness) -> Iterable[str]:
    if likeness.original == likeness.copy:
        yield "Both names lead to the same commit of the same repo."
    total = count(likeness.tensors, "tensor")
    if likeness.verdict == "same-files":
        yield f"The Hub states the same SHA-256 for the weight files of both. They hold {total}."
    elif likeness.in_same_files:
        yield f"{likeness.in_same_files:,} of {total} are in files with the same SHA-256, so their bytes are equal."
    elif likeness.verdict == "same-structure":
        yield f"Both have {total}. Perhaps only their files are cut differently: the hashes of the files cannot tell."
    if likeness.verdict == "converted":
        first = phrase(likeness.made).removeprefix(", ")
        yield f"Reading every byte compares the copy with the original, {first}."
    if claims := likeness.claims:
        verb = "differs" if len(claims.differing) == 1 else "differ"
        say = f"say that {count(len(claims.differing), 'tensor')} {verb}" if claims.differing else "are all equal"
        yield (
            f"Both repos store checksums of their tensors, which {say}. Whoever uploaded them may have written any "
            "checksums, so that proves nothing."
        )
    if likeness.variant:
        yield f"Compared with the variant {likeness.variant} of the original."


def _counts(mismatches: Iterable[Contrast]) -> list[str]:
    kinds = Counter(one.kind for one in mismatches)
    changes = Counter(
        f"{one.original.partition(' ')[0]} → {one.copy.partition(' ')[0]}" for one in mismatches if one.kind == "dtype"
    )
    names = ", ".join(change for change, _ in changes.most_common(2))
    return [
        f"{kinds[kind]:,} {words}{f' ({names})' if kind == 'dtype' else ''}"
        for kind, words in _KINDS.items()
        if kinds[kind]
    ]
