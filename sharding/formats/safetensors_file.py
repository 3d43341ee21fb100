"""Read and write the header of a safetensors file, and describe a shard as such a file.

A safetensors file has eight bytes (the header's length, little-endian), the header (JSON, UTF-8), then the tensors'
bytes. This module refuses the same files as the reader of safetensors 0.8 (`SafeTensors::read_metadata` and
`Metadata::validate` in its Rust source), and too long names. It writes the same bytes as the safetensors writer.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from math import isfinite
from pathlib import Path
from typing import Any

from typing_extensions import override

from sharding.core.dtypes import BY_NAME, USIZE_END, tensor_bytes
from sharding.core.errors import HeaderError
from sharding.core.limits import MAX_HEADER_BYTES, MAX_HEADER_DEPTH
from sharding.core.protocols import FileFormat
from sharding.core.text import name_problem, printable, shown_name
from sharding.core.values import Component, Plan, Shard, Tensor, TensorDigest, folder_of
from sharding.formats.index import build_indexes, index_paths
from sharding.recipes.stored import Stored

LENGTH_BYTES = 8  # The header's length comes first, as an unsigned 64-bit little-endian number.
_FIELDS = ("dtype", "shape", "data_offsets")
_HINT = "The file is damaged, or safetensors did not write it. Download it again, or ask its author."

# JSON objects are read as tuples of pairs (arrays as lists), because a repeated key then stays visible.


@dataclass(frozen=True, slots=True)
class Header:
    """A parsed safetensors header. `tensors` are in stored order."""

    tensors: tuple[Tensor, ...]
    metadata: Mapping[str, str] | None


def header_end(prefix: bytes, file_bytes: int, file: str) -> int:
    """Return where the header of `file` ends, by its start. Raises HeaderError beyond the file's end or 100 MB."""
    if len(prefix) < LENGTH_BYTES:
        raise HeaderError(f"{file} is too short to be a safetensors file ({file_bytes} bytes).", _HINT)
    length = int.from_bytes(prefix[:LENGTH_BYTES], "little")
    if length > MAX_HEADER_BYTES:
        raise HeaderError(f"{file} announces a header of {length} bytes. The format allows 100 MB.", _HINT)
    if LENGTH_BYTES + length > file_bytes:
        message = f"{file} ends inside its header. It needs {LENGTH_BYTES + length} bytes but has {file_bytes}."
        raise HeaderError(message, _HINT)
    return LENGTH_BYTES + length


def parse_header(header: bytes, file_bytes: int, file: str, place: tuple[int, str] | None = None) -> Header:
    """Return the tensors of `file`, with absolute offsets and in stored order, from its first bytes.

    The folder of `file` stands before the tensors' names, as in every `Tensor`. `place` are the number of its source
    and its path there, if it is not at the same path of the first source. Raises HeaderError exactly if the reader of
    safetensors would refuse the file, or if the name of a tensor has more than `MAX_NAME_CHARACTERS`.
    """
    end = header_end(header, file_bytes, file)
    try:
        document = json.loads(
            header[LENGTH_BYTES:end].decode(),
            object_pairs_hook=tuple,
            parse_int=_parse_int if b"-0" in header else int,  # `int` is faster, because the loop stays in C
            parse_float=_parse_float,
            parse_constant=_refuse_constant,
        )
        metadata, entries = _read_document(document)
        tensors = _lay_out(entries, file_bytes - end)
    except (ValueError, RecursionError) as error:
        raise HeaderError(f"The header of {file} is not valid: {error}.", _HINT) from error
    folder, at = folder_of(file), place or (0, file)
    read = ((folder + name, dtype, shape, Stored(*at, end + a, end + b)) for name, dtype, shape, a, b in tensors)
    return Header(tuple(Tensor(*fields, folder) for fields in read), metadata)


def build_header(tensors: Iterable[Tensor], metadata: Mapping[str, str] | None, folder: str = "") -> bytes:
    """Return the first bytes of a file in `folder` that holds `tensors` one after another, in this order.

    The bytes are those of safetensors: metadata first (in the order of the mapping; the library's is random), compact
    JSON, non-ASCII kept, padded with spaces to a multiple of eight. Raises HeaderError beyond 100 MB.
    """
    document: dict[str, object] = {} if metadata is None else {"__metadata__": dict(metadata)}
    start = 0
    for tensor in tensors:
        fields = tensor.dtype, tensor.shape, (start, start + tensor.bytes)
        document[tensor.name.removeprefix(folder)] = dict(zip(_FIELDS, fields, strict=True))
        start += tensor.bytes
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % LENGTH_BYTES)
    if len(text) > MAX_HEADER_BYTES:
        message = "A shard would need a header larger than 100 MB, the limit of the format."
        raise HeaderError(message, "Choose a smaller shard size.")
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def _parse_int(digits: str) -> int | float:
    # serde_json reads "-0" as a floating-point number.
    return -0.0 if digits == "-0" else int(digits)


def _parse_float(digits: str) -> float:
    number = float(digits)
    if not isfinite(number):
        raise ValueError("a number is out of range")
    return number


def _refuse_constant(word: str) -> float:
    raise ValueError(f"{word} is not a JSON number")


_Entry = tuple[str, tuple[int, ...], int, int]  # The dtype, shape and data_offsets of a tensor.


def _read_document(document: Any) -> tuple[dict[str, str] | None, dict[str, _Entry]]:
    if not isinstance(document, tuple):
        raise ValueError("it is not a JSON object")
    metadata, metadata_seen, entries = None, False, {}
    for name, value in document:
        _check_text(name)
        if problem := name_problem(name):
            raise ValueError(f"the name of the tensor {shown_name(name)} {problem}")
        if name != "__metadata__":
            entries[name] = _read_tensor(name, value)
        elif metadata_seen:
            raise ValueError("it has __metadata__ twice")
        else:
            metadata_seen, metadata = True, _read_metadata(value)
    return metadata, entries


def _read_metadata(value: Any) -> dict[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, tuple) or not all(isinstance(text, str) for _, text in value):
        raise ValueError("__metadata__ must map text to text")
    for text in chain.from_iterable(value):
        _check_text(text)
    return dict(value)


def _read_tensor(name: str, value: Any) -> _Entry:
    if isinstance(value, list) and len(value) == 3:  # serde also reads a struct from an array
        value = tuple(zip(_FIELDS, value, strict=True))
    elif not isinstance(value, tuple):
        raise ValueError(f"tensor {name!r} is not described by a JSON object")
    if len(value) != 3 or (value[0][0], value[1][0], value[2][0]) != _FIELDS:  # not the form that the writer uses
        fields = _pick_fields(name, value)
        value = [(key, fields.get(key)) for key in _FIELDS]
    (_, dtype), (_, shape), (_, offsets) = value
    shape, offsets = _usizes(shape), _usizes(offsets)
    if isinstance(dtype, tuple) and len(dtype) == 1 and dtype[0][1] is None:
        dtype = dtype[0][0]  # serde also reads the variant F32 from {"F32": null}
    if not isinstance(dtype, str) or dtype not in BY_NAME:
        raise ValueError(f"tensor {name!r} has the unknown dtype {dtype!r}"[:200])
    if shape is None:
        raise ValueError(f"tensor {name!r} has no valid shape")
    if offsets is None or len(offsets) != 2:
        raise ValueError(f"tensor {name!r} has no valid data_offsets")
    return dtype, shape, offsets[0], offsets[1]


def _pick_fields(name: str, pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    fields = {}
    for key, item in pairs:
        if key not in _FIELDS:
            _check_text(key)
            _check_ignored(item, 3)  # inside the document and the tensor's object
        elif key in fields:
            raise ValueError(f"tensor {name!r} has {key} twice")
        else:
            fields[key] = item
    return fields


def _usizes(value: Any) -> tuple[int, ...] | None:
    # True and False do not count as numbers here.
    valid = isinstance(value, list) and all(type(number) is int and 0 <= number < USIZE_END for number in value)
    return tuple(value) if valid else None


def _check_text(text: str) -> None:
    if not text.isascii() and printable(text) != text:
        raise ValueError("a string contains half a surrogate pair")


def _check_ignored(value: Any, depth: int) -> None:
    """Raise ValueError if an unknown field has a value that the reader's JSON parser refuses everywhere."""
    if isinstance(value, str):
        _check_text(value)
    elif type(value) is int and abs(value) >= USIZE_END:
        _parse_float(str(value))  # serde_json reads numbers beyond 64 bits as floats
    elif isinstance(value, list | tuple):
        if depth > MAX_HEADER_DEPTH:
            raise ValueError("it is nested too deeply")
        for item in value if isinstance(value, list) else chain.from_iterable(value):
            _check_ignored(item, depth + 1)


def _lay_out(entries: Mapping[str, _Entry], data_bytes: int) -> list[tuple[str, str, tuple[int, ...], int, int]]:
    tensors = [(name, *entry) for name, entry in entries.items()]
    tensors.sort(key=lambda tensor: tensor[3:])
    position = 0
    for name, dtype, shape, start, end in tensors:
        if start != position or end < start:
            problem = f"leaves a hole or overlaps another: it begins at {start}, not at {position}"
            raise ValueError(f"tensor {name!r} {problem}")
        size = tensor_bytes(dtype, shape)
        if end - start != size:
            raise ValueError(f"tensor {name!r} has {end - start} bytes, but its shape needs {size}")
        position = end
    if position != data_bytes:
        raise ValueError(f"its tensors need {position} bytes, but the file has {data_bytes}")
    return tensors


class Safetensors(FileFormat):
    """The format of safetensors: length, header, tensors without a gap (https://huggingface.co/docs/safetensors).

    >>> unet = Component("unet/", "diffusion_pytorch_model", "fp16")
    >>> Safetensors().name(unet, "-00001-of-00002")
    'unet/diffusion_pytorch_model.fp16-00001-of-00002.safetensors'
    """

    @override
    def name(self, component: Component, suffix: str = "") -> str:
        variant = f".{component.variant}" if component.variant else ""
        return f"{component.folder}{component.stem}{variant}{suffix}.safetensors"

    @override
    def order(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        """Return `tensors` in the order of the safetensors writer: the widest dtype first, then by name."""
        ranks = {dtype: rank for rank, dtype in enumerate(BY_NAME)}
        return sorted(tensors, key=lambda tensor: (ranks[tensor.dtype], tensor.name))

    @override
    def pieces(self, plan: Plan, shard: Shard) -> Iterator[bytes | Tensor]:
        yield build_header(shard.tensors, plan.component(shard).metadata, shard.folder)
        yield from shard.tensors

    @override
    def structure(self, path: Path, shard: Shard) -> tuple[dict[str, TensorDigest], dict[str, str] | None]:
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="numpy") as file:
                views = {shard.folder + name: file.get_slice(name) for name in file.offset_keys()}
                forms = {name: (view.get_dtype(), tuple(view.get_shape())) for name, view in views.items()}
                return {name: TensorDigest(*form, "") for name, form in forms.items()}, file.metadata()
        except (SafetensorError, OSError) as error:
            hint = "The file is damaged. Download it again, or run the job again if it is a result."
            raise HeaderError(f"safetensors cannot open {shard.file}: {error}.", hint) from error

    @override
    def indexes(self, plan: Plan) -> list[str]:
        return index_paths(plan)

    @override
    def beside(self, plan: Plan) -> dict[str, bytes]:
        return build_indexes(plan)
