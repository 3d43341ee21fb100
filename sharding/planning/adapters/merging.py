"""The tensors of a model while an adapter is merged into them. Pure."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from sharding.checkpoint.adapter import stored_heads
from sharding.checkpoint.patterns import Patterns
from sharding.core.dtypes import CASTABLE
from sharding.core.errors import SourceError
from sharding.core.limits import MAX_UPDATE_BYTES
from sharding.core.recipe import Recipe
from sharding.core.text import format_bytes, parsed_json, source_name
from sharding.core.values import Adapter, Checkpoint, Finding, Tensor
from sharding.formats.peft_config import ADAPTER_NAME, named_base, parse_config
from sharding.formats.peft_keys import parts_of
from sharding.formats.torch_checkpoint import EMBEDDINGS, HEADS
from sharding.model_class.class_table import known_class, tied_names, ties
from sharding.planning.adapters.module_names import ModuleNames
from sharding.recipes.cast import Cast

OTHER_BASE = "Name the base that the adapter was trained on, in the same version."
IN_UPDATES = (*CASTABLE, "F8_E4M3", "F8_E5M2")
"""Dtypes of updates. PEFT casts all of them to float32."""
SAVE_AGAIN = "Save the adapter again, or download it again."
WITH_PEFT = "Merge it with PEFT and check the result."


class Merging:
    """What is known while an adapter is merged into a model. The steps of a merge change `tensors` and `settings`.

    - `tensors`: those of the model, by their stored names. `before`: as they were.
    - `names` finds them by the names of modules in memory.
    - `parts`: what the tensors of the adapter are. `given` has these tensors by name.
    - `model`: the content of the model's config.json. `type` is its model type, and `types` also has those of models
      inside it. `settings` are new values in it.
    - `is_tied`: the output head is the embeddings. None if this is not known.
    - `head`: the name of the output head in memory.
    - `updated`: the stored names of the tensors that got an update.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        adapter: Adapter,
        known: Mapping[str, str],
        patterns: Callable[[Iterable[str]], Patterns],
        *,
        may_overflow: bool,
    ) -> None:
        """Start with the tensors of `checkpoint`. `known` are the stored names of names in memory.

        `patterns` matches the adapter's expressions with names that are known now. Raises SourceError if the
        configuration or the names of the adapter are not those of a LoRA of PEFT.
        """
        self.checkpoint, self.adapter, self.may_overflow = checkpoint, adapter, may_overflow
        self.known = known
        document = parsed_json(checkpoint.configs[""])
        self.model: dict[str, Any] = document if isinstance(document, dict) else {}
        self.type = str(self.model.get("model_type"))
        self.config = parse_config(parsed_json(adapter.config)).for_type(self.type)
        self.given = {tensor.name: tensor for tensor in adapter.tensors}
        self.parts = parts_of(self.given)
        matching = patterns(part.of for part in self.parts)
        for key, pattern in self.config.patterns:
            matching.check(key, pattern)
        self.match = matching.match
        self.types = set(_types_in(self.model))
        is_tied = ties(self.model)
        unties = is_tied is True and adapter.head_is_copy is False
        self.settings: dict[str, Any] = {"tie_word_embeddings": False} if unties else {}
        self.before = {tensor.name: tensor for tensor in checkpoint.tensors}
        self.heads = stored_heads(self.model)
        self.head = self.heads[0]
        dropped = self.heads if is_tied and adapter.head_is_copy else ()
        self.tensors = {name: tensor for name, tensor in self.before.items() if name not in dropped}
        self.names = ModuleNames((name for name, tensor in self.tensors.items() if not tensor.folder), known)
        self.is_tied = False if adapter.head_is_copy is False or not self.embeddings else is_tied
        self.findings: list[Finding] = []
        self.updated: set[str] = set()
        self._widen_kept()

    def _widen_kept(self) -> None:
        """Cast what the adapter changes to fp32, where the class keeps it in fp32 as `from_pretrained` loads it.

        What the adapter does not change keeps its bytes. It loads with the same numbers.
        """
        known = known_class(self.model)
        for part in self.parts if known else ():
            leaf = "bias" if part.kind == "b_bias" else "weight"
            name = self.names.find(part.of if part.kind == "whole" else f"{part.of}.{leaf}")
            tensor = self.tensors[name] if name and part.kind != "ignored" else None
            kept = known.kept.get({"F16": "fp16", "BF16": "bf16"}.get(tensor.dtype, ""), ()) if known and tensor else ()
            if tensor and any(re.search(pattern, tensor.name) for pattern in kept):
                recipe = Cast(tensor.recipe, tensor.dtype, "F32")
                self.tensors[tensor.name] = tensor._replace(dtype="F32", recipe=recipe)

    @property
    def named_base(self) -> str:
        """The base that the adapter's configuration names: a repo, or the last part of a path on somebody's disk."""
        return named_base(parsed_json(self.adapter.config))

    @property
    def tied_head(self) -> str | None:
        """The name of an output head that the model does not store, because it is its embeddings."""
        return self.head if self.is_tied and self.names.find(self.head) is None else None

    @property
    def ties_more(self) -> tuple[str, ...]:
        """What the model ties by the same setting beside its head and one tensor of embeddings, by names in memory."""
        names = tied_names(self.model) if self.is_tied else ()
        stored = [name for name in names[1:] if self.names.find(name) in self.before]
        return tuple(name for name in names[1:] if name not in stored[:1]) if len(names) > 2 else ()

    @property
    def embedding(self) -> Tensor:
        """The embeddings of words: the largest. There must be some."""
        return max(self.embeddings, key=lambda tensor: tensor.shape[0])

    @property
    def embeddings(self) -> list[Tensor]:
        """Tensors that are embeddings by their names."""
        found = (tensor for name, tensor in self.tensors.items() if EMBEDDINGS.search(name) and not tensor.folder)
        return [tensor for tensor in found if len(tensor.shape) == 2 and "position" not in tensor.name]

    def weight_of(self, module: str) -> str | None:
        """Return the stored name of the weight of `module`, None if there is none."""
        name = self.names.find(f"{module}.weight")
        return self.embedding.name if name is None and f"{module}.weight" == self.tied_head else name

    def is_saved(self, module: str) -> bool:
        """Return whether the adapter was trained with a copy of `module`."""
        saved = self.config.modules_to_save
        return module.endswith(saved) or any(one.endswith(f".{module}") for one in saved)

    def in_dtype_of(self, old: Tensor, new: Tensor) -> Recipe:
        """Return the recipe of `new`, cast to the dtype of `old`. Raises SourceError if that is not possible."""
        if new.dtype == old.dtype:
            return new.recipe
        if not {new.dtype, old.dtype} <= CASTABLE.keys():
            raise SourceError(f"{new.name} is {new.dtype}, but {old.name} of the base is {old.dtype}.", WITH_PEFT)
        return Cast(new.recipe, new.dtype, old.dtype, self.may_overflow)

    def other_base(self, name: str, by: str) -> SourceError:
        """Return the error for a tensor `by` of the adapter that needs a tensor `name`, which the model lacks."""
        base = source_name(self.checkpoint.source.kind, self.checkpoint.source.name)
        told = f" The adapter names {self.named_base} as its base." if self.named_base else ""
        return SourceError(f"The adapter has {by}, but {base} has no tensor {name}.{told}", self.hint)

    def other_shape(self, old: Tensor, new: Tensor) -> SourceError:
        """Return the error for a tensor of the adapter whose shape does not fit."""
        message = f"{new.name} of the adapter is {list(new.shape)}, but {old.name} of the base is {list(old.shape)}."
        return SourceError(message, self.hint)

    @property
    def hint(self) -> str:
        """What to do if the adapter does not fit: another base, unless this is the one that it names."""
        source = self.checkpoint.source
        is_it = source.kind == "hub" and source.repo_id.lower() == self.named_base.lower()
        return SAVE_AGAIN if is_it else OTHER_BASE

    def untargeted(self, name: str, why: str = "target_modules does not name it") -> SourceError:
        """Return the error for a tensor of the adapter that PEFT would ignore."""
        message = f"The adapter has {name}, but {why} in {ADAPTER_NAME}. PEFT would ignore it."
        return SourceError(message, f"Put the adapter's own {ADAPTER_NAME} beside its weights.")


def _types_in(config: Any) -> Iterator[str]:
    """Yield the model types in a configuration, at any depth."""
    waiting = [config]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield from [value["model_type"]] if isinstance(value.get("model_type"), str) else []
            waiting += value.values()


def heads_last(module: str) -> bool:
    """Return a sort key: PEFT merges into a tensor that embeddings and head share in this order."""
    return bool(HEADS.search(f"{module.removesuffix('.weight')}.weight"))


def refuse_odd(*tensors: Tensor, known: Collection[str] = CASTABLE) -> None:
    """Raise SourceError if one of `tensors` does not hold floating-point numbers, of one of the `known` dtypes."""
    if odd := next((tensor for tensor in tensors if tensor.dtype not in known), None):
        raise SourceError(f"{odd.name} is {odd.dtype}, but only floating-point numbers can be added.", WITH_PEFT)


def refuse_large(what: str, memory_bytes: int) -> None:
    """Raise SourceError if `what`, which must be in memory at once, takes too much."""
    if memory_bytes > MAX_UPDATE_BYTES:
        message = f"{what} would take more than {format_bytes(MAX_UPDATE_BYTES)} of memory."
        raise SourceError(message, "Merge this adapter with PEFT.")
