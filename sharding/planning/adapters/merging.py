"""The tensors of a model while an adapter is merged into them, and their names. Pure."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from sharding.checkpoint.adapter import stored_heads
from sharding.checkpoint.patterns import Patterns
from sharding.core.dtypes import CASTABLE
from sharding.core.errors import SourceError
from sharding.core.limits import MAX_UPDATE_BYTES
from sharding.core.recipe import Recipe
from sharding.core.text import as_object, format_bytes, objects_in, parsed_json
from sharding.core.values import Finding, Tensor
from sharding.formats.peft_config import ADAPTER_NAME, named_base, parse_config
from sharding.formats.peft_keys import parts_of
from sharding.model_class.class_table import EMBEDDINGS, HEADS, known_class, tied_names, ties
from sharding.planning.draft import Draft
from sharding.recipes.cast import Cast
from sharding.recipes.low_rank import LowRank, Update

_MOVED = (
    ("model.language_model.", "language_model.model."),
    ("model.language_model.", "model."),
    ("model.vision_tower.", "vision_tower."),
    ("model.visual.", "visual."),
    ("model.multi_modal_projector.", "multi_modal_projector."),
    ("lm_head.", "language_model.lm_head."),
)
"""Names in memory and in files of models with several parts (transformers 5.23, `conversion_mapping`)."""

TEXT, _TEXT_ALONE = "model.language_model.", "model."
"""How the names of the language model start in a model with several parts, and in the class of that part alone."""


class ModuleNames:
    """The names of stored tensors, searched by the names of the modules in memory.

    >>> names = ModuleNames(["h.0.attn.c_attn.weight"])
    >>> names.find("transformer.h.0.attn.c_attn.weight"), names.find("transformer.h.9.attn.c_attn.weight")
    ('h.0.attn.c_attn.weight', None)
    """

    def __init__(self, names: Iterable[str], known: Mapping[str, str] | None = None) -> None:
        """Search among `names`. `known` are the stored names of names in memory, as transformers knows them."""
        self._known = known or {}
        self._names = dict.fromkeys(names)
        self._inside: dict[str, str | None] = {}
        for name in self._names:
            _, dot, inside = name.partition(".")
            if dot:  # several names may be the same but for their first part
                self._inside[inside] = None if inside in self._inside else name
        self._prefix = ""
        self.prefixed = ""
        """The last name that was found with another prefix than the stored one."""
        self.is_of_text = False
        """Whether a name was one of the class of the language model alone, and was found in a model with more parts."""

    def find(self, name: str) -> str | None:
        """Return the one stored name of `name`, which may lack a model's prefix or have one more; None otherwise."""
        if exact := next((other for other in self._moved(name) if other in self._names), None):
            return exact
        if name.startswith(_TEXT_ALONE) and (inside := TEXT + name.removeprefix(_TEXT_ALONE)) in self._names:
            self.is_of_text = True
            return inside
        shorter = name.partition(".")[2]
        if shorter in self._names:
            self._prefix = name.removesuffix(shorter)
            self.prefixed = name
            return shorter
        longer = self._inside.get(name)
        self.prefixed = self.prefixed if longer is None else name
        return longer

    def in_memory(self, name: str) -> str:
        """Return what a stored name would be in memory, by the prefix that `find` has seen."""
        return _TEXT_ALONE + name.removeprefix(TEXT) if self.is_of_text else self._prefix + name

    def _moved(self, name: str) -> Iterator[str]:
        yield name
        if name in self._known:
            yield self._known[name]
        for old, new in ((".mlp.", ".block_sparse_moe."), (".block_sparse_moe.", ".mlp.")):
            if old in name:  # Mixtral in transformers 5 and 4
                yield name.replace(old, new)
        for old, new in _MOVED:
            if name.startswith(old):
                yield new + name.removeprefix(old)


OTHER_BASE = "Name the base that the adapter was trained on, in the same version."
SAVE_AGAIN = "Save the adapter again, or download it again."
WITH_PEFT = "Merge it with PEFT and check the result."


class Merging:
    """What is known while an adapter is merged into a model. The steps of a merge change `tensors` and `settings`.

    - `tensors`: those of the model, by their stored names. `before`: as they were. `updated`: which
      module's update each got.
    - `names` finds them by the names of modules in memory. `head` is the name of the output head there.
    - `parts`: what the tensors of the adapter are. `given` has these tensors by name.
    - `model`: the content of the model's config.json. `type` is its model type, and `types` also has those of models
      inside it. `settings` are new values in it.
    - `is_tied`: the output head is the embeddings. None if this is not known.
    """

    def __init__(self, draft: Draft, known: Mapping[str, str], patterns: Patterns) -> None:
        checkpoint = draft.content
        adapter = self.adapter = checkpoint.the("adapter")
        self.draft, self.checkpoint, self.known = draft, checkpoint, known
        self.model = as_object(parsed_json(draft.configs[""]))
        self.type = str(self.model.get("model_type"))
        config = parsed_json(adapter.configs[""])
        self.named_base = named_base(config)
        self.config = parse_config(config).for_type(self.type)
        self.given = {tensor.name: tensor for tensor in adapter.tensors}
        self.parts = parts_of(self.given)
        patterns.expect(part.of for part in self.parts)
        for key, pattern in self.config.patterns:
            patterns.check(key, pattern)
        self.match = patterns.match
        self.types = {str(level.get("model_type")) for level in objects_in(self.model)}
        is_tied = ties(self.model)
        unties = is_tied is True and checkpoint.head_is_copy is False
        self.settings: dict[str, Any] = {"tie_word_embeddings": False} if unties else {}
        self.before = {tensor.name: tensor for tensor in draft.tensors}
        self.heads = stored_heads(self.model)
        self.head = self.heads[0]
        dropped = self.heads if is_tied and checkpoint.head_is_copy else ()
        self.tensors = {name: tensor for name, tensor in self.before.items() if name not in dropped}
        self.names = ModuleNames((name for name, tensor in self.tensors.items() if not tensor.folder), known)
        self.is_tied = False if checkpoint.head_is_copy is False or not self.embeddings else is_tied
        self.findings: list[Finding] = []
        self.updated: dict[str, str] = {}
        self._widen_kept()

    def _widen_kept(self) -> None:
        """Cast what the adapter changes to fp32, where its class keeps that in fp32 when it is loaded."""
        if not (known := known_class(self.model)):
            return
        for part in self.parts:
            leaf = "bias" if part.kind == "b_bias" else "weight"
            name = self.names.find(part.of if part.kind == "whole" else f"{part.of}.{leaf}")
            if name is None or part.kind == "ignored":
                continue
            tensor = self.tensors[name]
            kept = known.kept.get({"F16": "fp16", "BF16": "bf16"}.get(tensor.dtype, ""), ())
            if any(re.search(pattern, name) for pattern in kept):
                self.tensors[name] = tensor._replace(dtype="F32", recipe=Cast(tensor.recipe, tensor.dtype, "F32"))

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
        return Cast(new.recipe, new.dtype, old.dtype)

    def rank_and_scale(self, module: str, a: Tensor, experts: int = 1) -> tuple[int, float]:
        """Return rank and scale of an update. Raises SourceError if the file and the configuration disagree."""
        stated = self.config.rank_of(module, self.match)
        if a.shape[:1] != (stated * experts,):
            message = f"{a.name} is {list(a.shape)}, but {ADAPTER_NAME} says that its rank is {stated}."
            raise SourceError(message, f"Put the adapter's own {ADAPTER_NAME} beside it.")
        scale = self.config.scale_of(module, stated, self.match)
        if not scale:
            message = f"{ADAPTER_NAME} says that alpha is 0 for {module}, so its update would change nothing."
            raise SourceError(message, f"Set lora_alpha in {ADAPTER_NAME} to the value that it was trained with.")
        return stated, scale

    def low_rank(
        self, old: Tensor, updates: tuple[Update, ...], *, is_stacked: bool = False, rounds_twice: bool = True
    ) -> LowRank:
        """Return the recipe of a tensor with updates. Raises SourceError if it holds no floating-point numbers."""
        refuse_odd(old)
        return LowRank(old.recipe, old.dtype, old.shape, updates, is_stacked, rounds_twice)

    def other_base(self, name: str, by: str) -> SourceError:
        """Return the error for a tensor `by` of the adapter that needs a tensor `name`, which the model lacks."""
        base = self.checkpoint.source.words
        told = f" The adapter names {self.named_base} as its base." if self.named_base else ""
        return SourceError(f"The adapter has {by}, but {base} has no tensor {name}.{told}", self.hint)

    def other_shape(self, old: Tensor, *new: Tensor) -> SourceError:
        """Return the error for a tensor of the adapter that does not fit, or for both matrices of an update."""
        shapes = " and its partner ".join(str(list(one.shape)) for one in new)
        message = f"{new[0].name} of the adapter is {shapes}, but {old.name} of the base is {list(old.shape)}."
        return SourceError(message, self.hint)

    @property
    def hint(self) -> str:
        """What to do if the adapter does not fit: another base, unless this is the one that it names."""
        source = self.checkpoint.source
        is_it = source.is_pinned and source.repo_id.lower() == self.named_base.lower()
        return SAVE_AGAIN if is_it else OTHER_BASE

    def untargeted(self, name: str, why: str = "target_modules does not name it") -> SourceError:
        """Return the error for a tensor of the adapter that PEFT would ignore."""
        message = f"The adapter has {name}, but {why} in {ADAPTER_NAME}. PEFT would ignore it."
        return SourceError(message, f"Put the adapter's own {ADAPTER_NAME} beside its weights.")


def heads_last(module: str) -> bool:
    """Return a sort key: PEFT merges into a tensor that embeddings and head share in this order."""
    return bool(HEADS.search(f"{module.removesuffix('.weight')}.weight"))


def refuse_odd(*tensors: Tensor, known: Collection[str] = CASTABLE) -> None:
    """Raise SourceError if one of `tensors` has none of the `known` dtypes of floating-point numbers."""
    if odd := next((tensor for tensor in tensors if tensor.dtype not in known), None):
        raise SourceError(f"{odd.name} is {odd.dtype}, but only floating-point numbers can be added.", WITH_PEFT)


def refuse_large(what: str, memory_bytes: int) -> None:
    """Raise SourceError if `what`, which must be in memory at once, takes too much."""
    if memory_bytes > MAX_UPDATE_BYTES:
        message = f"{what} would take more than {format_bytes(MAX_UPDATE_BYTES)} of memory."
        raise SourceError(message, "Merge this adapter with PEFT.")


def refuse_unusable(a: Tensor, b: Tensor) -> None:
    """Raise SourceError if the matrices of an update are no floating-point numbers, or take too much memory."""
    refuse_odd(a, b, known=(*CASTABLE, "F8_E4M3", "F8_E5M2"))  # PEFT casts all of them to float32
    refuse_large(f"{a.name} and {b.name}", 4 * (a.parameters + b.parameters))
