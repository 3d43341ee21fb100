"""Plan the merge of a LoRA adapter into a model. Pure."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from sharding.checkpoint.patterns import Patterns
from sharding.core.errors import Remedy, SourceError
from sharding.core.text import count, name_some, parsed_json
from sharding.core.values import Checkpoint, Finding, Merge, Plan, ShardRecord
from sharding.formats.peft_config import ADAPTER_NAME, ALL_LINEAR, named_base, parse_config
from sharding.formats.peft_keys import parts_of
from sharding.formats.quantization import method_of, quantization_of, quantized_in
from sharding.formats.torch_checkpoint import EMBEDDINGS
from sharding.model_class.class_table import tied_names, ties
from sharding.planning.adapters import replaced
from sharding.planning.adapters.experts import IN_FUSED
from sharding.planning.adapters.merging import TEXT, Merging, ModuleNames
from sharding.planning.adapters.updates import add_updates
from sharding.planning.dequantize import without_left_over
from sharding.planning.schemes import can_help

_OF_QUANTIZED = re.compile(
    r"(?:-unsloth)?(?:-bnb)?-(?:4|8)bits?(?![a-z0-9]).*$|-(?:gptq|awq|int4|int8|w4a16)(?![a-z0-9]).*$", re.IGNORECASE
)
"""How the names of quantized repos end."""


def unknown_names(checkpoint: Checkpoint) -> list[str]:
    """Return the names of the adapter's weights in memory for which the model has no tensor of that or a like name.

    Raises SourceError if the configuration or the names of the adapter are not those of a LoRA of PEFT.
    """
    assert checkpoint.adapter is not None
    parse_config(parsed_json(checkpoint.adapter.config))
    names = ModuleNames(tensor.name for tensor in checkpoint.tensors)
    parts = parts_of([tensor.name for tensor in checkpoint.adapter.tensors])
    wanted = [part.of if part.kind == "whole" else f"{part.of}.weight" for part in parts if part.kind != "ignored"]
    config = parsed_json(checkpoint.configs.get("", ""))
    tied = tied_names(config)[:1] if ties(config) else ()
    return [name for name in wanted if names.find(name) is None and ".experts." not in name and name not in tied]


def merged(checkpoint: Checkpoint, *, may_overflow: bool = False, known: Mapping[str, str] | None = None) -> Checkpoint:
    """Return `checkpoint` with the weights that PEFT 0.21 saves after `merge_and_unload`.

    Each tensor keeps its dtype. The adapter's numbers count as float32, as PEFT loads them. `known` are the stored
    names of names in memory, if both differ by more than a prefix. With `may_overflow`, a sum may become infinite.

    Raises SourceError if the adapter is no LoRA, was made for another base, or has weights that PEFT would ignore. The
    result would then not be the model that was trained.
    """
    checkpoint = without_left_over(checkpoint)
    _refuse_base(checkpoint)
    with Patterns(ADAPTER_NAME) as patterns:
        work = Merging(checkpoint, known or {}, patterns, may_overflow=may_overflow)
        replaced.refuse_unknown_tie(work)
        replaced.replace_whole(work)
        add_updates(work)
        replaced.replace_rows(work)
        replaced.refuse_uneven_vocabulary(work)
        return _result(work)


def changed_names(plan: Plan) -> frozenset[str]:
    """Return the tensors of a plan that the adapter changes, adds or replaces."""
    if plan.merged is None:
        return frozenset()
    adapter = len(plan.sources) - 1
    reads = ((tensor.name, {number for number, _ in tensor.recipe.files()}) for tensor in plan.tensors)
    return frozenset(name for name, numbers in reads if adapter in numbers)


def counted(plan: Plan, records: Mapping[str, ShardRecord]) -> Plan:
    """Return a plan of a merge with the number of tensors that it really changed, by the `records` of its shards.

    It warns of tensors that nobody can judge on another machine.
    """
    if unsure := sorted(name for record in records.values() for name in record.unsure):
        tensors = f"{count(len(unsure), 'merged tensor')} {'has' if len(unsure) == 1 else 'have'}"
        message = f"{tensors} many numbers that depend on the order of summation: {name_some(unsure)}."
        hint = "Another machine may get other numbers there, and `verify` cannot tell whether these are right."
        plan = replace(plan, findings=(*plan.findings, Finding("warning", "cannot-be-judged", message, hint)))
    same = changed_names(plan) & {name for record in records.values() for name in record.unchanged}
    if plan.merged is None or not same:
        return plan
    merge = replace(plan.merged, changed=max(0, plan.merged.changed - len(same)))
    message = f"{merge.words} changes no number: what it adds is zero, or is lost in the rounding."
    hint = "Check the training, and when it saved the adapter."
    none = Finding("warning", "no-change", message[0].upper() + message[1:], hint)
    return replace(plan, merged=merge, findings=(*plan.findings, *([] if merge.changed else [none])))


def _refuse_base(checkpoint: Checkpoint) -> None:
    if checkpoint.library not in ("transformers", "sentence-transformers") or "" not in checkpoint.configs:
        message = "An adapter can be merged only into a model of transformers with its config.json."
        raise SourceError(message, "Name the base model that the adapter was trained on.")
    stated = quantization_of(checkpoint.configs[""])
    if stated is not None or quantized_in(checkpoint.tensors):
        how = f" with {method_of(stated)}" if stated is not None else ""
        hint, remedy = f"Merge it into the repo that the base was quantized from{_origin(checkpoint)}.", None
        if stated is not None and can_help(stated):
            hint = "Make an ordinary copy with --dequantize first, and merge the adapter into that copy."
            remedy = Remedy("dequantize")
        message = f"The base is quantized{how}. An adapter cannot be added to quantized numbers."
        raise SourceError(message, hint, remedy)


def _origin(checkpoint: Checkpoint) -> str:
    """Return which repo the base was quantized from, as far as the adapter, the base's card and its name tell."""
    base, adapter = checkpoint.source.repo_id, checkpoint.adapter
    named = named_base(parsed_json(adapter.config)) if adapter else ""
    told = (name for name in (named, checkpoint.card_base) if name not in ("", base) and not _OF_QUANTIZED.search(name))
    origin = next(told, _OF_QUANTIZED.sub("", base))
    return f", {origin}" if "/" in origin and origin != base else ". Its card may name it"


def _result(work: Merging) -> Checkpoint:
    checkpoint, file = work.checkpoint, work.adapter.file
    changed = sum(work.before.get(name) != tensor for name, tensor in work.tensors.items())
    tensors, source = tuple(work.tensors.values()), work.adapter.source
    merge = Merge(source, file.path, file.sha256 or "", changed, len(tensors), work.named_base)
    if work.settings:
        configs = {**checkpoint.configs, "": json.dumps(_with_settings(work.model, work.settings))}
        checkpoint = replace(checkpoint, configs=configs, reconfigured=checkpoint.reconfigured | {""})
    components = tuple(
        component if component.folder else replace(component, total_parameters=None)
        for component in checkpoint.components
    )
    findings = (*checkpoint.findings, *work.findings, *_findings(work, merge))
    return replace(checkpoint, tensors=tensors, components=components, findings=findings, merged=merge)


def _findings(work: Merging, merge: Merge) -> Iterator[Finding]:
    message = f"{merge.words} is merged into {merge.changed:,} of {count(merge.tensors, 'tensor')}."
    message += f" It names {merge.named_base} as its base." if merge.named_base else ""
    source = work.checkpoint.source
    is_other = source.kind == "hub" and "/" in merge.named_base and merge.named_base != source.repo_id
    message += f" It is merged into {source.repo_id}." if is_other else ""
    yield Finding("warning" if is_other else "info", "merge", message[0].upper() + message[1:])
    if unknown := work.config.unknown:
        message = f"{ADAPTER_NAME} has {name_some(unknown)}, which this tool does not know. They may change the result."
        hint = "Ask the program that saved the adapter, or compare the result with its own merge."
        yield Finding("warning", "unknown-settings", message, hint)
    if work.names.prefixed:
        message = f"{work.names.prefixed} of the adapter has another prefix in the base. PEFT merges it only into a "
        message += "class with names like the adapter's."
        yield Finding("warning", "other-prefix", message, "Check that the adapter was trained on this model.")
    if idle := _idle_targets(work):
        message = f"The adapter has no weights for {count(len(idle), 'module')} that {ADAPTER_NAME} targets: "
        message += f"{name_some(idle)}. They do not change."
        hint = "This is normal if these modules were not trained. Otherwise the adapter is incomplete."
        yield Finding("warning", "targets-without-weights", message, hint)
    if work.is_tied and work.embedding.name in work.updated and work.head not in work.tensors:
        message = f"{work.embedding.name} is the output head too. PEFT adds an update of one of them to both."
        hint = "The merged model then computes other numbers than the adapter beside its base."
        yield Finding("warning", "tied-update", message, hint)
    if "vocab_size" in work.settings:
        message = f"The merged model has {work.settings['vocab_size']} words, but the tokenizer is the base's."
        hint = "If the adapter's repo has a tokenizer, copy its files into the result."
        yield Finding("warning", "new-vocabulary", message, hint)


def _idle_targets(work: Merging) -> list[str]:
    """Return the modules, by their stored names, that the configuration targets and the adapter has no weights for."""
    idle = []
    for name, tensor in work.before.items() if work.updated else ():
        module = name.removesuffix(".weight")
        is_layer = module != name and len(tensor.shape) > 1 and not IN_FUSED.search(name)
        is_layer = is_layer and not (work.config.target_modules == ALL_LINEAR and EMBEDDINGS.search(name))
        # Of a model with more parts, the adapter was trained on the language model alone.
        is_layer = is_layer and (not work.names.is_of_text or name.startswith(TEXT))
        if is_layer and name not in work.updated and work.config.targets(work.names.in_memory(module), work.match):
            idle.append(module)
    return idle


def _with_settings(document: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with `settings`, each where transformers 5.23 reads it.

    A model with several parts has its vocabulary in its text part. Whether it is tied may be read from both.
    """
    after = {**document, **settings}
    parts = [key for key in ("text_config", "decoder") if isinstance(document.get(key), dict)]
    of_words = {name: settings[name] for name in ("vocab_size", "tie_word_embeddings") if name in settings}
    after |= {key: {**document[key], **of_words} for key in parts}
    if parts and "vocab_size" not in document:
        after.pop("vocab_size", None)
    return after
