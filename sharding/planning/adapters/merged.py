"""Plan the merge of a LoRA adapter into a model. Pure."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any

from sharding.checkpoint.patterns import Patterns
from sharding.core.errors import Remedy, SourceError
from sharding.core.made import Change
from sharding.core.text import count, format_bytes, name_some, parsed_json
from sharding.core.values import Content, Finding, Tensor
from sharding.formats.peft_config import ADAPTER_NAME, ALL_LINEAR, named_base, parse_config
from sharding.formats.peft_keys import PREFIX, Kind, parts_of
from sharding.formats.quantization import method_of, quantization_of, quantized_in
from sharding.model_class.class_table import EMBEDDINGS, tied_names, ties
from sharding.model_class.experts import FUSED
from sharding.planning.adapters import merging, replaced
from sharding.planning.adapters.experts import IN_FUSED, Experts, refuse_some_experts
from sharding.planning.adapters.merging import WITH_PEFT, Merging, heads_last
from sharding.planning.dequantize import can_help
from sharding.planning.draft import Draft
from sharding.recipes.low_rank import LowRank, Update, is_whole

_OF_QUANTIZED = re.compile(
    r"(?:-unsloth)?(?:-bnb)?-(?:4|8)bits?(?![a-z0-9]).*$|-(?:gptq|awq|int4|int8|w4a16)(?![a-z0-9]).*$", re.IGNORECASE
)
"""How the names of quantized repos end."""

_BY_COLUMNS = ("gpt2", "openai-gpt", "imagegpt", "decision_transformer")
"""Types whose linear layers are transformers' Conv1D, which stores the transpose (transformers 5.23)."""
_CONV1D = ("c_attn", "c_proj", "c_fc", "q_attn")

Kinds = Mapping[Kind, Tensor]  # The tensors of an adapter for one module, by what they are.


def names_asked(checkpoint: Content) -> Content | None:
    """Return the model of which a merge needs the names in memory, or None. Raises SourceError if it is no LoRA."""
    if (adapter := checkpoint.of("adapter")) is None:
        return None
    parse_config(parsed_json(adapter.configs[""]))
    names = merging.ModuleNames(tensor.name for tensor in checkpoint.tensors)
    parts = parts_of([tensor.name for tensor in adapter.tensors])
    wanted = [part.of if part.kind == "whole" else f"{part.of}.weight" for part in parts if part.kind != "ignored"]
    config = parsed_json(checkpoint.configs.get("", ""))
    tied = tied_names(config)[:1] if ties(config) else ()
    is_known = all(names.find(name) or ".experts." in name or name in tied for name in wanted)
    return None if is_known else replaced.as_classifier(checkpoint)


def merged(draft: Draft, known: Mapping[str, str]) -> Draft:
    """Return `draft` with the weights that PEFT 0.21 saves after `merge_and_unload`.

    Each tensor keeps its dtype. The adapter's numbers count as float32, as PEFT loads them. `known` are the stored
    names of names in memory, if both differ by more than a prefix.

    Raises SourceError if the adapter is no LoRA, was made for another base, or has weights that PEFT would ignore.
    """
    _refuse_base(draft)
    with Patterns(ADAPTER_NAME) as patterns:
        work = Merging(draft, known, patterns)
        replaced.refuse_unknown_tie(work)
        replaced.replace_whole(work)
        _add_updates(work)
        replaced.replace_rows(work)
        replaced.refuse_uneven_vocabulary(work)
        return _result(work)


def _refuse_base(draft: Draft) -> None:
    checkpoint = draft.content
    if checkpoint.library not in ("transformers", "sentence-transformers") or "" not in checkpoint.configs:
        message = "An adapter can be merged only into a model of transformers with its config.json."
        raise SourceError(message, "Name the base model that the adapter was trained on.")
    stated = quantization_of(draft.configs[""])
    if stated is not None or quantized_in(draft.tensors):
        how = f" with {method_of(stated)}" if stated is not None else ""
        hint, remedy = f"Merge it into the repo that the base was quantized from{_origin(checkpoint)}.", None
        if can_help(stated, draft.tensors):
            hint = "Add --dequantize. The adapter is then merged into ordinary weights."
            remedy = Remedy("dequantize")
        message = f"The base is quantized{how}. An adapter cannot be added to quantized numbers."
        raise SourceError(message, hint, remedy)


def _origin(checkpoint: Content) -> str:
    """Return which repo the base was quantized from, as far as the adapter, the base's card and its name tell."""
    base, named = checkpoint.source.repo_id, named_base(parsed_json(checkpoint.the("adapter").configs[""]))
    told = (name for name in (named, checkpoint.named_base) if name != base and not _OF_QUANTIZED.search(name))
    origin = next(filter(None, told), _OF_QUANTIZED.sub("", base))
    return f", {origin}" if "/" in origin and origin != base else ". Its card may name it"


def _add_updates(work: Merging) -> None:
    modules: dict[str, dict[Kind, Tensor]] = {}
    for part in work.parts:
        if part.kind not in ("whole", "ignored", "tokens"):
            modules.setdefault(part.of, {})[part.kind] = work.given[part.name]
    ties = work.config.ensure_weight_tying and work.is_tied
    if ties and any(work.weight_of(module) == work.embedding.name for module in modules):
        message = f"ensure_weight_tying is set in {ADAPTER_NAME}, for an update of tied embeddings. PEFT adds it once "
        raise SourceError(f"{message}to some models and twice to others.", WITH_PEFT)
    experts = Experts(work)
    for module in sorted(modules, key=heads_last):
        _add(work, experts, module, modules[module])
    doras = [tensor for tensor in work.tensors.values() if is_whole(tensor.recipe)]
    if doras:
        names = name_some([tensor.name for tensor in doras])
        message = f"A DoRA needs the length of each column, so these tensors are in memory as a whole: {names}."
        hint = f"That takes about {format_bytes(16 * max(tensor.parameters for tensor in doras))} of memory for each."
        work.findings.append(Finding("info", "dora-whole", message, hint))
    if work.type in FUSED:
        refuse_some_experts(modules, work.model)
    for name, recipe in experts.recipes():
        work.tensors[name] = work.tensors[name]._replace(recipe=recipe)
        work.updated[name] = name


def _add(work: Merging, experts: Experts, module: str, kinds: Kinds) -> None:
    name, first = work.weight_of(module), next(iter(kinds.values()))
    if "magnitude" in kinds and not work.config.use_dora:
        raise work.untargeted(kinds["magnitude"].name, "use_dora is not set")
    if name is None and experts.take(module, kinds):
        _refuse_pattern(work, module)
        return
    if name is None:
        raise work.other_base(f"{module}.weight", first.name)
    is_parameter = work.config.targets_parameter(f"{module}.weight")
    if not (is_parameter or work.config.targets(module, work.match)):
        raise work.untargeted(first.name)
    _add_to_weight(work, module, work.tensors[name], kinds, rounds_twice=is_parameter)
    if bias := kinds.get("b_bias"):
        _add_to_bias(work, module, bias, kinds["a"])


def _add_to_weight(work: Merging, module: str, old: Tensor, kinds: Kinds, *, rounds_twice: bool) -> None:
    is_embedding = "embedding_a" in kinds
    a, b = (kinds["embedding_a"], kinds["embedding_b"]) if is_embedding else (kinds["a"], kinds["b"])
    rounds_twice = rounds_twice or is_embedding or work.config.rounds_twice
    if work.type in FUSED and not is_embedding:
        # transformers 5 holds the router of these types in a module of its own.
        rounds_twice = rounds_twice or module.endswith(".gate") or bool(IN_FUSED.search(module))
        _refuse_pattern(work, module)
    rank, scale = work.rank_and_scale(module, a)
    is_pair = len(a.shape) == len(b.shape) > 1 and b.shape[1:2] == (rank,) and prod(b.shape[2:]) == 1
    fits = is_pair and old.shape == (b.shape[0], *a.shape[1:]) and not is_embedding
    fits_swapped = is_pair and old.shape == (*a.shape[1:], b.shape[0]) and len(b.shape) == 2
    is_conv1d = not work.types.isdisjoint(_BY_COLUMNS) and module.rpartition(".")[2] in _CONV1D
    transposed = fits_swapped and (is_conv1d or not fits)
    if not (fits or transposed):
        raise work.other_shape(old, a, b)
    merging.refuse_unusable(a, b)
    update = Update(a.recipe, b.recipe, a.dtype, b.dtype, rank, scale, 0, old.shape[0], transposed=transposed)
    other = work.updated.setdefault(old.name, module)
    # Embeddings and a head that is tied to them are one tensor, and both may change it.
    if other != module and not (work.is_tied and heads_last(other) != heads_last(module)):
        message = f"The adapter has two updates of {old.name}: for {other} and for {module}."
        raise SourceError(message, "Keep only one of them.")
    dora = _dora(work, module, old, update, kinds) if work.config.use_dora else None
    work.tensors[old.name] = old._replace(recipe=dora or work.low_rank(old, (update,), rounds_twice=rounds_twice))


def _add_to_bias(work: Merging, module: str, bias: Tensor, a: Tensor) -> None:
    if (name := work.names.find(f"{module}.bias")) is None:
        raise work.other_base(f"{module}.bias", bias.name)
    old, (_, scale) = work.tensors[name], work.rank_and_scale(module, a)
    if old.shape != bias.shape or len(old.shape) != 1:
        raise work.other_shape(old, bias)
    update = Update(None, bias.recipe, "", bias.dtype, 1, scale, 0, old.shape[0])
    work.tensors[name] = old._replace(recipe=work.low_rank(old, (update,), rounds_twice=False))


def _dora(work: Merging, module: str, old: Tensor, update: Update, kinds: Kinds) -> LowRank:
    if not (magnitude := kinds.get("magnitude")):
        message = f"use_dora is set in {ADAPTER_NAME}, but {PREFIX}{module}.lora_magnitude_vector is missing."
        raise SourceError(message, merging.SAVE_AGAIN)
    if prod(magnitude.shape) != old.shape[1 if update.transposed else 0]:
        raise work.other_shape(old, magnitude)
    merging.refuse_odd(old, magnitude)
    of = old.recipe, old.dtype, old.shape
    return LowRank(*of, (update,), magnitude=magnitude.recipe, magnitude_dtype=magnitude.dtype)


def _refuse_pattern(work: Merging, module: str) -> None:
    """Raise SourceError if `module` is one of the experts and has a rank or an alpha of its own."""
    if not IN_FUSED.search(module):
        return
    config, match = work.config, work.match
    usual = config.r, config.scale_of("", config.r, match)
    if (config.rank_of(module, match), config.scale_of(module, config.r, match)) != usual:
        message = f"rank_pattern or alpha_pattern in {ADAPTER_NAME} matches {module}. PEFT's merge is then unclear."
        raise SourceError(message, WITH_PEFT)


def _result(work: Merging) -> Draft:
    draft, file = work.draft, next(iter(work.adapter.weight_files), None)
    changed = sum(work.before.get(name) != tensor for name, tensor in work.tensors.items())
    tensors, source = tuple(work.tensors.values()), work.adapter.source
    done = f"with the adapter {'' if source.is_pinned else 'in '}{source.text} merged"
    the_file = f"The adapter's file has the SHA-256 `{file.sha256}`. " if file else ""
    merge = Change(
        kind="adapter",
        done=done if file else "with its LoRA merged",
        called="The adapter",
        how="The changed ones are what PEFT's `merge_and_unload` computes. Another processor adds up in another order, "
        f"so its last bits may differ. {the_file}The adapter's own licence holds for this copy too.",
        then="It needs no PEFT and no adapter.",
        changed=changed,
        of=len(tensors),
        by=source if file else None,
        is_exact=False,
        relation="finetune",
        evidence=f"{file.path} {file.sha256}" if file else "",
        peer="PEFT's merge_and_unload, then save_pretrained",
    )
    if work.settings:
        configs = {**draft.configs, "": json.dumps(_with_settings(work.model, work.settings))}
        draft = replace(draft, configs=configs, reconfigured=draft.reconfigured | {""})
    findings = (*draft.findings, *work.findings, *_findings(work, merge))
    return replace(draft, tensors=tensors, findings=findings, made=(*draft.made, merge))


def _findings(work: Merging, merge: Change) -> Iterator[Finding]:
    source, adapter, named = work.checkpoint.source, work.adapter.source, work.named_base
    at = f"adapter {'' if adapter.is_pinned else 'in '}{adapter.text}"
    at = at if work.adapter.weight_files else "run's own LoRA"
    message = f"The {at} is merged into {merge.changed:,} of {count(merge.of, 'tensor')}."
    message += f" It names {named} as its base." if named else ""
    is_other = source.is_pinned and "/" in named and named != source.repo_id
    message += f" It is merged into {source.repo_id}." if is_other else ""
    yield Finding("warning" if is_other else "info", "merge", message)
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
        is_layer = is_layer and (not work.names.is_of_text or name.startswith(merging.TEXT))
        if is_layer and name not in work.updated and work.config.targets(work.names.in_memory(module), work.match):
            idle.append(module)
    return idle


def _with_settings(document: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with `settings`, each where transformers 5.23 reads it, top or text part."""
    after = {**document, **settings}
    parts = [key for key in ("text_config", "decoder") if isinstance(document.get(key), dict)]
    of_words = {name: settings[name] for name in ("vocab_size", "tie_word_embeddings") if name in settings}
    after |= {key: {**document[key], **of_words} for key in parts}
    if parts and "vocab_size" not in document:
        after.pop("vocab_size", None)
    return after
