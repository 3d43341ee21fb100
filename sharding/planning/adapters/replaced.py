"""Put whole tensors and rows of an adapter in place of those of its base, and the head of a classifier. Pure."""

import json
import re
from collections.abc import Container, Mapping
from dataclasses import replace

from sharding.core.errors import SourceError
from sharding.core.text import as_object, name_some, parsed_json
from sharding.core.values import Content, Tensor
from sharding.formats.peft_config import ADAPTER_NAME
from sharding.formats.peft_keys import PREFIX, parts_of
from sharding.model_class.class_table import EMBEDDINGS, HEADS, always_ties, known_class
from sharding.planning.adapters.merging import OTHER_BASE, SAVE_AGAIN, WITH_PEFT, Merging, ModuleNames, heads_last
from sharding.recipes.laid import Rows


def replace_whole(work: Merging) -> None:
    """Put the tensors that the adapter has whole in place of the base's. One of two tied ones unties both."""
    parts = sorted(work.parts, key=lambda part: heads_last(part.of))
    whole = {part.of: work.given[part.name] for part in parts if part.kind == "whole"}
    _refuse_ignored(work)
    make_classifier(work, whole)
    head = work.tied_head
    unties = head is not None and not work.config.ensure_weight_tying
    unties = unties and any(work.is_saved(name.removesuffix(".weight")) for name in (work.head, work.embedding.name))
    if unties:
        # A copy of one tied tensor leaves others, which transformers would then load at random.
        is_head = not work.is_saved(work.embedding.name.removesuffix(".weight"))
        if work.ties_more and not (is_head and always_ties(work.model)):
            raise _more_ties(work)
        work.tensors[work.head] = work.embedding._replace(name=work.head)
        work.settings["tie_word_embeddings"] = False
    replaced = set[str]()
    for of, tensor in whole.items():
        name = work.names.find(of)
        if name is None and of == head:
            name = work.head if unties else work.embedding.name
        if name is None and of in work.ties_more:
            raise _more_ties(work)
        if name is None:
            raise work.other_base(of, tensor.name)
        work.tensors[name] = _in_place_of(work, work.tensors[name], tensor)
        replaced.add(name)
    _refuse_missing(work, replaced)


def replace_rows(work: Merging) -> None:
    """Put the rows of trained tokens in their places in the embeddings."""
    tokens = [part for part in work.parts if part.kind == "tokens"]
    if work.config.trainable_token_indices and not tokens:
        message = f"{ADAPTER_NAME} has trainable_token_indices, but the adapter has no trainable_tokens_delta."
        raise SourceError(message, SAVE_AGAIN)
    for part in sorted(tokens, key=lambda part: heads_last(part.of)):
        new, name = work.given[part.name], work.weight_of(part.of)
        if name is None:
            raise work.other_base(f"{part.of}.weight", part.name)
        old, places = work.tensors[name], work.config.tokens_of(part.of)
        if not places:
            raise work.untargeted(part.name, "trainable_token_indices does not name it")
        if new.shape != (len(places), *old.shape[1:]) or len(old.shape) != 2:
            raise work.other_shape(old, new)
        if len(set(places)) < len(places) or not all(0 <= place < old.shape[0] for place in places):
            message = f"trainable_token_indices in {ADAPTER_NAME} does not fit {name}, which has {old.shape[0]} rows."
            raise SourceError(message, OTHER_BASE)
        recipe = Rows(old.recipe, work.in_dtype_of(old, new), places, old.bytes // old.shape[0])
        work.tensors[name] = old._replace(recipe=recipe)


def refuse_uneven_vocabulary(work: Merging) -> None:
    """Raise SourceError if embeddings and head have another number of words after the merge."""
    if "vocab_size" not in work.settings or work.head not in work.tensors or not work.embeddings:
        return
    head, embedding = work.tensors[work.head], work.embedding
    if head.shape[0] != embedding.shape[0]:
        message = f"With this adapter, {embedding.name} has {embedding.shape[0]} rows, but {work.head} has "
        hint = "Save the adapter with both its embeddings and its output head."
        raise SourceError(f"{message}{head.shape[0]}.", hint)


def refuse_unknown_tie(work: Merging) -> None:
    """Raise SourceError if the result depends on whether head and embeddings are tied, and this is not known."""
    if work.is_tied is not None:
        return
    modules = {part.of.removesuffix(".weight") for part in work.parts if part.kind != "ignored"}
    of_words = {each for each in modules if HEADS.search(f"{each}.weight") or EMBEDDINGS.search(f"{each}.weight")}
    head, stored = work.head.removesuffix(".weight"), work.names.find(work.head)
    copies = head in modules or any(EMBEDDINGS.search(f"{each}.weight") for each in filter(work.is_saved, modules))
    if of_words if stored and work.checkpoint.head_is_copy else copies and not stored:
        message = f"The adapter changes {name_some(sorted(of_words or {head}))}. It is not known whether {work.type} "
        message += "ties its output head to its embeddings, so the result is not known either."
        raise SourceError(message, "Merge this adapter with PEFT and check the result.")


def _more_ties(work: Merging) -> SourceError:
    message = f"The adapter has a copy of its own of embeddings or of the output head, but {work.type} ties "
    message += f"{name_some(work.ties_more)} with them too. PEFT's own merge then loads without these weights."
    return SourceError(message, "Load the base and the adapter with PEFT, or train again without this module in it.")


def _refuse_ignored(work: Merging) -> None:
    """Raise SourceError for a whole tensor whose name PEFT would not find, because it wraps modules with updates."""
    updated = {part.of for part in work.parts if part.kind in ("a", "embedding_a", "tokens")}
    for part in work.parts:
        module, _, leaf = part.of.rpartition(".")
        if part.kind == "whole" and leaf in ("weight", "bias") and part.is_wrapped != (module in updated):
            wanted = f"{PREFIX}{module}{'' if part.is_wrapped else '.base_layer'}.{leaf}"
            message = f"The adapter has {part.name}. PEFT would look for {wanted} and ignore it."
            raise SourceError(message, SAVE_AGAIN)


def _refuse_missing(work: Merging, replaced: Container[str]) -> None:
    """Raise SourceError if the adapter was trained with a copy of a module and does not hold all of it."""
    for name in work.before if work.config.modules_to_save else ():
        module = name.rpartition(".")[0]
        if name not in replaced and module.endswith(work.config.modules_to_save):
            message = f"modules_to_save in {ADAPTER_NAME} names {module}, but {PREFIX}{name} is missing."
            raise SourceError(message, SAVE_AGAIN)


def _in_place_of(work: Merging, old: Tensor, new: Tensor) -> Tensor:
    if old.shape != new.shape:
        is_of_words = EMBEDDINGS.search(old.name) or HEADS.search(old.name)
        if not is_of_words or old.shape[1:] != new.shape[1:] or not new.shape[0]:
            raise work.other_shape(old, new)
        work.settings["vocab_size"] = new.shape[0]
    return old._replace(shape=new.shape, recipe=work.in_dtype_of(old, new))


_TASKS = {"SEQ_CLS": "SequenceClassification", "TOKEN_CLS": "TokenClassification", "QUESTION_ANS": "QuestionAnswering"}
"""What the classes of transformers are for, by the task of an adapter. PEFT has none for classes of images."""
_OTHER_ENDS = re.compile(r"(?:For[A-Z]\w*|LMHeadModel|Model)$")
_OF_LABELS = re.compile(r"(?:^|\.)(?:score|classifier|out_proj|qa_outputs)\.weight$")


def classifier_of(checkpoint: Content) -> str:
    """Return the class that the adapter was trained as, if it brings the head that makes the model a classifier."""
    config, adapter = as_object(parsed_json(checkpoint.configs.get("", ""))), checkpoint.of("adapter")
    named = config.get("architectures")
    if adapter is None or not isinstance(named, list) or not named:
        return ""
    stored = ModuleNames(tensor.name for tensor in checkpoint.tensors)
    parts = parts_of([tensor.name for tensor in adapter.tensors])
    new = [part.of for part in parts if part.kind == "whole" and stored.find(part.of) is None]
    task = as_object(parsed_json(adapter.configs[""])).get("task_type")
    use = _TASKS.get(str(task), "" if task else "ImageClassification")
    name = f"{_OTHER_ENDS.sub('', str(named[0]))}For{use}"
    known = known_class({**config, "architectures": [name]}) if use and any(map(_OF_LABELS.search, new)) else None
    return name if known and known.name == name != named[0] else ""


def as_classifier(checkpoint: Content) -> Content:
    """Return `checkpoint` with the class that its adapter was trained as in its config.json."""
    if not (name := classifier_of(checkpoint)):
        return checkpoint
    config = json.dumps({**parsed_json(checkpoint.configs[""]), "architectures": [name]})
    return replace(checkpoint, configs={**checkpoint.configs, "": config})


def make_classifier(work: Merging, whole: Mapping[str, Tensor]) -> None:
    """Turn the model into the classifier that the adapter was trained as. Raises SourceError if weights are missing."""
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
        new = [stored for stored in ("score.weight", "score.bias") if stored in whole]
    else:
        return
    like = next(iter(tensors.values()))
    work.tensors = tensors | {stored: like._replace(name=stored, shape=whole[stored].shape) for stored in new}
    work.before = {stored: tensor for stored, tensor in work.tensors.items() if stored not in new}
    work.names = ModuleNames(work.tensors, work.known)
    work.settings["architectures"] = [name]
    for stored in filter(_OF_LABELS.search, new):  # the last one has a row for each label
        labels = {number: f"LABEL_{number}" for number in range(whole[stored].shape[0])}
        work.settings |= {"id2label": labels, "label2id": {label: number for number, label in labels.items()}}
