"""Take some tensors of a checkpoint, rename them, store its experts otherwise, or fill in others' tensors. Pure."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from sharding.core.errors import Remedy, SourceError, UsageError
from sharding.core.made import Change
from sharding.core.text import as_object, count, name_some, nearest, parsed_json
from sharding.core.values import Finding, Tensor
from sharding.formats.quantization import is_quantized
from sharding.model_class.class_table import causal_class, ties
from sharding.model_class.experts import OLD_BLOCKS, SHORT_NAMES, is_stored_apart
from sharding.planning.alike.told import findings_on_rows, refuse_quantized
from sharding.planning.alike.units import PARTS, Slot, Unit, slots_of, units_of
from sharding.planning.draft import Draft
from sharding.planning.order import natural_key

_TEXTS = (
    ("thinker.model.", "thinker.lm_head."),
    ("language_model.model.", "language_model.lm_head."),
    ("model.language_model.", "lm_head."),
    ("model.text_model.", "lm_head."),
    ("model.", "lm_head."),
)
"""How names of the text model and of its head begin in a model with several parts."""

_TOWERS = ("model.visual.", "model.vision_tower.", "model.vision_model.", "model.multi_modal_projector.", "model.audio")
_ALSO = {
    "qwen2_vl_text": "qwen2", "qwen2_5_vl_text": "qwen2", "qwen2_5_omni_text": "qwen2", "qwen3_vl_text": "qwen3",
}  # fmt: skip
"""Text models without a class of their own, and the type that computes the same for text (transformers 5.23)."""

_PROCESSORS = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")


def chosen(draft: Draft) -> Draft:
    """Return `draft` with the tensors, names and form that its options ask for. Raises UsageError, SourceError."""
    options = draft.options
    if options.text_only or options.experts or options.fill:
        refuse_quantized(draft)
    if options.only or options.drop:
        draft = _selected(draft)
    if options.rename:
        draft = _renamed(draft)
    if options.text_only:
        draft = _text_only(draft)
    if options.experts:
        draft = _with_experts(draft)
    return _filled(draft) if options.fill else draft


def _selected(draft: Draft) -> Draft:
    only, drop, names = draft.options.only, draft.options.drop, [tensor.name for tensor in draft.tensors]
    kept = (_matching("--only", only, names) or {*names}) - _matching("--drop", drop, names)
    if not kept:
        raise UsageError("No tensor is left for the copy.", "Drop fewer, or take more.")
    left = [tensor for tensor in draft.tensors if tensor.name in kept]
    gone = [name for name in names if name not in kept]
    kind = "only" if globs(only) else "drop"
    return _changed(draft, left, kind, f"without {count(len(gone), 'tensor')}", "The choice", gone)


def _renamed(draft: Draft) -> Draft:
    pairs, names = [], [tensor.name for tensor in draft.tensors]
    for text in globs(draft.options.rename):
        old, sign, new = text.partition("=")
        if not sign or not old:
            hint = "Write --rename OLD=NEW: how names begin."
            raise UsageError(f"{text} has no old name or no =.", hint, Remedy("by_hand"))
        if not any(name.startswith(old) for name in names):
            raise _nothing("--rename", old, names)
        pairs.append((old, new))
    renamed = []
    for tensor in draft.tensors:
        old, new = next((pair for pair in pairs if tensor.name.startswith(pair[0])), ("", ""))
        renamed.append(tensor._replace(name=new + tensor.name.removeprefix(old)))
    if not all(tensor.name for tensor in renamed):
        hint = "Give it a new one, behind the = of --rename."
        raise UsageError("A tensor would have no name.", hint, Remedy("by_hand"))
    times = sum(one.name != name for one, name in zip(renamed, names, strict=True))
    return _changed(draft, renamed, "rename", f"with {count(times, 'tensor')} renamed", "Renaming")


def _text_only(draft: Draft) -> Draft:
    config = as_object(parsed_json(draft.configs.get("", "")))
    outer = as_object(config.get("thinker_config")) or config
    text = as_object(outer.get("text_config")) or _at_the_top(outer)
    kind = text.get("model_type")
    if not text or any(component.folder for component in draft.components):
        message = "This is no model with a text model inside: its config.json has no text_config."
        raise UsageError(message, "Leave out --text-only.", Remedy("by_hand"))
    cls = causal_class(kind) or causal_class(_ALSO.get(str(kind)))
    names = [tensor.name for tensor in draft.tensors]
    found = next((pair for pair in _TEXTS if any(name.startswith(f"{pair[0]}layers.") for name in names)), None)
    if not cls or not found:
        reason = "no tensor has the name of a text model's layer"
        reason = reason if cls else f"transformers has no class for its text model alone ({kind})"
        message = f"The text model cannot be taken out: {reason}."
        raise SourceError(message, "Use --only and --rename by hand.", Remedy("by_hand"))
    starts = {found[0]: "model.", found[1]: "lm_head.", "mtp.": "mtp."}
    tensors, gone = list[Tensor](), list[str]()
    for tensor in draft.tensors:
        old = next((start for start in starts if tensor.name.startswith(start)), None)
        if old is None or tensor.name.startswith(_TOWERS):
            gone.append(tensor.name)
        else:
            tensors.append(tensor._replace(name=starts[old] + tensor.name.removeprefix(old)))
    document = _text_config(config, outer, text, cls, _ALSO.get(str(kind), kind))
    draft = replace(draft, configs={**draft.configs, "": json.dumps(document)}, reconfigured=draft.reconfigured | {""})
    draft = _changed(draft, tensors, "text_only", "as its text model alone", "Taking the text model out", gone)
    unfit = [file.path for file in draft.content.side_files if file.path.rpartition("/")[2] in _PROCESSORS]
    message = f"The copy is the text model alone, a {cls}. {count(len(gone), 'tensor')} of other parts are left out."
    findings = (*draft.findings, Finding("info", "text-only", message))
    return replace(draft, unfit=draft.unfit | {*unfit}, findings=findings)


def _at_the_top(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a text model that stand beside those of its tower, as Qwen2.5-VL was published. Or {}."""
    kind = f"{config.get('model_type')}_text"
    if kind not in _ALSO or "vision_config" not in config:
        return {}
    of_others = ("architectures", "vision_", "image_", "video_")
    return {**{key: value for key, value in config.items() if not key.startswith(of_others)}, "model_type": kind}


def _text_config(
    config: Mapping[str, Any], outer: Mapping[str, Any], text: Mapping[str, Any], cls: str, kind: Any
) -> dict[str, Any]:
    document = {"architectures": [cls], **text, "model_type": kind}
    for key in ("dtype", "torch_dtype", "transformers_version"):
        if key in config and key not in text:
            document[key] = config[key]
    # A model with several parts decides by its own rules whether its head is tied. The text model has one flag.
    if (is_tied := ties(config if "thinker_config" not in config else outer)) is not None:
        document["tie_word_embeddings"] = is_tied
    if kind != text.get("model_type"):
        for key in ("rope_scaling", "rope_parameters"):
            rope = document.get(key)
            if isinstance(rope, dict) and "mrope_section" in rope:
                rest = {name: value for name, value in rope.items() if not name.startswith("mrope") and name != "type"}
                document[key] = {**rest, "rope_type": "default"} if key == "rope_parameters" else None
    return document


def _with_experts(draft: Draft) -> Draft:
    want = draft.options.experts
    config = as_object(parsed_json(draft.configs.get("", "")))
    kinds = [str(level.get("model_type")) for level in (config, as_object(config.get("text_config")))]
    slots = list(slots_of(draft.tensors))
    units = units_of(slots)
    of_experts = {name: unit for name, unit in units.items() if unit.is_of_experts}
    if not of_experts or any("gate_up_proj_bias" in tensor.name for tensor in draft.tensors):
        known = "experts that are always in one tensor" if of_experts else "no experts that this version knows"
        raise SourceError(f"This model has {known}.", "Leave out --experts.", Remedy("by_hand"))
    if want == "separate" and not any(map(is_stored_apart, kinds)):
        message = f"Experts of a {kinds[0]} have no separate form that a library loads."
        raise SourceError(message, "Leave out --experts.", Remedy("by_hand"))
    made, done, short = list[Tensor](), set[str](), any(kind in SHORT_NAMES for kind in kinds)
    names = (".block_sparse_moe.", ".mlp.")  # of a block, before and since transformers 5
    if want == "separate":
        names = (names[1], names[0] if any(kind in OLD_BLOCKS for kind in kinds) else names[1])
    for slot in slots:
        of = slot.units[0].partition(".*.")[0]
        if not units[slot.units[0]].is_of_experts:
            made.append(slot.tensor._replace(name=slot.tensor.name.replace(*names)))
        elif of not in done:
            done.add(of)
            inside = {name.rpartition(".")[2]: unit for name, unit in of_experts.items() if name.startswith(f"{of}.*.")}
            made += _fused(of, inside) if want == "fused" else _separate(of.replace(*names), inside, short=short)
    how = "in one tensor a layer" if want == "fused" else "one by one"
    draft = _changed(draft, made, "experts", f"with experts {how}", "The form of the experts")
    ends = " to ".join(dict.fromkeys(which(done, key=natural_key) for which in (min, max)))
    told = f"the experts of {count(len(done), 'layer')}: {ends}"
    change = replace(draft.made[-1], details={"fused" if want == "fused" else "separated": told})
    return replace(draft, made=(*draft.made[:-1], change))


def _fused(of: str, inside: Mapping[str, Unit]) -> list[Tensor]:
    first = {"gate_up_proj": ("gate_proj", "up_proj")} if "gate_proj" in inside else {"up_proj": ("up_proj",)}
    return [
        Slot(inside[parts[0]].tensors[0]._replace(name=f"{of}.{name}"), parts).made_of([inside[part] for part in parts])
        for name, parts in {**first, "down_proj": ("down_proj",)}.items()
        if inside.keys() >= {*parts}
    ]


def _separate(of: str, inside: Mapping[str, Unit], *, short: bool) -> list[Tensor]:
    return [
        Slot(
            unit.tensors[0]._replace(name=f"{of}.{number}.{PARTS[part] if short else part}.weight"), (part,), number
        ).made_of([unit])
        for part, unit in inside.items()
        for number in range(unit.shape[0])
    ]


def _filled(draft: Draft) -> Draft:
    other = draft.content.the("fill")
    here, names = {tensor.name for tensor in draft.tensors}, [tensor.name for tensor in other.tensors]
    wanted = {name for one in globs(draft.options.fill) for name in names if fnmatchcase(name, one)} - here
    new = [tensor for tensor in other.tensors if tensor.name in wanted]
    if not new:
        _matching("--fill", draft.options.fill, names)
        message = f"This checkpoint has every tensor of {other.source.words} that you name."
        raise UsageError(message, "Leave out --fill and --from.", Remedy("by_hand"))
    if packed := [tensor.name for tensor in new if is_quantized(tensor)]:
        message = f"{packed[0]} of {other.source.words} is quantized, and this checkpoint is not."
        raise SourceError(message, "Make an ordinary copy of that repo first, and fill from there.")
    text, tensors = other.source.text, [*draft.tensors, *new]
    named = f"{count(len(new), 'tensor')}: {name_some([one.name for one in new])}"
    message = f"From {other.source.words} come {named}."
    change = Change(
        kind="fill",
        done=f"with {count(len(new), 'tensor')} from {text} added",
        called="Filling",
        how=f"{message} The licence of that repo holds for them.",
        then="",
        changed=len(new),
        of=len(tensors),
        by=other.source,
        evidence=text,
        details={"filled": named[:1900]},
    )
    config, form = (as_object(parsed_json(one.configs.get("", ""))) for one in (draft, other))
    rows = findings_on_rows({one.name: one.shape for one in new}, config, form, other.source.words)
    findings = (*draft.findings, Finding("info", "filled", message), *rows)
    return replace(_with_tensors(draft, tensors), made=(*draft.made, change), findings=findings)


def globs(text: str) -> list[str]:
    """Return the parts of a list with commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def _matching(flag: str, patterns: str, names: Sequence[str]) -> set[str]:
    found = {pattern: {name for name in names if fnmatchcase(name, pattern)} for pattern in globs(patterns)}
    if absent := next((pattern for pattern, matches in found.items() if not matches), None):
        raise _nothing(flag, absent, names)
    return set[str]().union(*found.values())


def _nothing(flag: str, pattern: str, names: Sequence[str]) -> UsageError:
    like = nearest(pattern, names[:2000]) or names[0]
    return UsageError(f"{flag} {pattern} matches no tensor.", f"A name is, for example, {like}.")


def _with_tensors(draft: Draft, tensors: Sequence[Tensor]) -> Draft:
    if double := next((name for name, times in Counter(one.name for one in tensors).items() if times > 1), None):
        message = f"Two tensors of the copy would be called {double}."
        raise UsageError(message, "Give one of them another name, or drop it.")
    return replace(draft, tensors=tuple(tensors))


def _changed(
    draft: Draft, tensors: Sequence[Tensor], kind: str, done: str, called: str, gone: Sequence[str] = ()
) -> Draft:
    """Return `draft` with other `tensors`, none of which has other numbers, and say what is `done` and `gone`."""
    details = {"dropped": f"{count(len(gone), 'tensor')}, {name_some(gone)}"} if gone else {}
    how = "The numbers of all tensors that are left are those of the source."
    change = Change(kind, done, called, how, then="", changed=0, of=len(tensors), details=details)
    return replace(_with_tensors(draft, tensors), made=(*draft.made, change))
