"""Decide which file holds which tensor of a GGUF model, cut where gguf-split of llama.cpp cuts. Pure."""

from collections.abc import Iterator, Sequence

from sharding.core.errors import UsageError
from sharding.core.options import OPTIONS, Options
from sharding.core.text import count, format_bytes, name_some
from sharding.core.values import Component, Finding, Tensor
from sharding.formats.gguf import loses_in_gguf_split

_PADDED_TO = 32  # gguf-split counts each tensor with padding to 32 bytes, whatever the alignment.
_MOST_FILES = 65_535  # The count of files is a number of 16 bits.


def refuse_changes(options: Options) -> None:
    """Raise UsageError for `options` that would change or reorder tensors, or cut them otherwise."""
    otherwise = [name for name in ("strategy", "base") if getattr(options, name) != OPTIONS[name].default]
    flags = [*options.computing, *(OPTIONS[name].flags[0] for name in otherwise)]
    if flags := flags + ["--order"] * (options.order == "transformers"):
        message = f"{name_some(flags)} cannot be used with GGUF files. Their tensors stay as they are, in their order."
        raise UsageError(message, "Leave it out. To change numbers, use the repo that the files were made from.")


def cut_model(component: Component, tensors: Sequence[Tensor], options: Options) -> Sequence[Sequence[Tensor]]:
    """Return the tensors of each file of a model. Raises UsageError for too many, or if llama.cpp needs one."""
    groups = [tensors] if options.is_single_file else cut(tensors, options.max_shard_bytes)
    if len(groups) > _MOST_FILES:
        message = f"{component.stem} would be cut into {len(groups):,} files."
        raise UsageError(message, f"Choose a larger size. A model has at most {_MOST_FILES:,} files.")
    if component.is_whole and len(groups) > 1:
        message = f"llama.cpp loads {component.stem} only from one file."
        size = format_bytes(sum(tensor.bytes for tensor in tensors))
        raise UsageError(message, f"Choose one file, or a size above {size}.")
    return groups


def cut(tensors: Sequence[Tensor], most_bytes: int) -> list[list[Tensor]]:
    """Return `tensors` in groups of at most `most_bytes`, as `gguf-split --split-max-size` cuts them.

    A larger tensor is alone in its group, also if it is the first: there gguf-split stops with an error.

    >>> from sharding.recipes.stored import Stored
    >>> tensors = [Tensor(str(size), "I8", (size,), Stored(0, "f", 0, size)) for size in (65, 20, 32, 1)]
    >>> [[tensor.name for tensor in group] for group in cut(tensors, 64)]
    [['65'], ['20', '32'], ['1']]
    """
    groups, size = [list[Tensor]()], 0
    for tensor in tensors:
        padded = tensor.bytes + -tensor.bytes % _PADDED_TO
        if groups[-1] and size + padded > most_bytes:
            groups.append([])
            size = 0
        groups[-1].append(tensor)
        size += padded
    return groups


def remarks(component: Component, tensors: Sequence[Tensor], files: int) -> Iterator[Finding]:
    """Yield what you should know about the files of a model, which become `files`, if it is one of GGUF."""
    head = component.gguf
    if head is None or files == head.files == 1:
        return
    if lost := loses_in_gguf_split(head, tensors):
        message = f"The files of {component.stem} differ from those of gguf-split, which would lose {name_some(lost)}."
        yield Finding("info", "unlike-gguf-split", message)
    if files > 1:
        message = f"ollama cannot pull {component.stem} from a repo in {count(files, 'file')}. llama.cpp can."
        yield Finding("info", "ollama-needs-one-file", message, "For ollama, choose one file.")
