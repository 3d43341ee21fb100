"""Read, check and write the index of a checkpoint. Pure."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from sys import intern

from sharding.core.dtypes import CASTABLE
from sharding.core.errors import SourceError
from sharding.core.text import as_object, name_problem, name_some, parsed_json, shown_name
from sharding.core.values import Component, Finding, Plan, Tensor, folder_of


@dataclass(frozen=True, slots=True)
class Index:
    """An index file: the file of each tensor, and the count of parameters and the dtype if the index has them."""

    weight_map: Mapping[str, str]
    total_parameters: int | None
    dtype: str = ""


def parse_index(text: bytes, path: str) -> Index:
    """Return the index at `path`, with its folder before all names. Raises SourceError for what is not plain names."""
    hint = f"Download {path} again. Or delete it, and the shard files are read without it."
    folder = folder_of(path)
    suffix = ".bin" if ".bin." in path.removeprefix(folder) else ".safetensors"
    document = as_object(parsed_json(text))
    weight_map = as_object(document.get("weight_map"))
    if not weight_map or not all(isinstance(file, str) for file in weight_map.values()):
        raise SourceError(f"{path} is not JSON with a weight_map from tensor names to file names.", hint)
    for file in set(weight_map.values()):
        if not file.endswith(suffix) or name_problem(file) or re.search(r"[/\\\x00-\x1f]", file):
            moved = f"Put the weight files beside {path}, and name them in it without a folder."
            message = f"{path} names {file[:100]!r}, which is not a {suffix[1:]} file beside it."
            raise SourceError(message, moved if "/" in file else hint)
    for name in weight_map:
        if problem := name_problem(name):
            raise SourceError(f"{path} names the tensor {shown_name(name)}, whose name {problem}.", hint)
    metadata = as_object(document.get("metadata"))
    count, dtype = metadata.get("total_parameters"), metadata.get("dtype")
    dtype = dtype if dtype in [known.torch for known in CASTABLE.values()] else ""
    # There may be a hundred thousand entries for a few files, so all entries share the file names.
    weight_map = {folder + name: intern(folder + file) for name, file in weight_map.items()}
    return Index(weight_map, count if type(count) is int and count >= 0 else None, dtype)


def compare_with_index(index: Index, tensors: Iterable[Tensor], tied: Iterable[str] = ()) -> list[Finding]:
    """Return a finding for each kind of disagreement between an index and headers. `tied` names may be left out."""
    real = {tensor.name: tensor.file for tensor in tensors}
    if real == index.weight_map:  # nearly always true, and the rest is slow for a hundred thousand names
        return []
    known = set(tied)
    unlisted = [name for name in real if name not in index.weight_map]
    absent = [name for name in index.weight_map if name not in real and name not in known]
    elsewhere = [name for name, file in index.weight_map.items() if real.get(name, file) != file]
    findings = []
    for names, code, problem, result in (
        (unlisted, "index-unlisted-tensor", "in the files but not in the index", "kept"),
        (absent, "index-absent-tensor", "in the index but in no file", "missing in the copy"),
        (elsewhere, "index-wrong-file", "not in the file that the index names", "taken from the file that has them"),
    ):
        if names:
            message = f"{len(names)} tensors are {problem}: {name_some(names)}. They are {result}."
            findings.append(Finding("warning", code, message))
    return findings


def index_path(component: Component) -> str:
    """Return the path of the index of `component`, which exists if it has more than one file.

    >>> index_path(Component("unet/", "diffusion_pytorch_model", "fp16"))
    'unet/diffusion_pytorch_model.safetensors.index.fp16.json'
    """
    variant = f".{component.variant}" if component.variant else ""
    return f"{component.folder}{component.stem}.safetensors.index{variant}.json"


def index_paths(plan: Plan) -> list[str]:
    """Return the indexes of a copy: for each component with several shards one, and one for each rank."""
    shards = Counter(shard.folder for shard in plan.shards)
    several = [component for component in plan.components if shards[component.folder] > 1]
    ranks = len(plan.stages)
    of_ranks = (component.of_rank(rank, ranks) for component in several for rank in range(ranks))
    return [*map(index_path, several), *map(index_path, of_ranks)]


def build_indexes(plan: Plan) -> dict[str, bytes]:
    """Return the index files of `plan`, and of each rank, as `save_pretrained` of transformers 5.23 writes them."""
    documents: dict[str, bytes] = {}
    held = [(tensor, shard.file) for shard in plan.shards for tensor in shard.tensors]
    for component in plan.components:
        inside = [(tensor, file) for tensor, file in held if folder_of(file) == component.folder]
        documents[index_path(component)] = _build_index(component, inside)
        for rank, stage in enumerate(plan.stages):
            files, needed = set(stage.files), {tied.tensor for tied in stage.also_needs}
            loaded = [(tensor, file) for tensor, file in inside if file in files or tensor.name in needed]
            counted = replace(component, total_parameters=sum(tensor.parameters for tensor, _ in loaded))
            documents[index_path(component.of_rank(rank, len(plan.stages)))] = _build_index(counted, loaded)
    return {path: documents[path] for path in index_paths(plan)}


def _build_index(component: Component, held: Sequence[tuple[Tensor, str]]) -> bytes:
    folder, total_size = component.folder, sum(tensor.bytes for tensor, _ in held)
    weight_map = {tensor.name.removeprefix(folder): file.removeprefix(folder) for tensor, file in held}
    metadata = {"total_parameters": component.total_parameters, "total_size": total_size}
    return json.dumps({"metadata": metadata, "weight_map": weight_map}, indent=2, sort_keys=True).encode() + b"\n"
