"""Shard a small model of every architecture in every way, load the result, and write what was found into the docs.

`python -m tests.scenarios.every_repo` writes the table; a test holds it to what it finds itself.
"""

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel
from transformers.utils import logging

from sharding.core.dtypes import torch_name
from tests import pipelines
from tests.conftest import ROOT
from tests.folders import bits, reshard, tensors, weights
from tests.scenarios import architectures
from tests.scenarios.architectures import ARCHITECTURES

PAGE = ROOT / "docs/architectures.md"
BEGIN, END = "<!-- what was found: begin -->", "<!-- what was found: end -->"
SIZE = "20kB"
INDEX = "model.safetensors.index.json"
EQUAL, COUNT_DIFFERS, CUT_ELSEWHERE = "equal", "equal but for a count", "cut elsewhere"
DIFFERENT, NONE = "different", "–"


@dataclass(frozen=True)
class Way:
    """How a model is stored at first, and how it is sharded."""

    source: str = "safetensors"
    strategy: str = "size"
    dtype: str = "keep"
    order: str = "natural"

    @property
    def title(self) -> str:
        others = (word for word in (self.dtype, self.order) if word not in ("keep", "natural"))
        return ", ".join([self.source, self.strategy, *others])


WAYS = (Way(source=".bin"), Way(strategy="blocks"), Way(dtype="fp16"), Way(order="transformers"))
IN_EVERY_WAY = ("llama", "gpt2", "t5", "mixtral", "gpt_neox", "vit", "whisper")
CASES = (
    *((name, Way()) for name in ARCHITECTURES),
    *((name, way) for name in IN_EVERY_WAY for way in WAYS),
)
"""Every architecture in the usual way; some of every kind in all others."""


@dataclass(frozen=True)
class Row:
    """What holds of a result; `layout` says how its files are to those of `save_pretrained`."""

    layout: str
    bits_equal: bool
    loads: bool
    same_logits: bool

    def line(self, name: str, kind: str, way: Way) -> str:
        holds = ("yes" if held else "no" for held in (self.bits_equal, self.loads, self.same_logits))
        return f"| {name} | {kind} | {way.title} | {self.layout} | {' | '.join(holds)} |"


def found(name: str, way: Way) -> Row:
    """Save a model of architecture `name`, shard it in one way and compare the two."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory(prefix="every-") as place:
        source, out = Path(place, "source"), Path(place, "out")
        model = architectures.build(name)
        save(model, source, way.source)
        reshard(source, out, SIZE, strategy=way.strategy, order=way.order, dtype=way.dtype)
        theirs = type(model).from_pretrained(source, dtype=getattr(torch, torch_name(way.dtype) or "", "auto")).eval()
        ours, info = type(model).from_pretrained(out, output_loading_info=True)
        return Row(
            layout=compare_files(theirs, out, Path(place, "theirs")) if way.strategy == "size" else NONE,
            bits_equal=same_bits(stored(source), tensors(out)),
            loads=not any(info[problem] for problem in ("missing_keys", "unexpected_keys", "mismatched_keys")),
            same_logits=same_outputs(architectures.outputs(theirs), architectures.outputs(ours.eval())),
        )


def found_of_pipeline() -> Row:
    """Do the same with a pipeline of diffusers: loads and draws the same."""
    with tempfile.TemporaryDirectory(prefix="every-") as place:
        source, out = pipelines.save(Path(place, "source")), Path(place, "out")
        reshard(source, out, SIZE)
        parts = [path.parent for path in source.glob("*/*.safetensors")]
        one, other = (pipelines.image(folder) for folder in (source, out))
        return Row(
            layout=NONE,
            bits_equal=all(same_bits(tensors(part), tensors(out / part.name)) for part in parts),
            loads=other is not None,
            same_logits=np.array_equal(one, other),
        )


def save(model: PreTrainedModel, folder: Path, source: str) -> None:
    if source == "safetensors":
        model.save_pretrained(folder, max_shard_size="50kB")
    else:
        model.config.architectures = [type(model).__name__]
        model.config.dtype = model.dtype
        model.config.save_pretrained(folder)
        torch.save(model.state_dict(), folder / "pytorch_model.bin")


def compare_files(model: PreTrainedModel, out: Path, place: Path) -> str:
    """Return how weights and index are to what `save_pretrained` writes of the loaded original, byte for byte."""
    model.save_pretrained(place, max_shard_size=SIZE)
    ours, theirs = weights(out), weights(place)
    if ours == theirs:
        return EQUAL
    one, other = (json.loads(files.pop(INDEX)) for files in (ours, theirs))
    for index in (one, other):
        del index["metadata"]["total_parameters"]
    if (one, ours) == (other, theirs):
        return COUNT_DIFFERS
    return CUT_ELSEWHERE if same_bits(tensors(place), tensors(out)) else DIFFERENT


def stored(folder: Path) -> dict[str, torch.Tensor]:
    pickled = folder / "pytorch_model.bin"
    found: dict[str, torch.Tensor] = torch.load(pickled, weights_only=True) if pickled.exists() else tensors(folder)
    return found


def same_bits(before: Mapping[str, torch.Tensor], after: Mapping[str, torch.Tensor]) -> bool:
    """Return whether `after` has the bits of `before`, or of what `to()` makes of them.

    A name that stands for the memory of another, which is kept, may be missing: the two were tied.
    """
    kept = {before[name].data_ptr() for name in after}
    missing = [name for name in before if name not in after and before[name].data_ptr() not in kept]
    return not missing and all(bits(before[name].to(tensor.dtype)) == bits(tensor) for name, tensor in after.items())


def same_outputs(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) > 0 and all(map(torch.equal, one, other))


def table(say: Callable[[str], object]) -> str:
    lines = [
        "| architecture | kind | source, strategy | layout | bits equal | loads | same logits |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, way in CASES:
        lines.append(found(name, way).line(name, ARCHITECTURES[name].kind, way))
        say(lines[-1])
    lines.append(found_of_pipeline().line("stable-diffusion", "diffusers", Way()))
    return "\n".join(lines)


def in_docs() -> list[str]:
    return PAGE.read_text().partition(BEGIN)[2].partition(END)[0].strip().splitlines()[2:]


def main() -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{table(print)}\n{END}{after}")


if __name__ == "__main__":
    main()
