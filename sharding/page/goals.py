"""The goals that people come with, drawn in `assets/goals`: each says what it needs and chooses for a model. Pure."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from sharding.checkpoint.trained import needs_base
from sharding.core.options import SINGLE_FILE, Options
from sharding.core.origin import Role
from sharding.core.values import Content, Tensor
from sharding.formats.names import SINGLE_NAME
from sharding.planning.dequantize import offer
from sharding.planning.devices import Fit, needed, where_it_fits
from sharding.planning.sizes import colab_size, kept_size, usual_size

SAME = "is-this-copy-the-same"  # The goal that has a page of its own, without a plan.
OLLAMA = "ollama"  # The goal that takes the GGUF models of a repo.
_Chosen = Options | str  # The choices for a model, or the reason why the goal makes no sense for it.
_NOT_WIDE = "Most of its weights are not in fp32, so bf16 does not halve it."
_NOT_QUANTIZED = "Its weights are not quantized, or in a format that this tool cannot read."
_NO_RUN = "It is an ordinary model, not the files that a training run saved."
_A_RUN = "These are files of a training run. Make an ordinary model of them first."
_ADAPTER = "This is an adapter. Merge it into its base instead."
_NO_GGUF = "It has no GGUF files. Name a repo that has some: their names often end with GGUF."
_SEVERAL = (
    "This is a pipeline of several components. ComfyUI and kohya load a single file of another layout, "
    "which this page does not write. Each component can be one file: choose a size above its own."
)


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal, what it chooses for a model, and the ids of the `fields` of its form. It asks for the input in `role`.
    `source` is what the first field names. `answer` says how it is with a model as it is now."""

    title: str
    line: str
    words: str
    chooses: Callable[[Content], _Chosen]
    fields: tuple[str, ...] = ()
    role: Role | None = None
    is_likely: Callable[[Content], bool] = lambda _: False
    source: str = "Model"
    examples: tuple[str, ...] = ()
    answer: Callable[[Content], str] = lambda _: ""
    is_done: Callable[[Content], bool] = lambda _: False
    takes_gguf: bool = False

    def choose(self, checkpoint: Content) -> _Chosen:
        """Return the choices for a model, or the reason why the goal makes no sense for it."""
        if checkpoint.format == "gguf" and not self.takes_gguf:
            return "It is a GGUF model. Its tensors stay as they are."
        return self.chooses(checkpoint)


def largest_of(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of the largest tensor, 0 if there is none."""
    return max((tensor.bytes for tensor in tensors), default=0)


def usual(checkpoint: Content) -> str:
    """Return the size for a model if nobody has chosen one."""
    return usual_size(checkpoint.total_bytes, largest_of(checkpoint.tensors))


def _as_today(checkpoint: Content) -> str:
    """Return the size of today's largest file, or one file where it is the only one: the goal is not about sizes."""
    if len(checkpoint.weight_files) == 1 and not has_components(checkpoint):
        return SINGLE_FILE
    return kept_size(max((file.bytes for file in checkpoint.weight_files), default=0))


def _is_wide(checkpoint: Content) -> bool:
    wide = sum(tensor.bytes for tensor in checkpoint.tensors if tensor.dtype in ("F32", "F64"))
    return 2 * wide > checkpoint.total_bytes


def is_adapter(checkpoint: Content) -> bool:
    """Return whether a checkpoint is an adapter of PEFT without its base."""
    return checkpoint.library == "peft"


def has_components(checkpoint: Content) -> bool:
    """Return whether a checkpoint is a pipeline of several components with weights."""
    return len({tensor.folder for tensor in checkpoint.tensors}) > 1


def _is_quantized(checkpoint: Content) -> bool:
    return offer(checkpoint) is not None


def _colab(checkpoint: Content) -> _Chosen:
    if _is_wide(checkpoint):
        return Options(usual(checkpoint), dtype="fp16")  # a T4 has no bf16
    return Options(colab_size(checkpoint.total_bytes, largest_of(checkpoint.tensors)) or usual(checkpoint))


def _t4(checkpoint: Content) -> Fit:
    return next(fit for fit in where_it_fits(needed(checkpoint)) if fit.place == "T4")


def _fits_t4(checkpoint: Content) -> bool:
    return _t4(checkpoint).spare_bytes >= 0 and not _is_wide(checkpoint)


def _on_t4(checkpoint: Content) -> str:
    needs_none = " You need no copy for that." if _fits_t4(checkpoint) else ""
    return f"On a T4, as it is now: {_t4(checkpoint).words}.{needs_none}"


def _is_for_ollama(checkpoint: Content) -> bool:
    return checkpoint.format == "gguf" and len(checkpoint.weight_files) == 1


GOALS: Mapping[str, Goal] = {
    "slow-connection": Goal(
        "Smaller files",
        "Many small files instead of a few large ones",
        "Many small files instead of a few large ones. If a download breaks, you lose at most one of them.",
        lambda one: Options(usual(one)),
        ("size",),
        takes_gguf=True,
        is_likely=lambda one: not (one.of_ranks or is_adapter(one) or _is_quantized(one)),
        examples=("Qwen/Qwen3-8B", "mistralai/Mistral-7B-Instruct-v0.3", "HuggingFaceTB/SmolLM2-1.7B-Instruct"),
    ),
    "half-size": Goal(
        "Half the size",
        "32-bit weights become 16-bit (bf16)",
        "32-bit weights become 16-bit (bf16). The files need half the room.",
        lambda one: Options(_as_today(one), dtype="bf16") if _is_wide(one) else _NOT_WIDE,
        is_likely=lambda one: _is_wide(one) and not one.of_ranks,
        examples=("google-t5/t5-large", "google/flan-t5-base"),
    ),
    "free-colab": Goal(
        "Fit my GPU or Colab",
        "For a small GPU, as on free Colab (T4)",
        "Files for a free machine with a T4. 32-bit weights become 16-bit (fp16); all others stay as they are.",
        _colab,
        ("size",),
        examples=("Qwen/Qwen3-8B", "google-t5/t5-large"),
        answer=_on_t4,
        is_done=_fits_t4,
    ),
    "one-file": Goal(
        "One file",
        "As ComfyUI and kohya load it",
        f"All weights in one {SINGLE_NAME}. ComfyUI and kohya load such a file.",
        lambda one: _SEVERAL if has_components(one) else Options(SINGLE_FILE),
        is_likely=lambda one: len(one.weight_files) > 1 and not (one.of_ranks or has_components(one)),
        examples=("mistralai/Mistral-7B-Instruct-v0.3", "Qwen/Qwen3-8B"),
    ),
    OLLAMA: Goal(
        "One file for ollama",
        "A GGUF model in parts becomes one file",
        "ollama cannot pull a GGUF model that is cut into several files. This makes one file of them.",
        lambda one: Options(SINGLE_FILE, format="gguf") if one.format == "gguf" else _NO_GGUF,
        takes_gguf=True,
        is_likely=lambda one: one.format == "gguf" and len(one.weight_files) > 1,
        answer=lambda one: "It is one file already, so ollama pulls it as it is." if _is_for_ollama(one) else "",
        is_done=_is_for_ollama,
    ),
    "unquantize": Goal(
        "Ordinary weights",
        "Quantized weights become 16-bit again",
        "Weights of 8 or 4 bits become 16-bit (bf16): for training, and for tools that cannot read them.",
        lambda one: Options(_as_today(one), dequantize=True) if _is_quantized(one) else _NOT_QUANTIZED,
        is_likely=_is_quantized,
        examples=("Qwen/Qwen3-0.6B-FP8", "openai/gpt-oss-20b"),
    ),
    "merge-lora": Goal(
        "Merge my LoRA",
        "Adapter and base become one model",
        "An adapter becomes part of its base model. The result loads like any model, without PEFT.",
        lambda one: _A_RUN if needs_base(one) else Options(_as_today(one), dequantize=_is_quantized(one)),
        ("adapter",),
        "adapter",
        is_likely=is_adapter,
        source="Base model (or only the adapter)",
        examples=("ybelkada/opt-350m-lora",),
    ),
    "make-it-load": Goal(
        "Make it load again",
        "The names and form of its original",
        "A model that a trainer saved gets the names, form and parts of the model that it was trained from.",
        lambda one: _ADAPTER if is_adapter(one) else _A_RUN if needs_base(one) else Options(_as_today(one)),
        ("like",),
        "like",
        source="Model that does not load",
    ),
    "training-run": Goal(
        "My training run",
        "Files of many GPUs become one model",
        "The files that FSDP or torch.distributed saved, one or more a GPU, become a model that loads.",
        lambda one: Options(usual(one)) if one.of_ranks else _NO_RUN,
        ("base",),
        is_likely=lambda one: one.of_ranks,
        source="Repo with the files of the run",
    ),
    "two-machines": Goal(
        "Several machines",
        "Each loads only its part of the layers",
        "Each machine downloads and loads only its own part of the layers.",
        lambda one: Options(usual(one), strategy="pp:2"),
        ("size", "machines"),
        examples=("Qwen/Qwen3-8B", "mistralai/Mistral-7B-Instruct-v0.3"),
    ),
    SAME: Goal(
        "Is this copy the same?",
        "Compare any two repos",
        "Two repos are compared: the names, shapes and number formats of their tensors, and every byte if you like.",
        lambda _: "It compares two models, and makes no copy.",
        takes_gguf=True,
    ),
}
"""By the name in a link: `?goal=one-file`."""


def goal_for(options: Options) -> str:
    """Return the goal that asks for an input which `options` name, or for GGUF files, "" if none does."""
    if options.format:
        return OLLAMA
    return next((name for name, goal in GOALS.items() if goal.role in options.inputs), "")


def role_asked(goal: str | None) -> Role | None:
    """Return the role of the input that a goal asks for, None if it asks for none."""
    return GOALS[goal].role if goal and goal in GOALS else None


def sole_goal(checkpoint: Content) -> str:
    """Return the goal that everybody with such a model has, "" if they differ."""
    if is_adapter(checkpoint) and "/" in checkpoint.named_base:
        return "merge-lora"
    return "training-run" if checkpoint.of_ranks else ""


def is_vain(name: str | None, checkpoint: Content) -> bool:
    """Return whether the goal makes no sense for a model, or needs no copy of it."""
    goal = GOALS.get(name or "")
    return goal is not None and (isinstance(goal.choose(checkpoint), str) or goal.is_done(checkpoint))


def goals_of(checkpoint: Content) -> list[str]:
    """Return the goals that make sense for a model, first the likeliest."""
    fitting = [name for name, goal in GOALS.items() if isinstance(goal.choose(checkpoint), Options)]
    if is_adapter(checkpoint):
        return [name for name in fitting if GOALS[name].role == "adapter"]
    return sorted(fitting, key=lambda name: not GOALS[name].is_likely(checkpoint))
