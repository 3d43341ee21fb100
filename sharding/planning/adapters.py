"""Decide how the tensors of a model are made when an adapter is merged into it. Pure."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import prod

from sharding.checkpoint.adapter import TIED_HEADS
from sharding.checkpoint.patterns import Patterns
from sharding.core.dtypes import CASTABLE
from sharding.core.errors import Remedy, SourceError
from sharding.core.limits import MAX_TENSORS, MAX_UPDATE_BYTES
from sharding.core.text import count, format_bytes, name_some, parsed_json, source_name
from sharding.core.values import Adapter, Checkpoint, Finding, Merge, Plan, Tensor
from sharding.formats.peft_config import ADAPTER_NAME, LoraConfig, Match, parse_config
from sharding.formats.peft_keys import PREFIX, Kind, parts_of
from sharding.formats.quantization import is_packed, method_of, quantization_of
from sharding.formats.torch_checkpoint import EMBEDDINGS, HEADS
from sharding.model_class.class_table import known_class, ties
from sharding.planning.experts import IN_FUSED, Experts, is_fused_type
from sharding.planning.module_names import ModuleNames
from sharding.recipes.cast import Cast
from sharding.recipes.dora import Dora
from sharding.recipes.low_rank import LowRank, Update
from sharding.recipes.rows import Rows

_BY_COLUMNS = ("gpt2", "openai-gpt", "imagegpt", "decision_transformer", "clvp", "clvp_decoder")
"""Types whose linear layers are transformers' Conv1D, which stores the transpose (transformers 5.23)."""
_CONV1D = ("c_attn", "c_proj", "c_fc", "q_attn", "out_proj")
_HEAD = "lm_head.weight"
_PAIRS = (("gate_proj", "up_proj"), ("w1", "w3"))
_TASKS = {"SEQ_CLS": "ForSequenceClassification", "TOKEN_CLS": "ForTokenClassification"}


def unknown_names(checkpoint: Checkpoint) -> list[str]:
    """Return the names of the adapter's weights in memory for which the model has no tensor of that or a like name."""
    assert checkpoint.adapter is not None
    names = ModuleNames(tensor.name for tensor in checkpoint.tensors)
    parts = parts_of([tensor.name for tensor in checkpoint.adapter.tensors])
    wanted = [part.of if part.kind == "whole" else f"{part.of}.weight" for part in parts if part.kind != "ignored"]
    return [name for name in wanted if names.find(name) is None and ".experts." not in name and name != _HEAD]


def merged(checkpoint: Checkpoint, *, may_overflow: bool = False, known: Mapping[str, str] | None = None) -> Checkpoint:
    """Return `checkpoint` with the weights that PEFT 0.21 would save after `merge_and_unload`.

    `known` are the stored names of names in memory, if both differ by more than a prefix. Each tensor keeps its dtype.
    The adapter's numbers count as float32, as PEFT loads them. Raises SourceError if the
    adapter is not of the type LORA, was made for another base, or has weights that PEFT would ignore. Then the result
    would not be the model that was trained.
    """
    assert checkpoint.adapter is not None
    _refuse_base(checkpoint)
    config = parse_config(parsed_json(checkpoint.adapter.config))
    work = _Merging(checkpoint, checkpoint.adapter, config, known or {}, may_overflow)
    work.replace_whole()
    work.add_updates()
    work.replace_rows()
    return work.result()


def _refuse_base(checkpoint: Checkpoint) -> None:
    if checkpoint.library not in ("transformers", "sentence-transformers") or "" not in checkpoint.configs:
        raise SourceError(
            "An adapter can be merged only into a model of transformers with its config.json.",
            "Name the base model that the adapter was trained on.",
        )
    stated = quantization_of(checkpoint.configs[""])
    if stated is not None or any(map(is_packed, checkpoint.tensors)):
        how = f" with {method_of(stated)}" if stated is not None else ""
        raise SourceError(
            f"The base is quantized{how}. An adapter cannot be added to quantized numbers.",
            "Make an ordinary copy with --dequantize first, and merge the adapter into that copy.",
            Remedy("dequantize"),
        )


class _Merging:
    """The tensors of a model while an adapter is merged into them. Each step changes the recipes of some."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        adapter: Adapter,
        config: LoraConfig,
        known: Mapping[str, str],
        may_overflow: bool,
    ) -> None:
        self._checkpoint, self._adapter, self._config, self._may_overflow = checkpoint, adapter, config, may_overflow
        patterns = Patterns(ADAPTER_NAME)
        for key, pattern in config.patterns:
            patterns.check(key, pattern)
        self._match: Match = patterns.match
        self._given = {tensor.name: tensor for tensor in adapter.tensors}
        self._parts = parts_of(self._given)
        self._before = {tensor.name: tensor for tensor in checkpoint.tensors}
        self._now = dict(self._before)
        document = parsed_json(checkpoint.configs[""])
        self._model = document if isinstance(document, dict) else {}
        self._type = str(self._model.get("model_type"))
        self._settings: dict[str, object] = {}
        self._is_tied = ties(self._model) and adapter.head_is_copy is not False
        if adapter.head_is_copy:
            self._now = {name: tensor for name, tensor in self._now.items() if name not in TIED_HEADS}
        elif adapter.head_is_copy is False:
            self._settings["tie_word_embeddings"] = False
        self._names = ModuleNames((tensor.name for tensor in self._now.values() if not tensor.folder), known)
        self._findings: list[Finding] = []
        self._updated: set[str] = set()
        self._claimed: dict[str, str] = {}

    # --- Whole tensors ----------------------------------------------------------------------------------------

    def replace_whole(self) -> None:
        """Put the tensors that the adapter has as a whole in place of those of the base."""
        # A head that is tied comes last, as in PEFT.
        parts = sorted(self._parts, key=lambda part: bool(HEADS.search(part.of)))
        whole = {part.of: self._given[part.name] for part in parts if part.kind == "whole"}
        self._refuse_missing(whole)
        self._add_scores(whole)
        head = self._tied_head()
        unties = head is not None and not self._config.ensure_weight_tying and self._saves(head, "embedding")
        if unties and head is not None:
            old = self._embedding()
            self._now[_HEAD] = old._replace(name=_HEAD)
            self._settings["tie_word_embeddings"] = False
        for of, tensor in whole.items():
            name = self._names.find(of)
            if name is None and of == head:
                name = _HEAD if unties else self._embedding().name
            if name is None:
                raise self._other_base(of, tensor.name)
            self._now[name] = self._in_place_of(self._now[name], tensor)

    def _tied_head(self) -> str | None:
        """Return the name of an output head that the base does not store, because it is its embeddings."""
        return _HEAD if self._is_tied and self._names.find(_HEAD) is None and self._embeddings() else None

    def _add_scores(self, whole: Mapping[str, Tensor]) -> None:
        """Turn a causal model into a classifier, if the adapter was trained as one and has its head."""
        class_name = next(iter(self._model.get("architectures") or []), "")
        task = _TASKS.get(str(self._config.task_type), "")
        scores = whole.get("score.weight")
        if not task or scores is None or self._names.find("score.weight") or not class_name.endswith("ForCausalLM"):
            return
        classifier = class_name.removesuffix("ForCausalLM") + task
        known = known_class({**self._model, "architectures": [classifier]})
        if known is None or known.name != classifier:
            return
        for name in [name for name in self._now if name in TIED_HEADS]:
            del self._now[name]
        self._now["score.weight"] = self._embedding()._replace(name="score.weight", shape=scores.shape)
        self._names = ModuleNames(self._now)
        labels = {number: f"LABEL_{number}" for number in range(scores.shape[0])}
        self._settings |= {"architectures": [classifier], "id2label": labels}
        self._settings |= {"label2id": {label: number for number, label in labels.items()}}

    def _saves(self, head: str, _: str) -> bool:
        """Return whether the adapter was trained with copies of the head or the embeddings, which unties them."""
        modules = [head.removesuffix(".weight"), self._embedding().name.removesuffix(".weight")]
        return any(self._is_saved(module) for module in modules)

    def _is_saved(self, module: str) -> bool:
        return any(module.endswith(saved) or saved.endswith(f".{module}") for saved in self._config.modules_to_save)

    def _refuse_missing(self, whole: Mapping[str, Tensor]) -> None:
        modules = {of.rpartition(".")[0] for of in whole}
        for saved in self._config.modules_to_save:
            known = any(name.rpartition(".")[0].endswith(saved) for name in self._before)
            if known and not any(module.endswith(saved) for module in modules):
                raise SourceError(
                    f"{ADAPTER_NAME} says that the adapter holds all of {saved}, but the adapter does not have "
                    f"{PREFIX}….{saved}.weight.",
                    "Save the adapter again, or download it again.",
                )

    def _in_place_of(self, old: Tensor, new: Tensor) -> Tensor:
        """Return `new` as the tensor `old`, in its dtype. Raises SourceError unless their shapes fit."""
        grows = old.shape[1:] == new.shape[1:] and bool(EMBEDDINGS.search(old.name) or HEADS.search(old.name))
        if old.shape != new.shape and not grows:
            raise self._other_shape(old, new)
        if old.shape != new.shape:
            self._settings["vocab_size"] = new.shape[0]
        recipe = new.recipe
        if new.dtype != old.dtype:
            if not {new.dtype, old.dtype} <= CASTABLE.keys():
                raise SourceError(f"{new.name} is {new.dtype}, and {old.name} of the base is {old.dtype}.", _OTHER_BASE)
            recipe = Cast(recipe, new.dtype, old.dtype, self._may_overflow)
        return old._replace(shape=new.shape, recipe=recipe)

    def _embeddings(self) -> list[Tensor]:
        return [
            tensor for name, tensor in self._now.items() if EMBEDDINGS.search(name) and "position" not in name
            if len(tensor.shape) == 2 and not tensor.folder
        ]  # fmt: skip

    def _embedding(self) -> Tensor:
        """Return the embeddings that are the output head too: the largest."""
        return max(self._embeddings(), key=lambda tensor: tensor.shape[0])

    # --- Updates ----------------------------------------------------------------------------------------------

    def add_updates(self) -> None:
        """Add the low-rank updates to their weights."""
        modules: dict[str, dict[Kind, Tensor]] = {}
        for part in self._parts:
            if part.kind not in ("whole", "ignored", "tokens"):
                modules.setdefault(part.of, {})[part.kind] = self._given[part.name]
        # PEFT adds to shared weights in the order of the modules: the embeddings come before the head.
        experts = Experts(self._type, self._config, self._now, self._names, self._rank_and_scale)
        for module in sorted(modules, key=lambda module: bool(HEADS.search(f"{module}.weight"))):
            kinds = modules[module]
            if "magnitude" in kinds and not self._config.use_dora:
                raise self._untargeted(kinds["magnitude"].name, "use_dora is not set")
            if "embedding_a" in kinds:
                self._add_to_embedding(module, kinds)
            elif name := self._weight_of(module):
                self._add_to(module, name, kinds)
            elif not experts.take(module, kinds):
                raise self._other_base(f"{module}.weight", next(iter(kinds.values())).name)
        self._refuse_some_experts(modules)
        for name, recipe in experts.recipes():
            self._change(name, self._now[name]._replace(recipe=recipe))
            self._updated.add(name.removesuffix(".weight"))

    def _refuse_some_experts(self, modules: Iterable[str]) -> None:
        """Raise SourceError unless each expert of a layer has the same updates. PEFT joins them to one."""
        if not is_fused_type(self._type):
            return
        places: dict[str, set[tuple[int, str]]] = {}
        for module in modules:
            if match := IN_FUSED.search(module):
                places.setdefault(module[: match.start()], set()).add((int(match["number"]), match["part"]))
        for container, found in places.items():
            parts = {part for _, part in found}
            parts |= {other for pair in _PAIRS if parts & set(pair) for other in pair}
            count = self._model.get(
                "num_experts", self._model.get("num_local_experts", self._model.get("n_routed_experts"))
            )
            numbers = range(count if isinstance(count, int) else 1 + max(number for number, _ in found))
            for number in numbers[:MAX_TENSORS]:
                for part in sorted(parts):
                    if (number, part) not in found:
                        name = f"{PREFIX}{container}.experts.{number}.{part}.lora_A.weight"
                        others = name_some([f"{part} of expert {number}" for number, part in sorted(found)], 1)
                        raise SourceError(
                            f"The adapter has updates for {others}, but not {name}. PEFT merges all experts at once.",
                            "Save the adapter again with all of them.",
                        )

    def _weight_of(self, module: str) -> str | None:
        name = self._names.find(f"{module}.weight")
        is_head = name is None and f"{module}.weight" == self._tied_head()
        return self._embedding().name if is_head else name

    def _claim(self, name: str, by: str) -> None:
        """Note that `by` of the adapter changes the tensor `name`. Raises SourceError if another one does already."""
        other = self._claimed.setdefault(name, by)
        if other != by and not (
            self._is_tied and len({bool(HEADS.search(f"{one}.weight")) for one in (other, by)}) == 2
        ):
            message = f"The adapter has two updates of {name}: for {other} and for {by}."
            raise SourceError(message, "Keep only one of them.")

    def _add_to(self, module: str, name: str, kinds: Mapping[Kind, Tensor]) -> None:
        """Add to a linear layer or a convolution."""
        a, b, old = kinds["a"], kinds["b"], self._now[name]
        is_parameter = any(f"{module}.weight".endswith(f".{one}") for one in self._config.target_parameters)
        is_router = module.endswith(".gate") and is_fused_type(self._type)
        in_fused = bool(IN_FUSED.search(module)) and is_fused_type(self._type)
        is_head = self._config.ensure_weight_tying and self._is_tied and f"{module}.weight" == self._tied_head()
        if not (is_parameter or is_head or self._config.targets(module, self._match)):
            raise self._untargeted(a.name)
        if in_fused and self._has_pattern(module):
            raise SourceError(
                f"rank_pattern or alpha_pattern in {ADAPTER_NAME} matches {module}. How PEFT then merges is unclear.",
                "Merge it with PEFT and check the result.",
            )
        rank, scale = self._rank_and_scale(module, a)
        if b.dtype not in CASTABLE or len(a.shape) < 2 or len(b.shape) < 2:
            raise self._other_update(old, a, b)
        # A convolution of the kernel size 1 follows the first one, so its matrices have more dimensions.
        fits = (old.shape[0], *old.shape[1:]) == (b.shape[0], *a.shape[1:]) and b.shape[1] == rank
        is_swapped = len(old.shape) == 2 and old.shape == (a.shape[1], b.shape[0]) and b.shape[1:] == (rank,)
        by_type = self._type in _BY_COLUMNS and module.rpartition(".")[2] in _CONV1D
        transposed = is_swapped and (by_type or not fits)
        if not (fits or transposed) or prod(b.shape[2:]) != 1:
            raise self._other_update(old, a, b)
        self._claim(name, module)
        update = self._update(a, b, rank, scale, old.shape[0], transposed=transposed)
        rounds_twice = self._config.rounds_twice or is_parameter or is_router or in_fused
        self._changed(module, old, update, kinds, rounds_twice=rounds_twice)
        if bias := kinds.get("b_bias"):
            self._add_to_bias(module, bias, scale)

    def _add_to_embedding(self, module: str, kinds: Mapping[Kind, Tensor]) -> None:
        a, b, name = kinds["embedding_a"], kinds["embedding_b"], self._names.find(f"{module}.weight")
        if name is None:
            raise self._other_base(f"{module}.weight", a.name)
        is_tied = self._config.ensure_weight_tying and self._is_tied
        if not is_tied and not self._config.targets(module, self._match):
            raise self._untargeted(a.name)
        old, (rank, scale) = self._now[name], self._rank_and_scale(module, a)
        if old.shape != (*a.shape[1:], b.shape[0]) or b.shape[1:] != (rank,):
            raise self._other_update(old, a, b)
        self._claim(name, module)
        update = self._update(a, b, rank, scale, old.shape[0], transposed=True)
        self._changed(module, old, update, kinds, rounds_twice=True)

    def _add_to_bias(self, module: str, bias: Tensor, scale: float) -> None:
        name = self._names.find(f"{module}.bias")
        if name is None:
            raise self._other_base(f"{module}.bias", bias.name)
        old = self._now[name]
        if old.shape != bias.shape:
            raise self._other_shape(old, bias)
        update = Update(None, bias.recipe, "", bias.dtype, 1, scale, 0, old.shape[0])
        self._change(name, self._with(old, (update,), rounds_twice=False))

    def _changed(
        self, module: str, old: Tensor, update: Update, kinds: Mapping[Kind, Tensor], *, rounds_twice: bool
    ) -> None:
        if not self._config.use_dora:
            self._change(old.name, self._with(old, (update,), rounds_twice=rounds_twice))
        elif magnitude := kinds.get("magnitude"):
            outputs = old.shape[1] if update.transposed else old.shape[0]
            if prod(magnitude.shape) != outputs:
                raise self._other_shape(old, magnitude)
            recipe = Dora(
                old.recipe, old.dtype, old.shape, update, magnitude.recipe, magnitude.dtype, self._may_overflow
            )
            if recipe.is_whole:
                self._note_whole(old)
            self._change(old.name, old._replace(recipe=recipe))
        else:
            name = next(iter(kinds.values())).name
            raise SourceError(
                f"{ADAPTER_NAME} says DoRA, but {PREFIX}{module}.lora_magnitude_vector is missing beside {name}.",
                "Save the adapter again, or download it again.",
            )
        self._updated.add(module)

    def _note_whole(self, tensor: Tensor) -> None:
        size = 4 * 4 * tensor.parameters
        message = f"{tensor.name} is made in memory as a whole, because its DoRA needs the norm of each column."
        hint = f"That takes about {format_bytes(size)} of memory."
        self._findings.append(Finding("info", "dora-whole", message, hint))

    def _with(
        self, old: Tensor, updates: tuple[Update, ...], *, rounds_twice: bool, is_stacked: bool = False
    ) -> Tensor:
        if old.dtype not in CASTABLE:
            raise SourceError(
                f"{old.name} is {old.dtype}. Updates can be added only to floating-point numbers.", _OTHER_BASE
            )
        recipe = LowRank(old.recipe, old.dtype, old.shape, updates, is_stacked, rounds_twice, self._may_overflow)
        return old._replace(recipe=recipe)

    def _change(self, name: str, tensor: Tensor) -> None:
        self._now[name] = tensor

    def _update(self, a: Tensor, b: Tensor, rank: int, scale: float, last_row: int, *, transposed: bool) -> Update:
        if 4 * (a.parameters + b.parameters) > MAX_UPDATE_BYTES:
            message = f"{a.name} and {b.name} would take more than {format_bytes(MAX_UPDATE_BYTES)} of memory."
            raise SourceError(message, "Merge this adapter with PEFT.")
        return Update(a.recipe, b.recipe, a.dtype, b.dtype, rank, scale, 0, last_row, transposed=transposed)

    def _rank_and_scale(self, module: str, a: Tensor, experts: int = 1) -> tuple[int, float]:
        """Return rank and scale of an update. Raises SourceError if the file and the configuration disagree."""
        stated = self._config.rank_of(module, self._match)
        rank = a.shape[0] // experts if a.shape else 0
        if rank != stated or a.shape[0] != rank * experts or a.dtype not in CASTABLE:
            raise SourceError(
                f"{a.name} is {a.dtype} {list(a.shape)}, but {ADAPTER_NAME} says that its rank is {stated}.",
                f"Put the adapter's own {ADAPTER_NAME} beside it.",
            )
        return rank, self._config.scale_of(module, rank, self._match)

    def _has_pattern(self, module: str) -> bool:
        config = self._config
        return config.rank_of(module, self._match) != config.r or bool(
            config.scale_of(module, 1, self._match) != config.lora_alpha
        )

    # --- Rows -------------------------------------------------------------------------------------------------

    def replace_rows(self) -> None:
        """Put new rows of embeddings in their places."""
        tokens = [part for part in self._parts if part.kind == "tokens"]
        if self._config.trainable_token_indices and not tokens:
            message = f"{ADAPTER_NAME} has trainable_token_indices, but the adapter has no trainable_tokens_delta."
            raise SourceError(message, "Save the adapter again, or download it again.")
        for part in sorted(tokens, key=lambda part: bool(HEADS.search(f"{part.of}.weight"))):
            new, name = self._given[part.name], self._weight_of(part.of)
            if name is None:
                raise self._other_base(f"{part.of}.weight", part.name)
            old, places = self._now[name], self._config.tokens_of(part.of)
            if places is None:
                raise self._untargeted(part.name, "trainable_token_indices does not name it")
            if new.shape != (len(places), *old.shape[1:]) or len(old.shape) != 2:
                raise self._other_shape(old, new)
            if len(set(places)) < len(places) or not all(0 <= place < old.shape[0] for place in places):
                message = (
                    f"trainable_token_indices of {ADAPTER_NAME} does not fit {name}, which has {old.shape[0]} rows."
                )
                raise SourceError(message, _OTHER_BASE)
            rows = new.recipe if new.dtype == old.dtype else Cast(new.recipe, new.dtype, old.dtype, self._may_overflow)
            row_bytes = old.bytes // old.shape[0]
            self._change(name, old._replace(recipe=Rows(old.recipe, rows, places, row_bytes)))

    # --- The result -------------------------------------------------------------------------------------------

    def result(self) -> Checkpoint:
        """Return the merged checkpoint."""
        checkpoint, adapter = self._checkpoint, self._adapter
        self._refuse_uneven_vocabulary()
        changed = sum(self._before.get(name) != tensor for name, tensor in self._now.items())
        name = self._config.base_model_name_or_path or ""
        done = Merge(adapter.source, adapter.file.path, adapter.file.sha256 or "", changed, len(self._now), name)
        components = tuple(
            replace(component, total_parameters=None) if not component.folder else component
            for component in checkpoint.components
        )
        configs = dict(checkpoint.configs)
        if self._settings:
            configs[""] = json.dumps(_with_settings(self._model, self._settings))
        return replace(
            checkpoint,
            tensors=tuple(self._now.values()),
            components=components,
            configs=configs,
            reconfigured=checkpoint.reconfigured | ({""} if self._settings else set()),
            findings=(*checkpoint.findings, *self._findings, *self._about(done)),
            merged=done,
        )

    def _about(self, done: Merge) -> Iterator[Finding]:
        what = f"{done.changed} of {count(done.tensors, 'tensor')} change"
        base = f" Its configuration names {done.named_base} as its base." if done.named_base else ""
        yield Finding("info", "merge", f"The adapter {self._called} is merged: {what}.{base}")
        if idle := self._idle():
            message = f"The adapter has no weights for {count(len(idle), 'module')} that {ADAPTER_NAME} targets: "
            message += f"{name_some(idle)}. They do not change."
            hint = "This is normal if these modules were not trained. Otherwise the adapter is incomplete."
            yield Finding("warning", "targets-without-weights", message, hint)
        if "vocab_size" in self._settings:
            message = (
                f"The adapter has a vocabulary of {self._settings['vocab_size']:,} words. The tokenizer is the base's."
            )
            hint = "If the adapter's repo has a tokenizer, copy its files into the result."
            yield Finding("warning", "new-vocabulary", message, hint)

    def _idle(self) -> list[str]:
        """Return the modules, by their names in the base, that the configuration targets and the adapter lacks."""
        if not self._updated:
            return []
        updated = {self._weight_of(module) for module in self._updated}
        idle = []
        for name, tensor in self._before.items():
            module = name.removesuffix(".weight")
            if module == name or len(tensor.shape) < 2 or name in updated or IN_FUSED.search(name):
                continue
            if self._config.targets(self._names.in_memory(module), self._match) and not self._is_saved(module):
                if self._config.target_modules == "all-linear" and EMBEDDINGS.search(name):
                    continue
                idle.append(module)
        return idle

    def _refuse_uneven_vocabulary(self) -> None:
        size = self._settings.get("vocab_size")
        for name, tensor in self._now.items():
            is_words = name == _HEAD or tensor.name in {one.name for one in self._embeddings()[:1]}
            if size is not None and is_words and len(tensor.shape) == 2 and tensor.shape[0] != size:
                raise SourceError(
                    f"The adapter has a vocabulary of {size:,} words, but {name} has {tensor.shape[0]:,} rows.",
                    "Save the adapter with both its embeddings and its output head.",
                )

    # --- What is refused --------------------------------------------------------------------------------------

    @property
    def _called(self) -> str:
        return source_name(self._adapter.source.kind, self._adapter.source.repo_id)

    def _other_base(self, name: str, by: str) -> SourceError:
        named = self._config.base_model_name_or_path
        base = source_name(self._checkpoint.source.kind, self._checkpoint.source.repo_id)
        told = f" Its configuration names {named[:200]}." if named else ""
        return SourceError(f"The adapter has {by}, but {base} has no tensor {name}.{told}", _OTHER_BASE)

    def _other_shape(self, old: Tensor, new: Tensor) -> SourceError:
        return SourceError(
            f"{new.name} of the adapter is {list(new.shape)}, but {old.name} of the base is {list(old.shape)}.",
            _OTHER_BASE,
        )

    def _other_update(self, old: Tensor, a: Tensor, b: Tensor) -> SourceError:
        return SourceError(
            f"{a.name} is {a.dtype} {list(a.shape)} and its partner {b.dtype} {list(b.shape)}, but {old.name} of the "
            f"base is {list(old.shape)}.",
            _OTHER_BASE,
        )

    def _untargeted(self, name: str, why: str = "target_modules does not name it") -> SourceError:
        return SourceError(
            f"The adapter has {name}, but {why} in {ADAPTER_NAME}. PEFT would ignore it.",
            f"Put the adapter's own {ADAPTER_NAME} beside its weights.",
        )


_OTHER_BASE = (
    "It is an adapter of another base, or one of another version of this base. Name the base that it was trained on."
)


def _with_settings(document: Mapping[str, object], settings: Mapping[str, object]) -> dict[str, object]:
    """Return a configuration with `settings`, at its top or, for a model with several parts, in its text part."""
    text = document.get("text_config")
    if isinstance(text, dict) and not settings.keys() & document.keys():
        return {**document, "text_config": {**text, **settings}}
    return {**document, **settings}


def changed_names(plan: Plan) -> frozenset[str]:
    """Return the tensors of a plan that the adapter changes, adds or replaces."""
    if plan.merged is None:
        return frozenset()
    adapter = len(plan.sources) - 1
    reads = ((tensor.name, {number for number, _ in tensor.recipe.files()}) for tensor in plan.tensors)
    return frozenset(name for name, numbers in reads if adapter in numbers)
