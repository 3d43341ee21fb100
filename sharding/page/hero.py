"""Draw the picture of the home page: the map of a real model, from the shapes of its tensors. Pure."""

from collections.abc import Iterator
from functools import cache
from math import prod

from markupsafe import Markup

from sharding.core.options import Options
from sharding.core.text import count
from sharding.core.values import Checkpoint, Component, FileEntry, RepoRef, Tensor
from sharding.drawing.model_map import map_of_plan
from sharding.page.panels import map_panel
from sharding.page.render import render
from sharding.planning.plan import plan_shards
from sharding.recipes.stored import Stored

_NAME, _SIZE = "Mistral-7B-v0.1", "300MB"
_LAYERS, _HIDDEN, _KEYS, _INNER, _WORDS = 32, 4096, 1024, 14336, 32000
_ATTENTION = {"q": (_HIDDEN, _HIDDEN), "k": (_KEYS, _HIDDEN), "v": (_KEYS, _HIDDEN), "o": (_HIDDEN, _HIDDEN)}
_MLP = {"gate": (_INNER, _HIDDEN), "up": (_INNER, _HIDDEN), "down": (_HIDDEN, _INNER)}
_FILES = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
_LAST_IN_FIRST = 22
"""Of this layer only the attention is in the first file, and all layers after it are in the second."""


@cache
def hero() -> str:
    """Return the picture: the two files of Mistral-7B-v0.1 (bf16) today, and their copy."""
    tensors = tuple(_tensors())
    files = tuple(FileEntry(file, sum(tensor.bytes for tensor in tensors if tensor.file == file)) for file in _FILES)
    ref = RepoRef("hub", _NAME, "")
    model = Checkpoint(ref, tensors, (Component(),), files, side_files=(), findings=())
    plan = plan_shards(tensors, Options(_SIZE))
    return render(
        "hero",
        name=_NAME,
        size=_SIZE,
        today=count(len(files), "file"),
        after=f"{len(plan.shards)}",
        tensors=len(tensors),
        map=Markup(map_panel(map_of_plan(model, plan), _NAME, _SIZE, fits=False)),
    )


def _tensors() -> Iterator[Tensor]:
    """Yield the tensors in their order in the repo."""
    yield _tensor("model.embed_tokens", (_WORDS, _HIDDEN), is_first=True)
    for layer in range(_LAYERS):
        name, is_first = f"model.layers.{layer}", layer < _LAST_IN_FIRST
        for part, shape in _ATTENTION.items():
            yield _tensor(f"{name}.self_attn.{part}_proj", shape, is_first or layer == _LAST_IN_FIRST)
        for part, shape in _MLP.items():
            yield _tensor(f"{name}.mlp.{part}_proj", shape, is_first)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield _tensor(f"{name}.{norm}", (_HIDDEN,), is_first)
    yield _tensor("model.norm", (_HIDDEN,), is_first=False)
    yield _tensor("lm_head", (_WORDS, _HIDDEN), is_first=False)


def _tensor(module: str, shape: tuple[int, ...], is_first: bool) -> Tensor:
    return Tensor(f"{module}.weight", "BF16", shape, Stored(0, _FILES[not is_first], 0, 2 * prod(shape)))
