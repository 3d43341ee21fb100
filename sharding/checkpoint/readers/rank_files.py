"""Read the files of `torch.save` that the ranks of a training run wrote, one a rank: of verl, SkyRL and accelerate."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from math import prod
from threading import Lock
from typing import Self

from typing_extensions import override

from sharding.checkpoint.documents import read_json
from sharding.checkpoint.readers.reader import Found, Weights
from sharding.checkpoint.readers.safetensors import too_many_tensors
from sharding.checkpoint.readers.torch_bin import box_of
from sharding.checkpoint.state_dict import final_names, findings_on_run
from sharding.core.dtypes import BY_TORCH, item_bytes
from sharding.core.errors import SourceError
from sharding.core.protocols import Files
from sharding.core.text import as_object, name_some
from sharding.core.threads import readers
from sharding.core.values import FileEntry, Finding
from sharding.formats.inert_pickle import InertMachine
from sharding.formats.names import CONFIG_NAME
from sharding.formats.rank_boxes import ALL_RANKS, SavedBoxes, assemble
from sharding.formats.rank_pieces import FLAT, Numbers, RankTensor, parse_rank
from sharding.formats.torch_file import Reader as Archive
from sharding.formats.torch_file import ZipRefused, open_zip
from sharding.formats.torch_globals import PickleRefused
from sharding.model_class.class_table import EMBEDDINGS, HEADS, ties
from sharding.recipes.laid import Box, Laid, is_contiguous

_LOCAL = "Save the checkpoint again with SHARDED_STATE_DICT, or export the model with the trainer."
_MOST_COMPARED_BYTES = 64 << 20  # Of a tensor whose archive states no checksum of it.
_FSDP_CONFIG = "fsdp_config.json"


RANK_NAME = re.compile(
    r"model_world_size_(?P<ranks>[1-9]\d{0,5})_rank_(?P<rank>0|[1-9]\d{0,5})\.pt"
    r"|pytorch_model_fsdp(?P<model>(?:_\d+)?)_rank(?P<number>0|[1-9]\d{0,5})\.bin",
    re.ASCII,
)
"""Names such as `model_world_size_4_rank_0.pt`, and accelerate's `pytorch_model_fsdp_0_rank0.bin`."""


def by_rank(path: str) -> tuple[str, int]:
    """Return the key to sort such files: the save or the model, and the rank."""
    match = RANK_NAME.fullmatch(path)
    assert match is not None
    return match["ranks"] or match["model"] or "", int(match["rank"] or match["number"])


def read_rank_files(found: Found) -> Weights:
    """Return the weights that verl, SkyRL and accelerate save."""
    files = _of_one_save(found)
    ranks = len(files)
    with readers(found.source.ranges_at_once) as pool:
        of_ranks = list(pool.map(partial(_read_rank, found, ranks), range(ranks), files))
    tensors: dict[str, list[_Held]] = {}
    for held, _ in of_ranks:
        for name, one in held.items():
            tensors.setdefault(name, []).append(one)
    names = final_names({name: name for name in tensors}, ())
    if drop := _tied_head(found, names, tensors):
        names.pop(drop)
    joined = assemble(_joined(found.source, names[name], name, tensors[name], ranks) for name in names)
    trainer = "verl or SkyRL" if files[0].path.endswith(".pt") else "accelerate"
    findings = list(findings_on_run(found.source, files, joined, {}, of_ranks[0][1], names, trainer))
    if drop:
        findings.append(Finding("info", "tied", f"Tied weights are written once. Left out: {drop}."))
    return Weights(files, joined, findings)


def _of_one_save(found: Found) -> list[FileEntry]:
    saves: dict[str, list[FileEntry]] = {}
    for file in found.files:
        saves.setdefault(by_rank(file.path)[0], []).append(file)
    which = next(iter(saves))
    if len(saves) > 1:
        config = as_object(read_json(found.source, _FSDP_CONFIG))
        which = str(config.get("world_size"))
        if which not in saves:
            first = name_some([files[0].path for files in saves.values()])
            message = f"The folder has rank files of several saves or models, such as {first}."
            raise SourceError(message, "Keep the files of each one in their own folder.")
    files, last = saves[which], saves[which][-1].path
    numbers = [by_rank(file.path)[1] for file in files]
    ranks = int(which) if which.isdecimal() else 1 + numbers[-1]
    if numbers[-1] >= ranks:
        raise SourceError(f"{last} has a rank beyond its world size of {ranks}.", ALL_RANKS)
    if missing := ranks - len(numbers):
        start, _, end = last.rpartition(str(numbers[-1]))
        gone = [f"{start}{rank}{end}" for rank in range(ranks) if rank not in numbers]
        raise SourceError(f"{missing} of the {ranks} rank files are missing: {name_some(gone)}.", ALL_RANKS)
    return files


@dataclass(frozen=True, slots=True)
class _Held:
    """What one rank holds of a tensor: boxes in its `file`, and what its archive says of the bytes of a whole one."""

    file: FileEntry
    tensor: RankTensor
    boxes: tuple[Box, ...]
    crc32: int


_ALONE = Lock()


class _Alone(InertMachine):
    """Follows the instructions of one file at a time, because hostile ones take much memory."""

    @override
    def run(self) -> Self:
        with _ALONE:
            return super().run()


def _read_rank(found: Found, ranks: int, rank: int, file: FileEntry) -> tuple[dict[str, _Held], list[str]]:
    try:
        value, locate = open_zip(Archive(found.source, file), _Alone)
        tensors, others = parse_rank(value, rank, ranks)
        if len(tensors) > found.most_tensors:
            raise too_many_tensors(found.source, found.most_tensors)
        places = locate(piece.storage for tensor in tensors.values() for _, piece in tensor.pieces)
        held = {}
        for name, tensor in tensors.items():
            boxes, crc32 = [], 0
            for offsets, piece in tensor.pieces:
                place = places[piece.storage.key]
                box = box_of(name, piece, place, file, offsets)
                is_all = prod(box.shape) * item_bytes(piece.dtype) == place.bytes
                crc32 = place.crc32 if is_all and is_contiguous(box.shape, box.strides) else 0
                boxes.append(box)
            held[name] = _Held(file, tensor, tuple(boxes), crc32)
        return held, others
    except (PickleRefused, ZipRefused) as error:
        hint = _LOCAL if FLAT in str(error) else ALL_RANKS
        raise SourceError(f"{file.path}, the file of rank {rank}, cannot be read: {error}.", hint) from error


def _joined(source: Files, name: str, saved: str, held: Sequence[_Held], ranks: int) -> SavedBoxes:
    """Return the pieces that all ranks `held` of a tensor, each once. Raises SourceError if the ranks disagree."""
    first = held[0]
    for one in held[1:]:
        if replace(one.tensor, pieces=()) != replace(first.tensor, pieces=()):
            files = f"{first.file.path} and {one.file.path}"
            raise SourceError(f"{saved} has another shape or dtype, or is cut in another way, in {files}.", ALL_RANKS)
    if len(held) < ranks:
        raise SourceError(f"{saved} is in {len(held)} of the {ranks} rank files only.", ALL_RANKS)
    for other in held[1:] if first.tensor.is_whole else ():
        _refuse_other_bytes(source, saved, first, other)
    # Ranks that hold copies of one piece have it at the same place.
    boxes = {(box.offsets, box.shape): box for one in reversed(held) for box in one.boxes}
    if not boxes:
        raise SourceError(f"No rank holds a piece of {saved}.", ALL_RANKS)
    return SavedBoxes(name, BY_TORCH[first.tensor.dtype].name, first.tensor.shape, list(boxes.values()))


def _refuse_other_bytes(source: Files, name: str, one: _Held, other: _Held) -> None:
    """Raise SourceError if a tensor that every rank holds as a whole is not the same in two of their files."""
    if one.crc32 and other.crc32:
        is_same = one.crc32 == other.crc32
    else:
        if prod(one.tensor.shape) * item_bytes(one.tensor.dtype) > _MOST_COMPARED_BYTES:
            message = f"{name} is whole in the file of each rank, and too large to compare."
            raise SourceError(message, "Save the checkpoint again with torch.distributed.checkpoint.")
        is_same = _bytes_of(source, one) == _bytes_of(source, other)
    if not is_same:
        message = f"{name} is whole in the file of each rank, but differs in {one.file.path} and {other.file.path}."
        raise SourceError(message, ALL_RANKS)


def _bytes_of(source: Files, held: _Held) -> tuple[Numbers, bytes]:
    recipe = Laid(held.boxes, held.tensor.shape, item_bytes(held.tensor.dtype))
    reads = (source.read(held.file.path, extent.start_byte, extent.end_byte) for extent in recipe.reads())
    return held.boxes[0].strides, b"".join(chain.from_iterable(reads))


def _tied_head(found: Found, names: Mapping[str, str], tensors: Mapping[str, Sequence[_Held]]) -> str:
    """Return the output head that is the embeddings, with the same bytes, if config.json ties both; else ""."""
    if ties(read_json(found.source, CONFIG_NAME)) is not True:
        return ""
    places = {name: tuple(one.boxes for one in tensors[name]) for name in names}
    words = {places[name] for name in names if EMBEDDINGS.search(name)}
    return next((name for name in names if HEADS.search(name) and places[name] in words), "")
