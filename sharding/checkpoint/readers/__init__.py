"""Readers of weight files, one room for each kind."""

import re
from collections.abc import Collection, Sequence

from sharding.checkpoint.foreign import refuse_megatron
from sharding.checkpoint.readers.dcp import read_dcp, read_rank_safetensors, refuse_several
from sharding.checkpoint.readers.rank_files import RANK_NAME, by_rank, read_rank_files
from sharding.checkpoint.readers.reader import Reader
from sharding.checkpoint.readers.safetensors import read_safetensors
from sharding.checkpoint.readers.torch_bin import read_torch_bin
from sharding.core.values import folder_of
from sharding.formats.names import DCP_METADATA_NAME, LOADED, RANK_SHARD_NAME, is_index, is_training_state

BESIDE_RUN = "huggingface/"
"""The folder beside the files of ranks in which verl and SkyRL save configuration and tokenizer."""
_STATE = re.compile(r"(?:^|/)(?:optimizer(?:_\d+)?|optim|lr_scheduler)/")  # Folders for what only training needs.

READERS = (
    Reader(RANK_SHARD_NAME, read_rank_safetensors, of_run=True, check=refuse_several),
    Reader(re.compile(re.escape(DCP_METADATA_NAME)), read_dcp, of_run=True, check=refuse_megatron),
    Reader(RANK_NAME, read_rank_files, of_run=True, order=by_rank),
    Reader(re.compile(r".*\.safetensors", re.DOTALL), read_safetensors),
    Reader(re.compile(r".*\.bin", re.DOTALL), read_torch_bin),
)
"""All kinds that are read."""


def reader_of(paths: Sequence[str], *, of_run: bool) -> Reader:
    """Return the reader for these files. Only `of_run`, a name that the ranks of a training run use means anything."""
    readers = (reader for reader in READERS if reader.of_run == of_run)
    return next(reader for reader in readers if all(map(reader.names.fullmatch, paths)))


def files_of_run(inside: Sequence[str]) -> list[str]:
    """Return what the ranks of a training run saved among the files `inside` a folder. Raises SourceError."""
    return next(filter(None, (reader.finds(inside) for reader in READERS if reader.of_run)), [])


def is_of_run(name: str) -> bool:
    """Return whether the ranks of a training run saved a file of this name (without its folder)."""
    return any(reader.of_run and reader.names.fullmatch(name) for reader in READERS)


def trained_folder(paths: Collection[str]) -> str | None:
    """Return the folder ("" or ending in "/") with the weights that the ranks of a training run saved.

    None stands for an ordinary repo, or several folders unless one alone is the top or has accelerate's name.

    >>> trained_folder(["optimizer_0/.metadata", "pytorch_model_fsdp_0/.metadata", "scheduler.bin"])
    'pytorch_model_fsdp_0/'
    """
    relevant = [path for path in paths if not (is_training_state(path) or _STATE.search(path))]
    top = (path for path in relevant if "/" not in path and not is_of_run(path))
    if any(is_index(name) or name.endswith((".safetensors", ".bin")) for name in top):
        return None
    folders = {folder_of(path) for path in relevant if is_of_run(path.rpartition("/")[2])}
    if sum(re.fullmatch(r"pytorch_model_fsdp_\d+/", folder) is not None for folder in folders) > 1:
        return None  # accelerate numbers the models of one run
    known = [folder for folder in ("", "pytorch_model_fsdp_0/") if folder in folders]
    found = known[0] if known else folders.pop() if len(folders) == 1 else None
    # verl can save the ordinary model too.
    whole = f"{found}{BESIDE_RUN}"
    is_whole = any(path.startswith(whole) and path.endswith(LOADED) for path in relevant)
    return whole if found is not None and is_whole else found
