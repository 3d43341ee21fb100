"""Read the names of the tensors in an adapter, as PEFT 0.21 writes them. Pure."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from sharding.core.errors import SourceError
from sharding.core.limits import MAX_ADAPTER_NAME
from sharding.core.text import count, name_some

PREFIX = "base_model.model."

Kind = Literal["a", "b", "embedding_a", "embedding_b", "b_bias", "magnitude", "tokens", "whole", "ignored"]
"""What a tensor of an adapter is: one of the two matrices of an update (an embedding has its own), the update of a
bias, the lengths of a DoRA, new rows of an embedding, a new tensor in place of one of the base, or unused by PEFT."""

_KINDS: tuple[tuple[str, Kind], ...] = (
    (r"\.lora_A(?:\.default)?\.weight", "a"),
    (r"\.lora_B(?:\.default)?\.weight", "b"),
    (r"\.lora_B(?:\.default)?\.bias", "b_bias"),
    (r"\.lora_embedding_A(?:\.default)?", "embedding_a"),
    (r"\.lora_embedding_B(?:\.default)?", "embedding_b"),
    (r"\.lora_magnitude_vector(?:(?:\.default)?\.weight)?", "magnitude"),
    (r"(?:\.token_adapter)?\.trainable_tokens_delta(?:\.default)?", "tokens"),
    (r"\.(?:modules_to_save(?:\.default)?|original_module)\.[^.]+", "ignored"),
)
_OF_BASE = re.compile(r"(?:\.token_adapter)?\.base_layer(?=\.(?:weight|bias)$)")
_UNKNOWN = re.compile(r"\.(?:lora_|(?:base_layer|modules_to_save|original_module|token_adapter)\.)")
_TOOLS = (
    ("kohya's scripts", re.compile(r"^lora_|\.lora_(?:down|up)\.|\.alpha$")),
    ("diffusers", re.compile(r"\.(?:lora|processor)\.|^(?:unet|text_encoder|transformer|diffusion_model)\.")),
)


@dataclass(frozen=True, slots=True)
class Part:
    """What the tensor `name` of an adapter is, and to which module, or tensor if it is `whole`, it belongs.

    A whole tensor that `is_wrapped` replaces one that has an update too.
    """

    name: str
    kind: Kind
    of: str
    is_wrapped: bool = False


def parts_of(names: Iterable[str]) -> list[Part]:
    """Return what each of `names` is. Raises SourceError for names of other tools, and for half of a pair.

    >>> parts_of(["base_model.model.h.0.q.lora_A.weight", "base_model.model.h.0.q.lora_B.weight"])[1]
    Part(name='base_model.model.h.0.q.lora_B.weight', kind='b', of='h.0.q', is_wrapped=False)
    """
    names = list(names)
    if long := next((name for name in names if len(name) > MAX_ADAPTER_NAME), None):
        message = f"The adapter has a name of {len(long):,} characters, which starts with {long[:100]}."
        raise SourceError(message, "Save the adapter again with PEFT.")
    if not names:
        raise SourceError("The adapter holds no tensors.", "Save the adapter again, or download it again.")
    if others := [name for name in names if not name.startswith(PREFIX)]:
        tool = next((tool for tool, form in _TOOLS if any(map(form.search, others))), "")
        raise SourceError(
            f"{count(len(others), 'tensor')} of the adapter {'has a name' if len(others) == 1 else 'have names'} of "
            f"{tool or 'another tool'}: {name_some(others)}. PEFT's names start with {PREFIX}",
            "Convert it to the format of PEFT first.",
        )
    parts = [_part(name) for name in names]
    seen: dict[tuple[str, Kind], str] = {}
    for part in parts:
        if part.kind != "ignored" and (other := seen.setdefault((part.of, part.kind), part.name)) != part.name:
            raise SourceError(f"The adapter has {other} and {part.name} for the same tensor.", "Keep only one of them.")
    _refuse_halves(parts)
    return parts


def _part(name: str) -> Part:
    short = name.removeprefix(PREFIX)
    for ending, kind in _KINDS:
        if match := re.search(f"{ending}$", short):
            return Part(name, kind, short[: match.start()])
    of = _OF_BASE.sub("", short)
    if _UNKNOWN.search(of):
        message = f"The adapter has {name}, which this tool does not know. So it cannot be merged."
        raise SourceError(message, "Merge it with PEFT.")
    return Part(name, "whole", of, of != short)


def _refuse_halves(parts: list[Part]) -> None:
    kinds: dict[str, set[Kind]] = {}
    names = {part.name for part in parts}
    for part in parts:
        kinds.setdefault(part.of, set()).add(part.kind)
    for part in parts:
        if part.kind in ("a", "b", "embedding_a", "embedding_b"):
            one, other = ("A", "B") if part.kind.endswith("a") else ("B", "A")
            if part.kind[:-1] + other.lower() not in kinds[part.of]:
                raise _half(part.name, f"_{other}".join(part.name.rsplit(f"_{one}", 1)))
        if part.kind in ("b_bias", "magnitude") and not kinds[part.of] & {"a", "embedding_a"}:
            raise _half(part.name, f"{PREFIX}{part.of}.lora_A.weight")
        if part.kind == "ignored" and ".modules_to_save." in part.name:
            plain = re.sub(r"\.modules_to_save(?:\.default)?\.", ".", part.name)
            if plain not in names:
                raise _half(part.name, plain)


def _half(name: str, missing: str) -> SourceError:
    message = f"The adapter has {name}, but not {missing}. Half of a pair changes nothing."
    return SourceError(message, "Save the adapter again, or download it again.")
