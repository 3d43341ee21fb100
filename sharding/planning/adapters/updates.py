"""Add the low-rank updates of an adapter to the weights of its base. Pure."""

from collections.abc import Mapping
from math import prod

from sharding.core.errors import SourceError
from sharding.core.text import format_bytes, name_some
from sharding.core.values import Finding, Tensor
from sharding.formats.peft_config import ADAPTER_NAME
from sharding.formats.peft_keys import PREFIX, Kind
from sharding.planning.adapters.experts import IN_FUSED, Experts, is_fused_type, refuse_some_experts
from sharding.planning.adapters.merging import (
    SAVE_AGAIN,
    Merging,
    heads_last,
    refuse_odd,
    refuse_unusable,
)
from sharding.recipes.dora import Dora
from sharding.recipes.low_rank import LowRank, Update

_BY_COLUMNS = ("gpt2", "openai-gpt", "imagegpt", "decision_transformer")
"""Types whose linear layers are transformers' Conv1D, which stores the transpose (transformers 5.23)."""
_CONV1D = ("c_attn", "c_proj", "c_fc", "q_attn")

Kinds = Mapping[Kind, Tensor]
"""The tensors of an adapter for one module, by what they are."""


def add_updates(work: Merging) -> None:
    """Add the updates to their weights. Raises SourceError if one does not fit, or if PEFT would ignore it."""
    modules: dict[str, dict[Kind, Tensor]] = {}
    for part in work.parts:
        if part.kind not in ("whole", "ignored", "tokens"):
            modules.setdefault(part.of, {})[part.kind] = work.given[part.name]
    ties = work.config.ensure_weight_tying and work.is_tied
    if ties and any(work.weight_of(module) == work.embedding.name for module in modules):
        raise SourceError(
            f"ensure_weight_tying is set in {ADAPTER_NAME}, for an update of tied embeddings. PEFT adds it once to "
            "some models and twice to others.",
            "Merge it with PEFT and check the result.",
        )
    adding = _Adding(work)
    for module in sorted(modules, key=heads_last):
        adding.add(module, modules[module])
    if adding.whole:
        largest = max(tensor.parameters for tensor in adding.whole)
        names = name_some([tensor.name for tensor in adding.whole])
        message = f"A DoRA needs the length of each column, so these tensors are in memory as a whole: {names}."
        hint = f"That takes about {format_bytes(16 * largest)} of memory for each."
        work.findings.append(Finding("info", "dora-whole", message, hint))
    if is_fused_type(work.type):
        refuse_some_experts(modules, work.model)
    for name, recipe in adding.experts.recipes():
        work.tensors[name] = work.tensors[name]._replace(recipe=recipe)
        work.updated.add(name)


class _Adding:
    def __init__(self, work: Merging) -> None:
        self._work, self._config = work, work.config
        self._claimed: dict[str, str] = {}
        self.whole: list[Tensor] = []
        """Tensors that are made in memory as a whole."""
        self.experts = Experts(work, self._rank_and_scale)

    def add(self, module: str, kinds: Kinds) -> None:
        """Add the update of one module."""
        work, name = self._work, self._work.weight_of(module)
        first = next(iter(kinds.values()))
        if "magnitude" in kinds and not self._config.use_dora:
            raise work.untargeted(kinds["magnitude"].name, "use_dora is not set")
        if name is None and self.experts.take(module, kinds):
            self._refuse_pattern(module)
            return
        if name is None:
            raise work.other_base(f"{module}.weight", first.name)
        if not (self._is_parameter(module) or self._config.targets(module, work.match)):
            raise work.untargeted(first.name)
        if "embedding_a" in kinds:
            self._add_to_embedding(module, name, kinds)
        else:
            self._add_to_layer(module, name, kinds)
        if bias := kinds.get("b_bias"):
            self._add_to_bias(module, bias, kinds["a"])

    def _is_parameter(self, module: str) -> bool:
        return self._config.targets_parameter(f"{module}.weight")

    def _add_to_layer(self, module: str, name: str, kinds: Kinds) -> None:
        """Add to a linear layer or a convolution."""
        a, b, old = kinds["a"], kinds["b"], self._work.tensors[name]
        in_fused = is_fused_type(self._work.type) and bool(IN_FUSED.search(module))
        # transformers 5 holds the router of these types in a module of its own.
        is_router = is_fused_type(self._work.type) and module.endswith(".gate")
        if in_fused:
            self._refuse_pattern(module)
        rank, scale = self._rank_and_scale(module, a)
        is_pair = len(a.shape) == len(b.shape) > 1 and b.shape[1:2] == (rank,) and prod(b.shape[2:]) == 1
        fits = is_pair and old.shape == (b.shape[0], *a.shape[1:])
        fits_swapped = is_pair and old.shape == (*a.shape[1:], b.shape[0]) and len(b.shape) == 2
        is_conv1d = not self._work.types.isdisjoint(_BY_COLUMNS) and module.rpartition(".")[2] in _CONV1D
        transposed = fits_swapped and (is_conv1d or not fits)
        if not (fits or transposed):
            raise self._work.other_update(old, a, b)
        update = self._update(a, b, rank, scale, old, transposed=transposed)
        rounds_twice = self._config.rounds_twice or self._is_parameter(module) or is_router or in_fused
        self._change(module, old, update, kinds, rounds_twice=rounds_twice)

    def _add_to_embedding(self, module: str, name: str, kinds: Kinds) -> None:
        a, b, old = kinds["embedding_a"], kinds["embedding_b"], self._work.tensors[name]
        rank, scale = self._rank_and_scale(module, a)
        if len(b.shape) != 2 or old.shape != (*a.shape[1:], b.shape[0]) or b.shape[1:] != (rank,):
            raise self._work.other_update(old, a, b)
        update = self._update(a, b, rank, scale, old, transposed=True)
        self._change(module, old, update, kinds, rounds_twice=True)

    def _add_to_bias(self, module: str, bias: Tensor, a: Tensor) -> None:
        work, name = self._work, self._work.names.find(f"{module}.bias")
        if name is None:
            raise work.other_base(f"{module}.bias", bias.name)
        old, (_, scale) = work.tensors[name], self._rank_and_scale(module, a)
        if old.shape != bias.shape or len(old.shape) != 1:
            raise work.other_shape(old, bias)
        update = Update(None, bias.recipe, "", bias.dtype, 1, scale, 0, old.shape[0])
        work.tensors[name] = old._replace(recipe=self._low_rank(old, update, rounds_twice=False))

    def _change(self, module: str, old: Tensor, update: Update, kinds: Kinds, *, rounds_twice: bool) -> None:
        other = self._claimed.setdefault(old.name, module)
        # Embeddings and a head that is tied to them are one tensor, and both may change it.
        if other != module and not (self._work.is_tied and heads_last(other) != heads_last(module)):
            message = f"The adapter has two updates of {old.name}: for {other} and for {module}."
            raise SourceError(message, "Keep only one of them.")
        recipe = (
            self._dora(module, old, update, kinds)
            if self._config.use_dora
            else self._low_rank(old, update, rounds_twice=rounds_twice)
        )
        self._work.tensors[old.name] = old._replace(recipe=recipe)
        self._work.updated.add(old.name)

    def _dora(self, module: str, old: Tensor, update: Update, kinds: Kinds) -> Dora:
        if not (magnitude := kinds.get("magnitude")):
            message = f"use_dora is set in {ADAPTER_NAME}, but {PREFIX}{module}.lora_magnitude_vector is missing."
            raise SourceError(message, SAVE_AGAIN)
        if prod(magnitude.shape) != old.shape[1 if update.transposed else 0]:
            raise self._work.other_shape(old, magnitude)
        refuse_odd(old, magnitude)
        of = old.recipe, old.dtype, old.shape
        recipe = Dora(*of, update, magnitude.recipe, magnitude.dtype, self._work.may_overflow)
        if recipe.is_whole:
            self.whole.append(old)
        return recipe

    def _low_rank(self, old: Tensor, update: Update, *, rounds_twice: bool) -> LowRank:
        refuse_odd(old)
        return LowRank(old.recipe, old.dtype, old.shape, (update,), False, rounds_twice, self._work.may_overflow)

    def _update(self, a: Tensor, b: Tensor, rank: int, scale: float, old: Tensor, *, transposed: bool) -> Update:
        refuse_unusable(a, b)
        return Update(a.recipe, b.recipe, a.dtype, b.dtype, rank, scale, 0, old.shape[0], transposed=transposed)

    def _rank_and_scale(self, module: str, a: Tensor, experts: int = 1) -> tuple[int, float]:
        """Return rank and scale of an update. Raises SourceError if the file and the configuration disagree."""
        stated = self._config.rank_of(module, self._work.match)
        if a.shape[:1] != (stated * experts,):
            raise SourceError(
                f"{a.name} is {list(a.shape)}, but {ADAPTER_NAME} says that its rank is {stated}.",
                f"Put the adapter's own {ADAPTER_NAME} beside it.",
            )
        scale = self._config.scale_of(module, stated, self._work.match)
        if not scale:
            message = f"{ADAPTER_NAME} says that alpha is 0 for {module}, so its update would change nothing."
            raise SourceError(message, f"Set lora_alpha in {ADAPTER_NAME} to the value that it was trained with.")
        return stated, scale

    def _refuse_pattern(self, module: str) -> None:
        """Raise SourceError if one of the experts has a rank or an alpha of its own."""
        config, match = self._config, self._work.match
        usual = config.r, config.scale_of("", config.r, match)
        if (
            IN_FUSED.search(module)
            and (config.rank_of(module, match), config.scale_of(module, config.r, match)) != usual
        ):
            message = f"rank_pattern or alpha_pattern in {ADAPTER_NAME} matches {module}. PEFT's merge is then unclear."
            raise SourceError(message, "Merge it with PEFT and check the result.")
