"""List the files of a source that transformers loads: weights of one format, configuration, tokenizer."""

from sharding.checkpoint.read import named_weights
from sharding.checkpoint.side_files import refuse_links
from sharding.core.errors import SourceError
from sharding.core.protocols import Files
from sharding.core.values import FileEntry
from sharding.formats.names import RANK_SHARD_NAME, SHARD_NAME, SINGLE_NAME

_BIN_NAME = "pytorch_model.bin"
_WEIGHTS = (".safetensors", ".bin")
_TEXTS = (".json", ".model", ".txt", ".jinja")  # Configuration and tokenizer.


def loadable_files(source: Files) -> list[FileEntry]:
    """Return the files of `source` that transformers loads, without subfolders. Raises SourceError without weights."""
    refuse_links(source.links_out)
    # The file of one training rank has a name like a shard.
    top = [file for file in source.files if "/" not in file.path and not RANK_SHARD_NAME.fullmatch(file.path)]
    names = {file.path for file in top}
    suffix, named = ".safetensors", set(named_weights(source))
    if not (named or SINGLE_NAME in names or any(SHARD_NAME.fullmatch(name) for name in names)):
        suffix = ".bin"
    single = SINGLE_NAME if suffix == ".safetensors" else _BIN_NAME
    usual = {name for name in names if name.endswith(suffix) and (name == single or single not in names)}
    weights = [file for file in top if file.path in (named or usual)]
    if not weights:
        name = source.ref.words
        raise SourceError(f"transformers finds no weights in {name}.", "Use a model that has model.safetensors.")
    other = ".bin.index.json" if suffix == ".safetensors" else ".safetensors.index.json"
    return weights + [file for file in files_beside(source) if not file.path.endswith(other)]


def files_beside(source: Files) -> list[FileEntry]:
    """Return the indexes, configuration and tokenizer of `source`."""
    return [file for file in source.files if "/" not in file.path and file.path.endswith(_TEXTS)]
