"""Add the low-rank updates of an adapter to the weights of its base. Pure."""

from collections.abc import Mapping
from math import prod

from sharding.core.errors import SourceError
from sharding.core.text import format_bytes, name_some
from sharding.core.values import Finding, Tensor
from sharding.formats.peft_config import ADAPTER_NAME
from sharding.formats.peft_keys import PREFIX, Kind
from sharding.planning.adapters.experts import IN_FUSED, Experts, is_fused_type, refuse_some_experts
from sharding.planning.adapters.merging import SAVE_AGAIN, WITH_PEFT, Merging, heads_last, refuse_odd, refuse_unusable
from sharding.recipes.dora import Dora
from sharding.recipes.low_rank import Update

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
        message = f"ensure_weight_tying is set in {ADAPTER_NAME}, for an update of tied embeddings. PEFT adds it once "
        raise SourceError(f"{message}to some models and twice to others.", WITH_PEFT)
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
        self._work = work
        self._claimed: dict[str, str] = {}
        self.whole: list[Tensor] = []  # those that are made in memory as a whole
        self.experts = Experts(work)

    def add(self, module: str, kinds: Kinds) -> None:
        """Add the update of one module."""
        work, name = self._work, self._work.weight_of(module)
        first = next(iter(kinds.values()))
        if "magnitude" in kinds and not work.config.use_dora:
            raise work.untargeted(kinds["magnitude"].name, "use_dora is not set")
        if name is None and self.experts.take(module, kinds):
            self._refuse_pattern(module)
            return
        if name is None:
            raise work.other_base(f"{module}.weight", first.name)
        is_parameter = work.config.targets_parameter(f"{module}.weight")
        if not (is_parameter or work.config.targets(module, work.match)):
            raise work.untargeted(first.name)
        self._add_to_weight(module, work.tensors[name], kinds, rounds_twice=is_parameter)
        if bias := kinds.get("b_bias"):
            self._add_to_bias(module, bias, kinds["a"])

    def _add_to_weight(self, module: str, old: Tensor, kinds: Kinds, *, rounds_twice: bool) -> None:
        """Add to a linear layer, a convolution or an embedding."""
        work, is_embedding = self._work, "embedding_a" in kinds
        a, b = (kinds["embedding_a"], kinds["embedding_b"]) if is_embedding else (kinds["a"], kinds["b"])
        rounds_twice = rounds_twice or is_embedding or work.config.rounds_twice
        if is_fused_type(work.type) and not is_embedding:
            # transformers 5 holds the router of these types in a module of its own.
            rounds_twice = rounds_twice or module.endswith(".gate") or bool(IN_FUSED.search(module))
            self._refuse_pattern(module)
        rank, scale = work.rank_and_scale(module, a)
        is_pair = len(a.shape) == len(b.shape) > 1 and b.shape[1:2] == (rank,) and prod(b.shape[2:]) == 1
        fits = is_pair and old.shape == (b.shape[0], *a.shape[1:]) and not is_embedding
        fits_swapped = is_pair and old.shape == (*a.shape[1:], b.shape[0]) and len(b.shape) == 2
        is_conv1d = not work.types.isdisjoint(_BY_COLUMNS) and module.rpartition(".")[2] in _CONV1D
        transposed = fits_swapped and (is_conv1d or not fits)
        if not (fits or transposed):
            raise work.other_update(old, a, b)
        refuse_unusable(a, b)
        update = Update(a.recipe, b.recipe, a.dtype, b.dtype, rank, scale, 0, old.shape[0], transposed=transposed)
        other = self._claimed.setdefault(old.name, module)
        # Embeddings and a head that is tied to them are one tensor, and both may change it.
        if other != module and not (work.is_tied and heads_last(other) != heads_last(module)):
            message = f"The adapter has two updates of {old.name}: for {other} and for {module}."
            raise SourceError(message, "Keep only one of them.")
        dora = self._dora(module, old, update, kinds) if work.config.use_dora else None
        work.tensors[old.name] = old._replace(recipe=dora or work.low_rank(old, (update,), rounds_twice=rounds_twice))
        work.updated.add(old.name)

    def _add_to_bias(self, module: str, bias: Tensor, a: Tensor) -> None:
        work, name = self._work, self._work.names.find(f"{module}.bias")
        if name is None:
            raise work.other_base(f"{module}.bias", bias.name)
        old, (_, scale) = work.tensors[name], work.rank_and_scale(module, a)
        if old.shape != bias.shape or len(old.shape) != 1:
            raise work.other_shape(old, bias)
        update = Update(None, bias.recipe, "", bias.dtype, 1, scale, 0, old.shape[0])
        work.tensors[name] = old._replace(recipe=work.low_rank(old, (update,), rounds_twice=False))

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

    def _refuse_pattern(self, module: str) -> None:
        """Raise SourceError if one of the experts has a rank or an alpha of its own."""
        config, match = self._work.config, self._work.match
        usual = config.r, config.scale_of("", config.r, match)
        own = config.rank_of(module, match), config.scale_of(module, config.r, match)
        if IN_FUSED.search(module) and own != usual:
            message = f"rank_pattern or alpha_pattern in {ADAPTER_NAME} matches {module}. PEFT's merge is then unclear."
            raise SourceError(message, WITH_PEFT)
