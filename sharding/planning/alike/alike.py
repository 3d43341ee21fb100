"""Make a checkpoint like its original: the original's names, shapes and parts, with its own numbers. Pure."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sharding.core.errors import Remedy, SourceError
from sharding.core.made import Change
from sharding.core.text import as_object, objects_in, parsed_json
from sharding.core.values import Content, Finding, Tensor
from sharding.formats.quantization import dtype_of_first, without_quantization
from sharding.model_class.class_table import ties
from sharding.planning.alike.comparison import Comparison, compared
from sharding.planning.alike.configs import Kept, kept_values, with_values
from sharding.planning.alike.told import details_of, findings_on, has_own_config, refuse_loss, refuse_unusable, unlike
from sharding.planning.alike.units import TOLD, plain_name
from sharding.planning.dequantize import ordinary
from sharding.planning.draft import Draft

_TIES = "tie_word_embeddings"
_DTYPES = {"dtype", "torch_dtype"}
_OF_MTP = re.compile(r"nextn|mtp")
"""How configurations call the number of layers of an MTP head."""


def found_in(draft: Draft, known: Mapping[str, str] | None = None) -> Comparison:
    """Return the checkpoint of `draft` beside its original. Raises SourceError if their weights cannot be compared."""
    original = draft.content.the("like")
    refuse_unusable(draft, original)
    return compared(draft.content, draft.tensors, draft.configs.get("", ""), original, known or {})


def names_asked(draft: Draft, found: Comparison) -> Content | None:
    """Return the original, if its names in memory may tell more than prefixes do; else None."""
    original = draft.content.the("like")
    config = original.configs.get("", "")
    asks = (found.parts or found.holes) and found.match.extra and config
    return replace(original, configs={"": without_quantization(config)}) if asks else None


def alike(draft: Draft, found: Comparison) -> Draft:
    """Return `draft` with the names, shapes and parts of its original, and its own numbers. Raises SourceError."""
    content, original = draft.content, draft.content.the("like")
    if error := next(unlike(found, content, original), None):
        raise error
    if not draft.options.keep_extra:
        refuse_loss(found, original.source.words)
    filled = frozenset(name for names in found.parts.values() for name in names)
    of_original = sum(filled.issuperset(slot.units) for slot in found.original)
    of = {**found.match.of, **{name: found.match.of[words] for name, words in found.tied.items()}}
    tensors, extra = list(_made(found, of, filled)), set(found.extra if draft.options.keep_extra else ())
    more = (slot.tensor for slot in found.slots if extra.issuperset(slot.units))
    tensors += (tensor._replace(name=plain_name(tensor.name)) for tensor in more)
    tensors += (found.units[name].tensors[0]._replace(name=new) for name, new in found.untied.items())
    _refuse_doubles(tensors)
    written, values = _configured(draft, found)
    configs, reconfigured = dict(draft.configs), draft.reconfigured
    if written != parsed_json(draft.configs.get("", "")):
        configs[""], reconfigured = json.dumps(written), draft.reconfigured | {""}
    details = details_of(found, values, is_kept=bool(draft.options.keep_extra))
    told = " ".join(f"{what[0].upper()}{what[1:]}: {text}." for what, text in details.items())
    told += " The original's own licence holds for what is filled." if of_original else ""
    change = Change(
        kind="like",
        done=f"with the layout of {original.source.text} applied",
        called="The layout",
        how=told or "Names and form were those of the original already.",
        then=f"It loads where {original.source.words} loads.",
        changed=of_original,
        of=len(tensors),
        by=original.source,
        evidence=original.source.text,
        details=details,
    )
    return replace(
        draft,
        tensors=tuple(tensors),
        configs=configs,
        reconfigured=reconfigured,
        made=(*draft.made, change),
        findings=(*draft.findings, *findings_on(draft, found, original, change, values)),
    )


def _made(found: Comparison, of: Mapping[str, str], filled: frozenset[str]) -> Iterator[Tensor]:
    """Yield every tensor of the original, made of the weights here or filled. Raises SourceError."""
    left_out = frozenset(found.constants)
    for slot in found.original:
        if filled.issuperset(slot.units):
            yield slot.tensor
        elif not left_out.issuperset(slot.units):
            yield slot.made_of([found.units[of[name]] for name in slot.units])


def _refuse_doubles(tensors: Sequence[Tensor]) -> None:
    if double := next((name for name, times in Counter(tensor.name for tensor in tensors).items() if times > 1), None):
        message = f"Two tensors of the copy would be called {double}."
        hint = "Leave out --keep-extra, or drop one of them in a copy of its own."
        raise SourceError(message, hint, Remedy("by_hand"))


def _configured(draft: Draft, found: Comparison) -> tuple[dict[str, Any], list[Kept]]:
    """Return the content of config.json, and the settings in which it is not the original's."""
    form = json.loads(without_quantization(json.dumps(found.form)))
    document = with_values(form, found.config) if has_own_config(draft.content) else dict(form)
    kept = list(kept_values(form, document))
    says_dtype = has_own_config(draft.content) and any(_DTYPES & level.keys() for level in objects_in(found.config))
    dtype = "" if says_dtype else dtype_of_first(draft.tensors)
    as_there = found.parts or not draft.options.keep_extra  # the copy has the original's MTP heads
    for level, old in ((document, form), (document.get("text_config"), form.get("text_config"))):
        if isinstance(level, dict):
            level |= {key: dtype for key in _DTYPES & level.keys() if dtype}
            if as_there:
                for key in filter(_OF_MTP.search, {**level, **as_object(old)}):
                    level.pop(key, None)
                    level |= {key: as_object(old)[key]} if key in as_object(old) else {}
            stated = as_object(old).get(_TIES)
            stated = False if found.has_own_head and ties(found.form) is not False else stated
            level.pop(_TIES, None) if stated is None else level.update({_TIES: stated})
    kept = [one for one in kept if not (as_there and _OF_MTP.search(one.key))]
    return document, [one for one in kept if found.has_own_head or not one.key.endswith(_TIES)]


def named_like(run: Content, base: Content) -> Content:
    """Return the tensors of a training run as its base has them, where they fit; a finding says what changed."""
    original = ordinary(base)
    if original is None:
        return run
    ready = replace(base, tensors=original.tensors, configs={})
    try:
        found = compared(run, run.tensors, "", ready, {})
    except SourceError:  # experts that are not complete
        return run
    told = "; ".join(f"{what}: {text}" for what, text in details_of(found).items() if what in TOLD)
    if not told or found.match.unclear or found.match.twice or found.is_other_model:
        return run
    of = found.match.of
    known = [slot for slot in found.original if of.keys() >= {*slot.units}]
    tensors = [slot.made_of([found.units[of[name]] for name in slot.units]) for slot in known]
    taken = {of[name] for slot in known for name in slot.units}
    left = (slot.tensor for slot in found.slots if taken.isdisjoint(slot.units))
    tensors += (tensor._replace(name=plain_name(tensor.name)) for tensor in left)
    message = f"Names and form are those of {base.source.words} ({told})."
    return replace(run, tensors=tuple(tensors), findings=(*run.findings, Finding("info", "named-like-base", message)))
