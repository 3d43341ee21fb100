"""Read the adapter_config.json of a LoRA (peft 0.21, `tuners/lora/config.py`)."""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from math import sqrt
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, Strict, StrictBool, ValidationError

from sharding.core.bounds import Line
from sharding.core.errors import SourceError
from sharding.core.limits import MAX_PATTERN_CHARACTERS, MAX_REPEATS
from sharding.core.text import as_object

ADAPTER_NAME = "adapter_config.json"
ALL_LINEAR = "all-linear"  # As `target_modules`: every linear layer except the output head.


def _listed(value: Any) -> Any:
    return [] if value is None else [value] if isinstance(value, str | int) else value


def _flag(value: Any) -> Any:
    return bool(value) if value in (None, 0, 1) else value


def _without_huge_repeats(pattern: str) -> str:
    pairs = re.findall(r"\{(\d*),?(\d*)\}", pattern, re.ASCII)
    if any(len(number) > 4 or int(number or 0) > MAX_REPEATS for pair in pairs for number in pair):
        raise ValueError(f"it repeats more than {MAX_REPEATS:,} times")
    return pattern


_OrEmpty = BeforeValidator(lambda value: {} if value is None else value)
Flag = Annotated[StrictBool, BeforeValidator(_flag)]  # PEFT takes null and 0 for false.
Pattern = Annotated[str, Field(max_length=MAX_PATTERN_CHARACTERS), AfterValidator(_without_huge_repeats)]
Many = Annotated[tuple[Pattern, ...], BeforeValidator(_listed), Field(max_length=10_000)]
Few = Annotated[tuple[Pattern, ...], BeforeValidator(_listed), Field(max_length=100)]
Positive = Annotated[int, Strict(), Field(gt=0, lt=1_000_000)]
Number = Annotated[float, Strict(), Field(ge=-1e6, le=1e6)]

_REFUSED = {
    "alora_invocation_tokens": "an activated LoRA, which works on some tokens only",
    "use_qalora": "a QALoRA",
    "arrow_config": "an Arrow LoRA, which chooses between adapters for each token",
    "kasa_config": "a KaSA adapter",
    "use_bdlora": "a block-diagonal LoRA",
    "layer_replication": "a LoRA that repeats layers",
    "megatron_config": "a LoRA for Megatron's parallel layers",
}
"""Keys that make an adapter one that a sum of its base and low-rank updates does not equal."""
_HARMLESS_KEYS = {
    # Of PEFT 0.21. A merge does not read them, or they say only how the training started or ran.
    *("peft_type", "peft_version", "revision", "inference_mode", "lora_dropout", "fan_in_fan_out", "bias"),
    *("lora_bias", "megatron_core", "loftq_config", "eva_config", "corda_config", "lora_ga_config"),
    *("qalora_group_size", "runtime_config", "velora_config", "monteclora_config"),
    "merge_weights",  # of older versions of PEFT: a module is merged as it is loaded, or not
    *("lora_dtype", "lorap_lr_ratio", "lorap_emb_lr"),  # of ms-swift: the dtype and the learning rates of the training
    *("unsloth_fixed", "unsloth_version"),  # of Unsloth: its version, and whether it changed the base's configuration
}
"""Keys that do not change the result of a merge, beside those that are read or refused."""
_OF_PATTERNS = ("rank_pattern", "alpha_pattern", "modules_to_save", "layers_pattern")
"""Keys whose entries are regular expressions."""

_GROUPED, _RANK_MAJOR = "grouped_by_expert", "rank_major"
"""What Unsloth calls the two orders of the columns of `lora_B` for fused experts. The second is PEFT's."""
_INITIALIZED = re.compile(r"pissa|olora|corda|loftq", re.IGNORECASE)
"""Ways to initialize that replace the weights of the base. Loading such an adapter computes them anew."""
_HARMLESS = ("gaussian", "eva", "orthogonal", "lora_ga", "mica", "true", "false")
"""Ways to initialize that leave the base as it is."""


_Q_AND_V = "llama llama4 mistral mixtral stablelm gemma gemma2 gemma3_text qwen2 qwen3 bart opt gptj gpt_neo"
USUAL_TARGETS: dict[str, tuple[str, ...] | str] = {
    **dict.fromkeys(_Q_AND_V.split(), ("q_proj", "v_proj")),
    **dict.fromkeys(["bert", "roberta", "xlm-roberta", "electra", "layoutlm"], ("query", "value")),
    **dict.fromkeys(["bloom", "gpt_neox", "chatglm", "RefinedWebModel", "RefinedWeb", "falcon"], ("query_key_value",)),
    **dict.fromkeys(("t5", "mt5"), ("q", "v")),
    **dict.fromkeys(("gpt2", "gpt_bigcode"), ("c_attn",)),
    "blip-2": ("q", "v", "q_proj", "v_proj"),
    "deberta-v2": ("query_proj", "value_proj"),
    "deberta": ("in_proj",),
    "mpt": ("Wqkv",),
    "btlm": ("c_proj", "c_attn"),
    "codegen": ("qkv_proj",),
    "phi": ("q_proj", "v_proj", "fc1", "fc2"),
    "gemma4": r".*language_model\..*\.(q_proj|v_proj)",
    "nemotron_h": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "rwkv": ("key", "value", "receptance", "output"),
    "rwkv7": ("r_proj", "k_proj", "v_proj", "o_proj", "key", "value"),
}
"""What PEFT 0.21 targets in each type of model if target_modules is null (its `utils/constants.py`)."""


Match = Callable[[str, str], Any]
"""Returns what matches a regular expression with a whole text, or None. `checkpoint.patterns` has one."""
_PLAIN = re.compile(r"[\w-]+(?:\.[\w-]+)*", re.ASCII)


def _is_plain(pattern: str) -> bool:
    """Return whether a regular expression is a name, whose dots match any character."""
    return _PLAIN.fullmatch(pattern) is not None


def endings(name: str) -> Iterator[str]:
    """Yield a name, and what follows each of its dots, from the shortest on.

    >>> list(endings("h.0.attn"))
    ['attn', '0.attn', 'h.0.attn']
    """
    place = len(name)
    while (place := name.rfind(".", 0, place)) >= 0:
        yield name[place + 1 :]
    yield name


class Endings:
    """Regular expressions for the end of a module's name, after a dot. PEFT takes the first that matches."""

    def __init__(self, patterns: Iterable[str]) -> None:
        """Take `patterns`. An earlier one counts before a later one."""
        self._numbers = {pattern: number for number, pattern in enumerate(patterns)}
        self._other = [pattern for pattern in self._numbers if not _is_plain(pattern)]
        self._dotted: dict[int, list[str]] = {}
        for pattern in self._numbers:
            if "." in pattern and _is_plain(pattern):
                self._dotted.setdefault(len(pattern), []).append(pattern)
        self._most_dots = {
            size: max(pattern.count(".") for pattern in patterns) for size, patterns in self._dotted.items()
        }

    def first(self, module: str, match: Match) -> str | None:
        """Return the first pattern that matches the end of `module`, None if none does."""
        ends = list(endings(module))
        # A dot also matches another character. Only a name with more dots can do that.
        dotted = [self._dotted[len(end)] for end in ends if end.count(".") < self._most_dots.get(len(end), 0)]
        equal = {end for end in ends if end in self._numbers and _is_plain(end)}
        for pattern in sorted(equal.union(self._other, *dotted), key=self._numbers.__getitem__):
            if pattern in equal or match(rf"(.*\.)?({pattern})", module):
                return pattern
        return None


def _ends_in(module: str, names: frozenset[str]) -> bool:
    """Return whether one of `names` is `module`, or follows one of its dots."""
    return not names.isdisjoint(endings(module))


class LoraConfig(BaseModel):
    """What an adapter_config.json says about a merge. Fields are named as there."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    r: Positive = 8
    lora_alpha: Number = 8
    target_modules: Pattern | Many | None = None
    exclude_modules: Pattern | Many | None = None
    target_parameters: Many = ()
    layers_to_transform: Annotated[tuple[int, ...], BeforeValidator(_listed), Field(max_length=10_000)] = ()
    layers_pattern: Few = ()
    modules_to_save: Few = ()
    rank_pattern: Annotated[dict[Pattern, Positive], _OrEmpty, Field(max_length=10_000)] = {}
    alpha_pattern: Annotated[dict[Pattern, Number], _OrEmpty, Field(max_length=10_000)] = {}
    trainable_token_indices: list[int] | Annotated[dict[str, list[int]], Field(max_length=1000)] | None = None
    use_rslora: Flag = False
    use_dora: Flag = False
    ensure_weight_tying: Flag = False
    task_type: Line | None = None
    init_lora_weights: bool | str | None = True
    base_model_name_or_path: Line | None = None
    lora_B_layout: Any = None
    unsloth_fused_expert_lora: Any = None
    auto_mapping: Any = None
    unknown: tuple[str, ...] = ()  # Keys that nobody here knows, and that may change the result of a merge.

    def groups_by_expert(self, parameter: str) -> bool:
        """Return whether the columns of `lora_B` are all of the first expert, then of the second.

        `parameter` is what it updates in the experts, such as "down_proj". PEFT has the first column of each expert,
        then the second of each. Unsloth had not before September 2026. It marks its adapters since then. Raises
        SourceError if the marks contradict each other, or if Unsloth may have saved the adapter before.
        """
        stated = set()
        places = {"lora_B_layout": self.lora_B_layout, "unsloth_fused_expert_lora": self.unsloth_fused_expert_lora}
        copies = as_object(self.auto_mapping)
        for marks in (places, copies):
            detail = as_object(marks.get("unsloth_fused_expert_lora"))
            for key in ("parameters", parameter):
                detail = as_object(detail.get(key))
            whole, of_parameter = marks.get("lora_B_layout"), detail.get("lora_B_layout")
            stated |= {str(whole if whole == "mixed" else of_parameter or whole)[:50]} - {"None"}
        if stated in ({_GROUPED}, {_RANK_MAJOR}):
            return stated == {_GROUPED}
        if not stated and not copies.get("unsloth_fixed"):
            return False
        says = f"says {' and '.join(sorted(stated))}" if stated else "does not say it, and Unsloth saved two of them"
        raise SourceError(
            f"The order of the columns of lora_B for the experts' {parameter} is unknown: {ADAPTER_NAME} {says}.",
            f"Save the adapter again with a current Unsloth. Or, if you know the order, set lora_B_layout in "
            f"{ADAPTER_NAME} to {_GROUPED} (Unsloth before September 2026) or {_RANK_MAJOR} (PEFT).",
        )

    def for_type(self, model_type: str) -> "LoraConfig":
        """Return it with the modules that PEFT targets in such a model, if it names none."""
        if self.target_modules is not None or model_type not in USUAL_TARGETS:
            return self
        return self.model_copy(update={"target_modules": USUAL_TARGETS[model_type]})

    @property
    def patterns(self) -> Iterator[tuple[str, str]]:
        """The regular expressions in it that are more than a name, each with its key."""
        for key in ("target_modules", "exclude_modules", *_OF_PATTERNS):
            value = getattr(self, key)
            patterns = [value] if isinstance(value, str) else value if key in _OF_PATTERNS else []
            yield from ((key, pattern) for pattern in patterns if not _is_plain(pattern))

    def rank_of(self, module: str, match: Match) -> int:
        """Return the rank of `module`."""
        pattern = self._ranks.first(module, match)
        return self.r if pattern is None else self.rank_pattern[pattern]

    def scale_of(self, module: str, rank: int, match: Match) -> float:
        """Return the factor of the product of its two matrices."""
        pattern = self._alphas.first(module, match)
        alpha = self.lora_alpha if pattern is None else self.alpha_pattern[pattern]
        return alpha / (sqrt(rank) if self.use_rslora else rank)

    def targets(self, module: str, match: Match) -> bool:
        """Return whether PEFT adds a low-rank update to `module`, named as in memory, which is no output head."""
        if isinstance(self.exclude_modules, str):
            if self.exclude_modules and match(self.exclude_modules, module):
                return False
        elif _ends_in(module, self._excluded):
            return False
        if not self.target_modules or any(self._is_inside(module, saved, match) for saved in self.modules_to_save):
            return False
        if isinstance(self.target_modules, str):
            if self.target_modules.lower() == ALL_LINEAR:
                return module.rpartition(".")[2] not in ("lm_head", "output_layer", "embed_out")
            return match(self.target_modules, module) is not None
        if not _ends_in(module, self._targets):
            return False
        # A name that is in the list as a whole counts in every layer.
        return module in self._targets or not self.layers_to_transform or self._is_in_layers(module, match)

    def _is_inside(self, module: str, saved: str, match: Match) -> bool:
        if _is_plain(saved) and "." not in saved:
            return f".{saved}." in f".{module}."
        return match(rf"(^|.*\.){saved}($|\..*)", module) is not None

    def targets_parameter(self, name: str) -> bool:
        """Return whether PEFT adds a low-rank update to the parameter `name` as such."""
        return _ends_in(name, self._parameters)

    # Made once, because a model may have a hundred thousand modules.
    _ranks = cached_property(lambda self: Endings(self.rank_pattern))
    _alphas = cached_property(lambda self: Endings(self.alpha_pattern))
    _targets = cached_property(lambda self: frozenset(self.target_modules or ()))
    _excluded = cached_property(lambda self: frozenset(self.exclude_modules or ()))
    _parameters = cached_property(lambda self: frozenset(self.target_parameters))
    _layers = cached_property(lambda self: frozenset(self.layers_to_transform))

    def _is_in_layers(self, module: str, match: Match) -> bool:
        forms = [rf"(?:^|.*?\.){layers}\.(?P<idx>\d+)\..*" for layers in self.layers_pattern if layers]
        forms = forms or [r".*?\.[^.]*\.(?P<idx>\d+)\..*"]
        place = next(filter(None, (match(form, module) for form in forms)), None)
        return place is not None and int(place[0]) in self._layers

    def tokens_of(self, module: str) -> tuple[int, ...] | None:
        """Return which rows of the embedding `module` are replaced, or None if the configuration does not say."""
        indices = self.trainable_token_indices
        if isinstance(indices, dict):
            return next((tuple(rows) for name, rows in indices.items() if f".{module}".endswith(f".{name}")), None)
        return tuple(indices) if indices is not None else None

    @property
    def rounds_twice(self) -> bool:
        """Whether PEFT rounds the change of a linear layer before it adds it."""
        return isinstance(self.init_lora_weights, str) and self.init_lora_weights.lower() == "mica"


def named_base(document: Any) -> str:
    """Return the base that an adapter_config.json names: a repo, or the last part of a path on somebody's disk."""
    name = str(as_object(document).get("base_model_name_or_path") or "")[:200]
    return re.split(r"[\\/]", name.rstrip("\\/"))[-1] if re.match(r"[./~\\]|[A-Za-z]:", name) else name


def parse_config(document: Any) -> LoraConfig:
    """Return the configuration in an adapter_config.json. Raises SourceError for a kind that is not merged as a sum."""
    if not isinstance(document, dict):
        raise SourceError(f"{ADAPTER_NAME} does not hold a valid JSON object.", "Save the adapter again with PEFT.")
    kind = document.get("peft_type")
    if str(kind).upper() != "LORA":
        message = f"This adapter has the peft_type {str(kind)[:100]}. Only LORA can be merged here."
        raise SourceError(message, "Merge it with PEFT, if its type can be merged.")
    if odd := next((key for key in _REFUSED if document.get(key) not in (None, False, [])), None):
        message = f"This is {_REFUSED[odd]} ({odd}). It cannot be merged."
        raise SourceError(message, "Load it with PEFT beside its base.")
    start = document.get("init_lora_weights")
    if isinstance(start, str) and _INITIALIZED.match(start):
        raise SourceError(
            f"This adapter was initialized with {start[:100]}, which changes the base. Loading it computes these "
            "changes anew, with other bits on another machine.",
            "Save it again with path_initial_model_for_weight_conversion, which turns it into an ordinary LoRA.",
        )
    if isinstance(start, str) and start.lower() not in _HARMLESS:
        message = f"{ADAPTER_NAME} has init_lora_weights {start[:100]!r}, which this tool does not know."
        raise SourceError(message, "Merge it with PEFT.")
    known = {*LoraConfig.model_fields, *_REFUSED, *_HARMLESS_KEYS} - {"unknown"}
    unknown = tuple(key for key, value in document.items() if key not in known and value not in (None, False, [], {}))
    try:
        return LoraConfig.model_validate({**document, "unknown": unknown})
    except ValidationError as error:
        first = error.errors()[0]
        where, what = str(first["loc"][0])[:200], first["msg"].removeprefix("Value error, ")
        message = f"{ADAPTER_NAME} is not valid: {where}: {what}: {str(first['input'])[:100]!r}."
        raise SourceError(message, "Save it again with PEFT.") from error
