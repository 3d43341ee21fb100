"""Make a checkpoint like its original: the original's names, shapes and parts, with its own numbers. Pure."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sharding.core.errors import Remedy, SourceError
from sharding.core.made import Change
from sharding.core.text import as_object, count, name_some, objects_in, parsed_json
from sharding.core.values import Content, Finding, Tensor
from sharding.formats.names import CONFIG_NAME
from sharding.formats.quantization import dtype_of_first, quantization_of, quantized_in, without_quantization
from sharding.formats.torch_checkpoint import EMBEDDINGS, HEADS
from sharding.model_class.class_table import USUAL_HEAD, is_known_type, tied_names, ties
from sharding.planning.alike.configs import Kept, layers_of, with_values, words_of
from sharding.planning.alike.matching import Fits, Lack, Match, lacking, matched, prefixes_of
from sharding.planning.alike.units import Slot, Unit, plain_name, slots_of, units_of
from sharding.planning.dequantize import ordinary
from sharding.planning.draft import Draft

_TIES = "tie_word_embeddings"
_SHARED = re.compile(r"\b(?:encoder|decoder)\.embed_tokens\.weight$")
"""Embeddings that are `shared.weight` beside them (T5, BART)."""

_CONSTANTS = re.compile(r"(?:\.inv_freq|\.position_ids|\b(?:attn|attention)\.(?:masked_)?bias)$")
"""What older versions of transformers stored with the weights. All libraries compute it."""

_DTYPES = {"dtype", "torch_dtype"}
_OF_MTP = re.compile(r"nextn|mtp")
"""How configurations call the number of layers of an MTP head."""

_HALF_SAVED = (
    "It looks like a half-saved training. Save it again. Or add what is missing by hand, with --fill and --from."
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A checkpoint beside its original: the tensors and units of both, how they belong together, and what is not here.

    `untied` are output heads of the checkpoint that its original does not store, each with its name in the copy, and
    `copies` those with the bytes of the embeddings. `tied` are heads that are stored there and are the embeddings here,
    each with the unit that it gets. `has_own_head`: a head is here that is not the embeddings. `constants` are stored
    there and not here. `config` and `form` are the content of both config.json.
    """

    slots: tuple[Slot, ...]
    units: Mapping[str, Unit]
    original: tuple[Slot, ...]
    theirs: Mapping[str, Unit]
    match: Match
    lack: Lack
    untied: Mapping[str, str]
    copies: frozenset[str]
    tied: Mapping[str, str]
    has_own_head: bool
    constants: tuple[str, ...]
    config: Mapping[str, Any]
    form: Mapping[str, Any]

    @property
    def is_other_model(self) -> bool:
        """Whether the two have little in common."""
        return 2 * (len(self.match.of) + len(self.match.unclear)) < min(len(self.units), len(self.theirs))

    @property
    def extra(self) -> tuple[str, ...]:
        """Units that the original does not have, without output heads that it has as its embeddings."""
        return tuple(name for name in self.match.extra if name not in self.untied and name not in self.copies)


def compared(
    mine: Content, tensors: Sequence[Tensor], config: str, original: Content, known: Mapping[str, str]
) -> Comparison:
    """Return `mine`, which has these `tensors` and this `config` by now, beside its original.

    `known` are the original's stored names of names in memory. Raises SourceError.
    """
    after = ordinary(original)
    if after is None:
        how = "in a way that this version does not read"
        hint = "Name the ordinary model that it was quantized from."
        raise SourceError(f"The weights of {original.source.words} are quantized, {how}.", hint)
    both = {**{stored: name for name, stored in known.items()}, **known}
    there = {tensor.name: tensor.shape for tensor in after.tensors}
    slots = tuple(slots_of(_renamed(tensor, both, there) for tensor in tensors))
    theirs_slots = tuple(slots_of(after.tensors))
    units, theirs = units_of(slots), units_of(theirs_slots)
    ours, form = as_object(parsed_json(config)), as_object(parsed_json(original.configs.get("", "")))
    fits = Fits((words_of(ours), words_of(form)))
    match = matched(units, theirs, fits)
    is_tied = ties(ours)
    is_real = is_tied is False or mine.head_is_copy is False
    tied = {}
    if is_tied and not is_real:
        words = next((name for name in match.of if EMBEDDINGS.search(name)), "")
        tied = {name: words for name in match.absent if words and _is_head(name, theirs[name], theirs[words])}
    copied = {name: _SHARED.sub("shared.weight", name) for name in match.absent if _SHARED.search(name)}
    tied |= {name: words for name, words in copied.items() if words in match.of}
    usual = tied_names(form)[:1] or (USUAL_HEAD,)
    heads = [name for name in match.extra if f".{name}".endswith(f".{usual[0]}") and usual[0] not in theirs]
    untied = dict(zip(heads, usual, strict=False)) if is_real else {}
    copies = frozenset(heads if mine.head_is_copy else ())
    match = replace(match, absent=tuple(name for name in match.absent if name not in tied))
    constants = tuple(name for name in match.absent if _CONSTANTS.search(name))
    match = replace(match, absent=tuple(name for name in match.absent if name not in constants))
    lack = lacking(match, theirs, layers_of(form))
    own = bool(untied) or is_real and any(f".{name}".endswith(f".{usual[0]}") for name in match.of)
    return Comparison(slots, units, theirs_slots, theirs, match, lack, untied, copies, tied, own, constants, ours, form)


def _renamed(tensor: Tensor, known: Mapping[str, str], there: Mapping[str, tuple[int, ...]]) -> Tensor:
    """Return `tensor` with its other name behind its prefix, if the original has that one and not this one."""
    for prefix in prefixes_of(tensor.name):
        name = tensor.name.removeprefix(prefix)
        if (other := known.get(name, name)) in there:
            is_other = name not in there and len(there[other]) == len(tensor.shape)
            return tensor._replace(name=prefix + other) if is_other else tensor
    return tensor


def _is_head(name: str, head: Unit, words: Unit) -> bool:
    return HEADS.search(name) is not None and head.shape == words.shape


def found_in(draft: Draft, known: Mapping[str, str] | None = None) -> Comparison:
    """Return the checkpoint of `draft` beside its original. Raises SourceError if their weights cannot be compared."""
    original = _original(draft)
    _refuse_unusable(draft, original)
    return compared(draft.content, draft.tensors, draft.configs.get("", ""), original, known or {})


def names_asked(draft: Draft, found: Comparison) -> Content | None:
    """Return the original, if its names in memory may tell more than prefixes do; else None."""
    original = _original(draft)
    config = original.configs.get("", "")
    asks = found.match.absent and found.match.extra and config
    return replace(original, configs={"": without_quantization(config)}) if asks else None


def _original(draft: Draft) -> Content:
    original = draft.content.of("like")
    assert original is not None
    return original


def alike(draft: Draft, found: Comparison) -> Draft:
    """Return `draft` with the names, shapes and parts of its original, and with its own numbers.

    Raises SourceError if the two are different models, if a weight is missing inside a part, or if more than one way
    fits.
    """
    content, original = draft.content, _original(draft)
    refuse_unlike(found, content, original)
    if not draft.options.keep_extra:
        _refuse_loss(found, original.source.words)
    filled = frozenset(name for names in found.lack.parts.values() for name in names)
    of_original = sum(filled.issuperset(slot.units) for slot in found.original)
    of = {**found.match.of, **{name: found.match.of[words] for name, words in found.tied.items()}}
    tensors = list(_made(found, of, filled))
    kept = _extra_tensors(found) if draft.options.keep_extra else []
    heads = (found.units[name].tensors[0]._replace(name=new) for name, new in found.untied.items())
    tensors += [*kept, *heads]
    _refuse_doubles(tensors)
    written, values = _configured(draft, found)
    configs, reconfigured = dict(draft.configs), draft.reconfigured
    if written is not None and written != parsed_json(draft.configs.get("", "")):
        configs[""], reconfigured = json.dumps(written), draft.reconfigured | {""}
    details = details_of(found, kept, values, is_kept=bool(draft.options.keep_extra))
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
    components = tuple(replace(one, total_parameters=None) for one in draft.components)
    return replace(
        draft,
        tensors=tuple(tensors),
        components=components,
        configs=configs,
        reconfigured=reconfigured,
        made=(*draft.made, change),
        findings=(*draft.findings, *_findings(draft, found, original, change, values)),
    )


def _refuse_unusable(draft: Draft, original: Content) -> None:
    """Raise SourceError for weights and classes that have no one layout."""
    if any(
        one.library not in ("transformers", "unknown") or any(part.folder for part in one.components)
        for one in (draft.content, original)
    ):
        message = "Only a model of transformers can be made like another one."
        raise SourceError(message, "For a pipeline, name the folder of one component of both.")
    if quantization_of(draft.configs.get("", "")) is not None or quantized_in(draft.tensors):
        message = "These weights are quantized. Their layout cannot change."
        raise SourceError(
            message, "Add --dequantize, or use the weights before they were quantized.", Remedy("dequantize")
        )
    config = as_object(parsed_json(original.configs.get("", "")))
    kind = config.get("model_type")
    if not is_known_type(kind):
        message = f"transformers does not have the class of {original.source.words}"
        message += f" (model_type {kind!r})." if kind else ": its config.json names no model type."
        raise SourceError(message, "Use --rename, --experts and --fill to change the layout by hand.")
    if any(".lora_" in tensor.name for tensor in draft.tensors):
        message = "This checkpoint holds a LoRA beside the weights that it changes."
        raise SourceError(message, "Save the adapter alone, and merge it with --adapter first.")


def refuse_unlike(found: Comparison, content: Content, original: Content) -> None:
    """Raise SourceError if one checkpoint does not clearly become like the other, and say where."""
    mine, theirs, match = content.source.words, original.source.words, found.match
    if found.is_other_model:
        message = f"{mine} and {theirs} are different models: {len(match.of):,} of {count(len(found.units), 'weight')} "
        raise SourceError(f"{message}fit by name and shape.", "Name the model that it was trained from.")
    layers = [layers_of(config) for config in (found.config, found.form)]
    if None not in layers and layers[0] != layers[1]:
        message = f"num_hidden_layers is {layers[0]} in {mine}, and {layers[1]} in {theirs}."
        raise SourceError(message, "Name the model that it was trained from.")
    if match.unclear:
        name, one, other = match.unclear[0]
        message = f"{name} fits two places of {theirs}: {one} and {other}."
        raise SourceError(message, "Say which, with --rename OLD=NEW.")
    if match.twice:
        name, one, other = match.twice[0]
        message = f"Two weights here fit {name} of {theirs}: {one} and {other}."
        raise SourceError(message, "Leave one of them out with --drop in a copy of its own.")
    if match.misfits:
        here, there = match.misfits[0]
        shapes = f"{list(found.units[here].shape)} here and {list(found.theirs[there].shape)} in {theirs}"
        more = f" So are {len(match.misfits) - 1:,} others." if len(match.misfits) > 1 else ""
        raise SourceError(
            f"{here} is {shapes}, and no rule explains that.{more}", "Name the model that it was trained from."
        )
    if found.lack.holes:
        holes = [found.theirs[name].tensors[0].name for name in found.lack.holes]
        message = f"{mine} lacks {count(len(holes), 'weight')} of a part that it has: {name_some(holes)}."
        raise SourceError(message, _HALF_SAVED)


def _refuse_loss(found: Comparison, theirs: str) -> None:
    """Raise SourceError if a module that stays would lose its bias."""
    stays = {name.removesuffix(".weight") for name in found.match.of.values()}
    if lost := [name for name in found.extra if name.endswith(".bias") and name.removesuffix(".bias") in stays]:
        message = f"{theirs} does not have {count(len(lost), 'bias', 'biases')} of these weights: {name_some(lost)}."
        raise SourceError(message, "To keep what the original does not have, add --keep-extra.")


def _made(found: Comparison, of: Mapping[str, str], filled: frozenset[str]) -> Iterator[Tensor]:
    """Yield every tensor of the original, made of the weights here or filled. Raises SourceError."""
    for slot in found.original:
        if filled.issuperset(slot.units):
            yield slot.tensor
        elif not set(found.constants).issuperset(slot.units):
            yield slot.made_of([found.units[of[name]] for name in slot.units])


def _extra_tensors(found: Comparison) -> list[Tensor]:
    extra = set(found.extra)
    return [
        slot.tensor._replace(name=plain_name(slot.tensor.name)) for slot in found.slots if extra.issuperset(slot.units)
    ]


def _refuse_doubles(tensors: Sequence[Tensor]) -> None:
    if double := next((name for name, times in Counter(tensor.name for tensor in tensors).items() if times > 1), None):
        message = f"Two tensors of the copy would be called {double}."
        raise SourceError(message, "Leave out --keep-extra, or drop one of them in a copy of its own.")


def _configured(draft: Draft, found: Comparison) -> tuple[dict[str, Any] | None, list[Kept]]:
    """Return the content of config.json, and the settings in which it is not the original's. None: there is none."""
    if not found.form:
        return None, []
    form = json.loads(without_quantization(json.dumps(found.form)))
    document, kept = with_values(form, found.config) if has_own_config(draft.content) else (dict(form), [])
    says_dtype = has_own_config(draft.content) and any(_DTYPES & level.keys() for level in objects_in(found.config))
    dtype = "" if says_dtype else dtype_of_first(draft.tensors)
    for level, old in ((document, form), (document.get("text_config"), form.get("text_config"))):
        if isinstance(level, dict):
            level |= {key: dtype for key in _DTYPES & level.keys() if dtype}
            if found.lack.parts:  # an MTP head that is filled counts as in the original
                level |= {key: value for key, value in as_object(old).items() if _OF_MTP.search(key)}
            stated = as_object(old).get(_TIES)
            stated = False if found.has_own_head and ties(found.form) is not False else stated
            level.pop(_TIES, None) if stated is None else level.update({_TIES: stated})
    kept = [one for one in kept if not (found.lack.parts and _OF_MTP.search(one.key))]
    return document, [one for one in kept if found.has_own_head or not one.key.endswith(_TIES)]


def _is_one_model(config: Mapping[str, Any]) -> bool:
    return "model_type" in config and not any("model_type" in as_object(part) for part in config.values())


def has_own_config(content: Content) -> bool:
    """Return whether config.json comes from the source itself, and not from another input."""
    return any(file.path == CONFIG_NAME and not file.source for file in content.side_files)


def details_of(found: Comparison, kept: Sequence[Tensor], values: Sequence[Kept], *, is_kept: bool) -> dict[str, str]:
    """Return what becomes of the checkpoint, by kind, in words."""
    details = dict[str, str]()
    wrapped = [slot.tensor.name for slot in found.slots if plain_name(slot.tensor.name) != slot.tensor.name]
    if wrapped:
        details["unwrapped"] = f"{count(len(wrapped), 'tensor')}, such as {wrapped[0]}"
    if moved := {prefix: times for prefix, times in found.match.prefixes.items() if prefix[0] != prefix[1]}:
        details["prefix"] = "; ".join(
            f"{old or 'none'} becomes {new or 'none'} ({times:,} weights)" for (old, new), times in moved.items()
        )
    for what, is_single in (("fused", True), ("separated", False)):
        names = [
            there
            for there, here in found.match.of.items()
            if found.units[here].is_of_experts
            and found.units[here].is_single is is_single
            and found.theirs[there].is_single is not is_single
        ]
        if names:
            details[what] = f"the experts of {count(len({name.partition('.*.')[0] for name in names}), 'layer')}"
    filled = [f"{module} ({count(len(names), 'weight')})" for module, names in found.lack.parts.items()]
    details |= {"filled": name_some(filled, 8)} if filled else {}
    if found.tied:
        details["head"] = f"{name_some(list(found.tied))} is a copy of the embeddings"
    if found.copies:
        details["head"] = f"{name_some(list(found.copies))} is left out, because it is the embeddings"
    if found.constants:
        details["constants"] = (
            f"{name_some(found.constants)} of the original are left out, because libraries compute them"
        )
    if extra := [slot.tensor.name for slot in found.slots if set(found.extra).issuperset(slot.units)]:
        details["kept" if is_kept else "dropped"] = f"{count(len(extra), 'tensor')}, {name_some(extra)}"
    if values:
        told = [f"{one.key} {_short(one.value)} (original {_short(one.original)})" for one in values]
        details["settings"] = name_some(told, 12)
    return {what: text[:1900] for what, text in details.items()}


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _findings(
    draft: Draft, found: Comparison, original: Content, change: Change, values: Sequence[Kept]
) -> Iterator[Finding]:
    details = change.details
    named = original.source.words
    told = "; ".join(
        f"{what}: {text}" for what, text in details.items() if what in ("prefix", "fused", "separated", "head")
    )
    yield Finding("info", "like", f"The copy gets the layout of {named}{f' ({told})' if told else ''}.")
    if "filled" in details:
        message = f"{count(change.changed, 'tensor')} come from {named}, because this checkpoint has none of them: "
        hint = "They were not trained with it. The licence and terms of the original hold for the copy."
        yield Finding("warning", "like-filled", f"{message}{details['filled']}.", hint)
    words = (words_of(found.config), words_of(found.form))
    names = [name for names in found.lack.parts.values() for name in names]
    if long := [name for name in names if words[0] != words[1] and found.theirs[name].shape[:1] == words[1:]]:
        message = f"{name_some(long)} of {named} have {words[1]} rows, but the vocabulary has {words[0]} words here."
        yield Finding(
            "warning", "like-rows", message, "A library may not load this part, or guess wrong words with it."
        )
    kinds = [config.get("model_type") for config in (found.config, found.form) if _is_one_model(config)]
    if len({*kinds}) > 1:
        message = f"model_type is {kinds[0]} here and {kinds[1]} in {named}. The copy is a {kinds[1]}."
        yield Finding("warning", "like-type", message, "Check that it computes the same.")
    if "dropped" in details:
        message = f"Left out, because {named} does not have it: {details['dropped']}."
        yield Finding("warning", "like-dropped", message, "To keep these tensors, add --keep-extra.")
    if values:
        message = f"config.json keeps other values than the original's: {details['settings']}."
        yield Finding("info", "like-settings", message)
    if not has_own_config(draft.content):
        message = f"There is no config.json, so the copy gets that of {named}."
        yield Finding("warning", "like-config", message, "Check that training changed none of its settings.")
    if quantization_of(original.configs.get("", "")) is not None:
        message = f"The weights of {named} are quantized. The copy has ordinary weights."
        yield Finding("info", "like-quantized", message)
