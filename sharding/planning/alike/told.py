"""Say in words how a checkpoint differs from its original, and what is made of that. Pure."""

import json
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sharding.core.errors import Remedy, SourceError
from sharding.core.made import Change
from sharding.core.text import as_object, count, name_some, parsed_json
from sharding.core.values import Content, Finding
from sharding.formats.names import CONFIG_NAME
from sharding.formats.quantization import quantization_of, quantized_in
from sharding.model_class.class_table import is_known_type
from sharding.planning.alike.comparison import Comparison, compared
from sharding.planning.alike.configs import Kept, layers_of, words_of
from sharding.planning.alike.units import FORMS, TOLD, Unit, plain_name
from sharding.planning.draft import Draft


def refuse_unusable(draft: Draft, original: Content) -> None:
    """Raise SourceError for weights and classes that have no one layout."""
    if any(
        one.library not in ("transformers", "unknown") or any(part.folder for part in one.components)
        for one in (draft.content, original)
    ):
        message = "Only a model of transformers can be made like another one."
        raise SourceError(message, "For a pipeline, name the folder of one component of both.")
    refuse_quantized(draft)
    config = as_object(parsed_json(original.configs.get("", "")))
    kind = config.get("model_type")
    if not is_known_type(kind):
        message = f"transformers does not have the class of {original.source.words}"
        message += f" (model_type {kind!r})." if kind else ": its config.json names no model type."
        hint = "Use --rename, --experts and --fill to change the layout by hand."
        raise SourceError(message, hint, Remedy("by_hand"))
    if any(".lora_" in tensor.name for tensor in draft.tensors):
        message = "This checkpoint holds a LoRA beside the weights that it changes."
        raise SourceError(message, "Save the adapter alone, and merge that first.")


def refuse_quantized(draft: Draft) -> None:
    """Raise SourceError if the weights are quantized: names and shapes belong to their format."""
    if is_quantized(draft):
        message = "These weights are quantized. Their layout cannot change."
        hint = "Add --dequantize, or use the weights before they were quantized."
        raise SourceError(message, hint, Remedy("dequantize"))


def is_quantized(model: Draft | Content) -> bool:
    """Return whether the configuration or the tensors say that weights are quantized."""
    return quantization_of(model.configs.get("", "")) is not None or bool(quantized_in(model.tensors))


def unlike(found: Comparison, content: Content, original: Content) -> Iterator[SourceError]:
    """Yield why one checkpoint does not clearly become like the other, the worst first."""
    mine, theirs, match = content.source.words, original.source.words, found.match
    other_model = "Name the model that it was trained from."
    if found.is_other_model:
        message = f"These are different models: {len(match.of):,} of {count(len(found.units), 'weight')} of {mine} fit "
        yield SourceError(f"{message}{theirs} by name and shape.", other_model)
    layers = [layers_of(config) for config in (found.config, found.form)]
    if None not in layers and layers[0] != layers[1]:
        message = f"num_hidden_layers is {layers[0]} in {mine}, and {layers[1]} in {theirs}."
        yield SourceError(message, other_model)
    for name, one, other in match.unclear:
        message = f"{name} fits two places of {theirs}: {one} and {other}."
        yield SourceError(message, "Say which, with --rename OLD=NEW.", Remedy("by_hand"))
    for name, one, other in match.twice:
        message = f"Two weights here fit {name} of {theirs}: {one} and {other}."
        yield SourceError(message, "Leave one of them out, with --drop in a copy of its own.", Remedy("by_hand"))
    if match.misfits:
        here, there = match.misfits[0]
        shapes = f"{list(found.units[here].shape)} here and {list(found.theirs[there].shape)} in {theirs}"
        more = f" So are {len(match.misfits) - 1:,} others." if len(match.misfits) > 1 else ""
        yield SourceError(f"{here} is {shapes}, and no rule explains that.{more}", other_model)
    left = _shapes(found.units, found.extra)
    for part, names in found.parts.items():
        if 2 * (left & _shapes(found.theirs, names)).total() >= len(names):
            message = f"{part} of {theirs} is not here by name, but {count(left.total(), 'weight')} without a place "
            hint = "Say which is which, with --rename OLD=NEW, or leave them out, with --drop."
            yield SourceError(f"{message}have its shapes: {name_some(found.extra)}.", hint, Remedy("by_hand"))
    if found.holes:
        holes = [found.theirs[name].tensors[0].name for name in found.holes]
        message = f"A part of {mine} lacks {count(len(holes), 'weight')}: {name_some(holes)}."
        hint = "It looks like a half-saved training. Save it again. "
        yield SourceError(message, f"{hint}Or add what is missing by hand, with --fill and --from.", Remedy("by_hand"))


def refuse_loss(found: Comparison, theirs: str) -> None:
    """Raise SourceError if a module that stays would lose its bias."""
    stays = {name.removesuffix(".weight") for name in found.match.of.values()}
    if lost := [name for name in found.extra if name.endswith(".bias") and name.removesuffix(".bias") in stays]:
        message = f"There is no place in {theirs} for {count(len(lost), 'bias', 'biases')}: {name_some(lost)}."
        raise SourceError(message, "To keep what the original does not have, add --keep-extra.", Remedy("by_hand"))


def has_own_config(content: Content) -> bool:
    """Return whether config.json comes from the source itself, and not from another input."""
    return any(file.path == CONFIG_NAME and not file.source for file in content.side_files)


def details_of(found: Comparison, values: Sequence[Kept] = (), *, is_kept: bool = False) -> dict[str, str]:
    """Return what becomes of the checkpoint, by kind, in words."""
    details = dict[str, str]()
    wrapped = [slot.tensor.name for slot in found.slots if plain_name(slot.tensor.name) != slot.tensor.name]
    if wrapped:
        details["unwrapped"] = f"{count(len(wrapped), 'tensor')}, such as {wrapped[0]}"
    if moved := {prefix: times for prefix, times in found.match.prefixes.items() if prefix[0] != prefix[1]}:
        details["prefix"] = "; ".join(
            f"{old or 'none'} becomes {new or 'none'} ({times:,} weights)" for (old, new), times in moved.items()
        )
    forms = [(there, found.units[here], found.theirs[there]) for there, here in found.match.of.items()]
    for what, is_it in FORMS.items():
        if names := [name for name, mine, other in forms if is_it(mine, other)]:
            layers = {name.partition(".*.")[0] for name in names if ".*." in name}
            details[what] = f"the experts of {count(len(layers), 'layer')}" if layers else count(len(names), "weight")
    filled = list[str]()
    for module, units in found.parts.items():
        tensors = sum(map(frozenset(units).issuperset, (slot.units for slot in found.original)))
        filled.append(f"{module} ({count(tensors, 'tensor')})")
    details |= {"filled": name_some(filled, 8)} if filled else {}
    if found.tied:
        details["head"] = f"{name_some(list(found.tied))} is a copy of the embeddings"
    if found.copies:
        details["head"] = f"{name_some(list(found.copies))} is left out, because it is the embeddings"
    if found.constants:
        details["constants"] = f"{name_some(found.constants)} of the original are left out: libraries compute them"
    if extra := [slot.tensor.name for slot in found.slots if set(found.extra).issuperset(slot.units)]:
        details["kept" if is_kept else "dropped"] = f"{count(len(extra), 'tensor')}, {name_some(extra)}"
    if values:
        told = [f"{one.key} {_short(one.value)} (original {_short(one.original)})" for one in values]
        details["settings"] = name_some(told, 12)
    return {what: text[:1900] for what, text in details.items()}


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def findings_on(
    draft: Draft, found: Comparison, original: Content, change: Change, values: Sequence[Kept]
) -> Iterator[Finding]:
    """Yield the findings about a copy of `draft` that is made like `original`."""
    details = change.details
    named = original.source.words
    told = "; ".join(f"{what}: {text}" for what, text in details.items() if what in (*TOLD, "head"))
    yield Finding("info", "like", f"The copy gets the layout of {named}{f' ({told})' if told else ''}.")
    if "filled" in details:
        message = f"{count(change.changed, 'tensor')} come from {named}, because this checkpoint has none of them: "
        hint = "They were not trained with it. The licence and terms of the original hold for the copy."
        yield Finding("warning", "like-filled", f"{message}{details['filled']}.", hint)
    names = (name for names in found.parts.values() for name in names)
    yield from findings_on_rows({name: found.theirs[name].shape for name in names}, found.config, found.form, named)
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


def findings_on_rows(
    filled: Mapping[str, tuple[int, ...]], config: Mapping[str, Any], form: Mapping[str, Any], named: str
) -> Iterator[Finding]:
    """Yield a finding if what is `filled`, shapes by name, has a row for each word of another vocabulary."""
    here, there = words_of(config), words_of(form)
    if long := [name for name, shape in filled.items() if here not in (None, there) and shape[:1] == (there,)]:
        message = f"{name_some(long)} of {named} have {there} rows, but the vocabulary has {here} words here."
        hint = "A library may not load this part, or guess wrong words with it."
        yield Finding("warning", "like-rows", message, hint)


def _is_one_model(config: Mapping[str, Any]) -> bool:
    return "model_type" in config and not any("model_type" in as_object(part) for part in config.values())


MEND = "To mend it: "
"""The beginning of the sentence with the command that mends a checkpoint."""


def advised(mine: Content, original: Content, named: tuple[str, str] | None = None) -> tuple[str, ...]:
    """Return how `mine` differs from its original, and the command that mends it; () if it does not."""
    of, theirs = ({tensor.name: tensor.shape for tensor in one.tensors} for one in (mine, original))
    if of == theirs or original.library != "transformers" or mine.library not in ("transformers", "unknown"):
        return ()
    if is_quantized(mine):
        return ()  # its names are those of its format
    try:
        found = compared(mine, mine.tensors, mine.configs.get("", ""), original, {})
    except SourceError as error:
        return (error.message,)
    said, reasons = [*_sentences(found)], [error.message for error in unlike(found, mine, original)]
    absent = [*found.holes, *(name for names in found.parts.values() for name in names)]
    if is_renamed := found.extra and _shapes(found.units, found.extra) == _shapes(found.theirs, absent):
        words = "other names here, perhaps those that transformers uses in memory, such as"
        said, reasons = [f"{count(len(absent), 'weight')} with {words} {found.extra[0]}."], []
    if not said + reasons or found.is_other_model and not is_renamed:
        return ()
    first, second = map(shlex.quote, named or (mine.source.text, original.source.text))
    return (*said, *(reasons or [f"{MEND}shard-my-repo shard {first} ./mended --like {second}"]))


def _shapes(units: Mapping[str, Unit], names: Iterable[str]) -> Counter[tuple[int, ...]]:
    return Counter(units[name].shape for name in names)


def unlike_base(mine: Content, original: Content, named: tuple[str, str]) -> Iterator[Finding]:
    """Yield a finding if `mine` does not load where the original does. `named` are both, for a command."""
    classes = [as_object(parsed_json(one.configs.get("", ""))).get("architectures") for one in (mine, original)]
    *sentences, hint = advised(mine, original, named) or ("",)
    if not hint.startswith(MEND):
        sentences, hint = [*sentences, hint], ""
    if hint or sentences[-1] and classes[0] == classes[1]:  # else it is another class on purpose
        message = f"It may not load where {named[1]} does, which it names as its base. {' '.join(sentences)}"
        yield Finding("warning", "unlike-base", message, hint)


_WHY = {
    "unwrapped": "A wrapper of the trainer is in the names of {}.",
    "separated": "Here, {} are in one tensor for each layer. The original stores them one by one.",
    "fused": "Here, {} are stored one by one. The original has one tensor for each layer.",
    "turned": "Here, {} have inputs and outputs the other way round.",
    "joined": "Here, gate and up are apart in {}. The original has them in one tensor.",
    "parted": "Here, gate and up are in one tensor in {}. The original has them apart.",
    "filled": "Whole parts are missing: {}.",
    "dropped": "Not in the original: {}.",
}


def _sentences(found: Comparison) -> Iterator[str]:
    for (old, new), times in found.match.prefixes.items():
        if old != new:
            is_all, verb = times == len(found.match.of), "has" if times == 1 else "have"
            which = "Every name has" if is_all else f"{count(times, 'name')} {verb}"
            has, had = (repr(start) if start else "nothing" for start in (old, new))
            yield f"{which} {has} in front. The original has {had} there."
    details = details_of(found)
    yield from (why.format(details[what]) for what, why in _WHY.items() if what in details)
    if found.tied:
        yield f"{name_some(list(found.tied))} is missing, because it is the embeddings here. The original stores both."
