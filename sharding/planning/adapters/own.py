"""Plan what becomes of a LoRA that a training run holds: its alpha, and a copy that is only the adapter. Pure."""

import re
from collections.abc import Sequence
from dataclasses import replace

from sharding.checkpoint.adapter import ALPHA
from sharding.core.errors import Remedy, SourceError, UsageError
from sharding.core.made import Change
from sharding.core.text import as_object, count, json_file, name_some, parsed_json
from sharding.core.values import Component, Tensor
from sharding.formats.names import CONFIG_NAME
from sharding.formats.peft_config import ADAPTER_NAME, LoraConfig, parse_config
from sharding.planning.draft import Draft

_HALF = re.compile(r"\.lora_(embedding_)?([AB])(?:\.weight)?$")


def with_alpha(draft: Draft) -> Draft:
    """Return `draft` with the alpha of its options in the configuration of the run's own LoRA.

    Raises UsageError if there is no such LoRA, or its configuration states another alpha. Raises SourceError if nothing
    states it, or if there is no base to merge it into.
    """
    content, options = draft.content, draft.options
    adapter = content.of("adapter")
    if adapter is None or adapter.weight_files:
        if options.lora_alpha or options.save_as == "adapter":
            message = f"{content.source.words} is not a training run that holds a LoRA."
            raise UsageError(message, "Leave out --lora-alpha and --as.", Remedy("by_hand"))
        return draft
    config = as_object(parsed_json(adapter.configs[""]))
    stated, alpha = config.get(ALPHA), float(options.lora_alpha) if options.lora_alpha else None
    if alpha is not None and stated not in (None, alpha):
        message = f"The run says that lora_alpha is {stated}, not {options.lora_alpha}."
        raise UsageError(message, "Leave out --lora-alpha.", Remedy("by_hand"))
    if alpha is None and stated is None:
        message = "The run holds a LoRA, but nothing beside it says its lora_alpha. The result depends on it."
        hint = "Add --lora-alpha N with the value that it was trained with."
        raise SourceError(message, hint, Remedy("by_hand"))
    if not content.tensors and options.save_as != "adapter":
        message = "The run holds only a LoRA, without the weights that it was trained on."
        hint = "Save it with --as adapter. Then merge the result into its base with --adapter."
        raise SourceError(message, hint, Remedy("by_hand"))
    text = json_file({**config, ALPHA: alpha if stated is None else stated}).decode()
    others = tuple(replace(one, configs={"": text}) if one is adapter else one for one in content.others)
    return replace(draft, content=replace(content, others=others))


def _refuse_odd(config: LoraConfig, lora: Sequence[Tensor]) -> None:
    """Raise SourceError if PEFT could not load these matrices with their configuration, or they do nothing."""
    halves: dict[str, set[str]] = {"A": set(), "B": set()}
    for tensor in lora:
        if match := _HALF.search(tensor.name):
            halves[match[2]].add(tensor.name[: match.start()] + (match[1] or ""))
            if match[2] == "A" and not config.rank_pattern and tensor.shape[:1] != (config.r,):
                message = f"{tensor.name} is {list(tensor.shape)}, but {ADAPTER_NAME} says that its rank is {config.r}."
                raise SourceError(message, f"Put the adapter's own {ADAPTER_NAME} beside the run.")
    if odd := sorted(halves["A"] ^ halves["B"]):
        raise SourceError(f"Half of a pair of matrices is missing for {name_some(odd)}.", "Save the run again.")
    if not config.lora_alpha:
        message = f"{ADAPTER_NAME} says that alpha is 0, so the LoRA would change nothing."
        raise SourceError(message, f"Set lora_alpha in {ADAPTER_NAME} to the value that it was trained with.")


def as_adapter(draft: Draft) -> Draft:
    """Return `draft` with the run's own LoRA alone, as PEFT saves it."""
    content = draft.content
    adapter = content.the("adapter")
    document = as_object(parsed_json(adapter.configs[""]))
    if document.get("bias", "none") != "none":
        message = "The run has trained biases of its base too, and they are not among the weights of its LoRA."
        raise SourceError(message, "Merge the LoRA: leave out --as.", Remedy("by_hand"))
    _refuse_odd(parse_config(document), adapter.tensors)
    change = Change(
        kind="as",
        done="reduced to its LoRA",
        called="The choice",
        how=f"The copy is an adapter of PEFT, without {count(len(content.tensors), 'tensor')} of the base.",
        then="Load it with PEFT beside its base.",
        changed=0,
        of=len(adapter.tensors),
        peer="PEFT's save_pretrained",
    )
    return Draft(
        replace(content, others=()),
        draft.options,
        adapter.tensors,
        (Component("", "adapter_model", is_whole=True),),
        configs={},
        findings=draft.findings,
        made=(*draft.made, change),
        written={ADAPTER_NAME: adapter.configs[""].encode()},
        unfit=draft.unfit | {CONFIG_NAME, "generation_config.json"},
    )
