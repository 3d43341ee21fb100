"""Read safetensors files, each with its header."""

from collections.abc import Container, Iterable
from contextlib import nullcontext
from threading import Lock

from sharding.checkpoint.readers.reader import Found, Weights
from sharding.core.errors import HeaderError, TooManyTensors
from sharding.core.limits import MAX_TENSORS
from sharding.core.protocols import Files
from sharding.core.text import name_some
from sharding.core.threads import readers
from sharding.core.values import FileEntry, Finding
from sharding.formats.names import what_is
from sharding.formats.safetensors_file import LENGTH_BYTES, Header, header_end, parse_header

TENSOR_DESCRIPTION_BYTES = 160
"""Upper estimate of what a header or an index holds for each tensor. A header has about 110 bytes, an index 130."""


_LONG = Lock()
_LONG_BYTES = 2_000_000
"""Longer headers are parsed one at a time. Threads would not be faster, and parsing takes ten times the memory."""
_FIRST_READ_BYTES = 64 << 10  # Most headers are shorter. A longer one takes a second read.


def read_safetensors(found: Found) -> Weights:
    """Return the weights in safetensors files that hold whole tensors."""
    headers = read_headers(found.source, found.files, found.most_tensors)
    metadata, conflicts = merge_metadata(headers)
    return Weights(found.files, [tensor for header in headers for tensor in header.tensors], conflicts, metadata)


def read_headers(source: Files, files: Iterable[FileEntry], most_tensors: int = MAX_TENSORS) -> list[Header]:
    """Return the parsed headers of `files`, in order. Raises SourceError, HeaderError, TooManyTensors."""
    headers, seen = [], 0
    with readers(source.ranges_at_once) as pool:
        for header in pool.map(lambda file: _read_header(source, file, most_tensors), files):
            headers.append(header)
            seen += len(header.tensors)
            if seen > most_tensors:
                raise too_many_tensors(source, most_tensors)
    return headers


def _read_header(source: Files, file: FileEntry, most_tensors: int) -> Header:
    first = b"".join(source.read(file.path, 0, min(file.bytes, _FIRST_READ_BYTES)))
    try:
        end = header_end(first[:LENGTH_BYTES], file.bytes, file.path)
    except HeaderError as error:
        what, hint = what_is(first)
        raise (HeaderError(f"{file.path} is {what}.", hint) if what else error) from error
    if end > len(first):
        refuse_long(source, end, most_tensors)
        first += b"".join(source.read(file.path, len(first), end))
    with _LONG if end > _LONG_BYTES else nullcontext():
        return parse_header(first, file.bytes, file.path, (file.source, file.at))


def refuse_long(source: Files, description_bytes: int, most_tensors: int) -> None:
    """Raise TooManyTensors if a description of so many bytes is too long for `most_tensors`."""
    if most_tensors < MAX_TENSORS and description_bytes > most_tensors * TENSOR_DESCRIPTION_BYTES:
        raise too_many_tensors(source, most_tensors)


def too_many_tensors(source: Files, most_tensors: int) -> TooManyTensors:
    """Return the error for a source with more than `most_tensors`."""
    many = f"{source.ref.repo_id} has more than {most_tensors:,} tensors"
    if most_tensors >= MAX_TENSORS:
        return TooManyTensors(f"{many}, which no single model has.", "Shard its models one by one.")
    hint = "Shard it with the command `shard-my-repo` on your own machine."
    return TooManyTensors(f"{many}, too many for the page.", hint)


def merge_metadata(headers: Iterable[Header], without: Container[str] = ()) -> tuple[dict[str, str], list[Finding]]:
    """Return the metadata for every shard `without` some keys, and a finding if the headers disagree on it."""
    merged, conflicts = dict[str, str](), dict[str, str]()
    for header in headers:
        for key, text in (header.metadata or {}).items():
            if key not in without and merged.setdefault(key, text) != text:
                conflicts.setdefault(key, f"{key} is {merged[key][:50]!r} in one file and {text[:50]!r} in another")
    # accelerate 1.15 refuses a file whose metadata does not name the framework that wrote it.
    merged.setdefault("format", "pt")
    if not conflicts:
        return merged, []
    differing = name_some([conflicts[key] for key in sorted(conflicts)])
    message = f"The headers have different metadata: {differing}. The first value is kept."
    hint = "If that is wrong, the shards may be of different saves."
    return merged, [Finding("warning", "metadata-conflict", message, hint)]
