"""Give a model the head of the classifier that an adapter was trained as. Pure."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sharding.core.errors import SourceError
from sharding.core.text import name_some, parsed_json
from sharding.core.values import Checkpoint, Tensor
from sharding.formats.peft_keys import parts_of
from sharding.model_class.class_table import known_class
from sharding.planning.adapters.merging import WITH_PEFT, Merging
from sharding.planning.adapters.module_names import ModuleNames

_TASKS = {
    "SEQ_CLS": "ForSequenceClassification",
    "TOKEN_CLS": "ForTokenClassification",
    "QUESTION_ANS": "ForQuestionAnswering",
}
"""The ends of the classes that transformers has for these tasks of an adapter."""
_OF_IMAGES = "ForImageClassification"
"""PEFT has no task for it."""
_OTHER_ENDS = re.compile(r"(?:For[A-Z]\w*|LMHeadModel|Model)$")
_OF_LABELS = re.compile(r"(?:^|\.)(?:score|classifier|out_proj|qa_outputs)\.weight$")
_SCORES = ("score.weight", "score.bias")


def classifier_of(checkpoint: Checkpoint) -> str:
    """Return the class that the adapter was trained as, if it brings the head that makes the model a classifier."""
    config = parsed_json(checkpoint.configs.get("", ""))
    named = config.get("architectures") if isinstance(config, dict) else None
    if checkpoint.adapter is None or not isinstance(named, list) or not named:
        return ""
    stored = ModuleNames(tensor.name for tensor in checkpoint.tensors)
    parts = parts_of([tensor.name for tensor in checkpoint.adapter.tensors])
    new = [part.of for part in parts if part.kind == "whole" and stored.find(part.of) is None]
    said = parsed_json(checkpoint.adapter.config)
    task = said.get("task_type") if isinstance(said, dict) else None
    end = _TASKS.get(str(task), "" if task else _OF_IMAGES)
    name = _OTHER_ENDS.sub("", str(named[0])) + end
    known = known_class({**config, "architectures": [name]}) if end and any(map(_OF_LABELS.search, new)) else None
    return name if known and known.name == name != named[0] else ""


def as_classifier(checkpoint: Checkpoint) -> Checkpoint:
    """Return `checkpoint` with the class that its adapter was trained as in its config.json."""
    if not (name := classifier_of(checkpoint)):
        return checkpoint
    config = json.dumps({**parsed_json(checkpoint.configs[""]), "architectures": [name]})
    return replace(checkpoint, configs={**checkpoint.configs, "": config})


def make_classifier(work: Merging, whole: Mapping[str, Tensor]) -> None:
    """Turn the model into the classifier that the adapter was trained as, with places for the tensors of its head.

    `work.known` has the names of all weights of that class. If nobody knows them, it is {}, and only a causal model
    with a `score` becomes a classifier. Raises SourceError if neither the base nor the adapter has one of its weights.
    """
    if not (name := classifier_of(work.checkpoint)):
        return
    if work.known:
        found = {stored: work.names.find(stored) for stored in work.known.values()}
        absent = sorted(stored for stored, old in found.items() if old is None and stored not in whole)
        if absent:
            message = f"The adapter makes the base a {name}, which also has {name_some(absent)}. Neither holds that."
            raise SourceError(message, WITH_PEFT)
        tensors = {stored: work.tensors[old]._replace(name=stored) for stored, old in found.items() if old}
        new = [stored for stored, old in found.items() if old is None]
    elif str(work.model["architectures"][0]).endswith("ForCausalLM") and work.embeddings:
        tensors = {stored: tensor for stored, tensor in work.tensors.items() if stored not in work.heads}
        new = [stored for stored in _SCORES if stored in whole]
    else:
        return
    like = next(iter(tensors.values()))
    work.tensors = tensors | {stored: like._replace(name=stored, shape=whole[stored].shape) for stored in new}
    work.before = {stored: tensor for stored, tensor in work.tensors.items() if stored not in new}
    work.names = ModuleNames(work.tensors, work.known)
    labels = _labels(whole[stored] for stored in new if _OF_LABELS.search(stored))
    work.settings |= {"architectures": [name], **labels}


def _labels(heads: Any) -> dict[str, Any]:
    """Return what config.json says of the labels. The last of `heads` has a row for each."""
    last = next(reversed(list(heads)), None)
    if last is None:
        return {}
    labels = {number: f"LABEL_{number}" for number in range(last.shape[0])}
    return {"id2label": labels, "label2id": {label: number for number, label in labels.items()}}
