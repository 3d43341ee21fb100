"""Read what a source says about itself: its headers, its index, its configuration; no tensor bytes."""

import json
from collections.abc import Iterable

from sharding.archive import describe_archives, read_archives
from sharding.errors import SourceError
from sharding.files import choose_files, compare_with_index, find_index, name_some, parse_index
from sharding.layout import LENGTH_BYTES, header_end, parse_header
from sharding.limits import MAX_CONFIG_BYTES, MAX_INDEX_BYTES, format_bytes
from sharding.protocols import Source
from sharding.threads import readers
from sharding.values import Checkpoint, FileEntry, Finding, Header, TensorEntry

_FIRST_READ_BYTES = 64 << 10
"""Most headers are shorter; the rest of a longer one costs a second read."""


def read_checkpoint(source: Source) -> Checkpoint:
    """Return the tensors, side files and findings of `source`.

    Raises SourceError where there is no checkpoint that can be streamed or a tensor is there twice,
    HeaderError where a weight file breaks the format.
    """
    by_path = {file.path: file for file in source.files}
    listing = find_index(source.files)
    index = parse_index(read_small(source, listing, MAX_INDEX_BYTES), listing.path) if listing else None
    choice = choose_files(source.files, index)
    archives = read_archives(source, [file for file in choice.weight_files if file.path.endswith(".bin")])
    headers = read_headers(source, [file for file in choice.weight_files if not file.path.endswith(".bin")])
    found = [header.tensors for header in headers] + [archive.tensors for archive in archives]
    tensors = tuple(tensor for part in found for tensor in part)
    _refuse_unusable(tensors)
    tied = [name for archive in archives for name in archive.tied]
    disagreements = compare_with_index(choice.index, tensors, tied) if choice.index else []
    metadata, conflicts = _merge_metadata(headers)
    return Checkpoint(
        source=source.ref,
        tensors=tensors,
        metadata=metadata,
        weight_files=choice.weight_files,
        side_files=choice.side_files,
        findings=(*choice.findings, *disagreements, *conflicts, *describe_archives(choice.weight_files, archives)),
        architecture=_architecture(source, by_path.get("config.json")),
        total_parameters=choice.index.total_parameters if choice.index and not disagreements else None,
        gathered=tuple(part for archive in archives for part in archive.gathered),
    )


def read_headers(source: Source, files: Iterable[FileEntry]) -> list[Header]:
    """Return the parsed headers of `files`, in order. Raises SourceError, HeaderError."""
    with readers(source.ranges_at_once) as pool:
        return list(pool.map(lambda file: _read_header(source, file), files))


def _read_header(source: Source, file: FileEntry) -> Header:
    first = b"".join(source.read(file.path, 0, min(file.bytes, _FIRST_READ_BYTES)))
    end = header_end(first[:LENGTH_BYTES], file.bytes, file.path)
    if end > len(first):
        first += b"".join(source.read(file.path, len(first), end))
    return parse_header(first, file.bytes, file.path)


def read_small(source: Source, file: FileEntry, max_bytes: int) -> bytes:
    """Return a whole file. Raises SourceError if it has more than `max_bytes`."""
    if file.bytes > max_bytes:
        raise SourceError(
            f"{file.path} has {format_bytes(file.bytes)}; at most {format_bytes(max_bytes)} are read of it.",
            "It is not what its name says.",
        )
    return b"".join(source.read(file.path, 0, file.bytes))


def _refuse_unusable(tensors: Iterable[TensorEntry]) -> None:
    seen: dict[str, str] = {}
    for tensor in tensors:
        if tensor.name in seen:
            raise SourceError(
                f"The tensor {tensor.name} is in {seen[tensor.name]} and again in {tensor.file}.",
                "Remove the file that does not belong to this checkpoint.",
            )
        seen[tensor.name] = tensor.file
    if not seen:
        raise SourceError("The weight files hold no tensor.", "There is nothing to shard.")


def _merge_metadata(headers: Iterable[Header]) -> tuple[dict[str, str], list[Finding]]:
    merged: dict[str, str] = {}
    conflicts = []
    for header in headers:
        for key, text in (header.metadata or {}).items():
            if merged.setdefault(key, text) != text:
                conflicts.append(key)
    # accelerate 1.15 refuses a file whose metadata does not say which framework wrote it.
    merged.setdefault("format", "pt")
    if not conflicts:
        return merged, []
    message = (
        f"The files' headers disagree on the metadata {name_some(sorted(set(conflicts)))}; the first file's is kept."
    )
    return merged, [Finding("warning", "metadata-conflict", message)]


def _architecture(source: Source, config: FileEntry | None) -> str | None:
    if config is None or config.bytes > MAX_CONFIG_BYTES:
        return None
    try:
        document = json.loads(b"".join(source.read(config.path, 0, config.bytes)))
        name = document["architectures"][0]
    except (ValueError, RecursionError, LookupError, TypeError):
        return None
    return name if isinstance(name, str) else None
