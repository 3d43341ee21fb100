"""Write GGUF files, sound and unsound, for tests. Nothing of what is tested is used."""

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random

Key = tuple[bytes, int, bytes]
"""The name, the type and the bytes of a value; for an array its type, count and elements."""
TYPES = {"F32": (0, 1, 4), "F16": (1, 1, 2), "Q4_0": (2, 32, 18), "Q8_0": (8, 32, 34), "Q4_K": (12, 256, 144)}


class Info:
    """A tensor in a file: its dimensions as ggml has them, the fastest first, and its bytes."""

    def __init__(self, name: str, dims: Sequence[int], dtype: str = "F32", seed: int = 0) -> None:
        self.name, self.dims, (self.type, block, block_bytes) = name, tuple(dims), TYPES[dtype]
        elements = 1
        for length in dims:
            elements *= length
        self.data = Random(f"{name} {seed}").randbytes(elements // block * block_bytes)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def key(name: str, value: object, kind: int | None = None) -> Key:
    """A key for a text, a number (u32, or of this `kind`), or a list of texts."""
    if isinstance(value, str):
        return name.encode(), 8, text(value.encode())
    if isinstance(value, list):
        words = b"".join(text(word.encode()) for word in value)
        return name.encode(), 9, struct.pack("<IQ", 8, len(value)) + words
    forms = {None: "<I", 2: "<H", 4: "<I", 5: "<i"}
    return name.encode(), 4 if kind is None else kind, struct.pack(forms[kind], value)


MODEL = (key("general.architecture", "llama"), key("tokenizer.ggml.tokens", ["a", "", "bc"]), key("n", 7))


def gguf(
    tensors: Iterable[Info], keys: Iterable[Key] = MODEL, *, version: int = 3, alignment: int = 32, filler: int = 0
) -> bytes:
    """A GGUF file. `filler` is what lies between tensors."""
    tensors, keys = list(tensors), list(keys)
    header = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys))
    header += b"".join(text(name) + struct.pack("<I", kind) + value for name, kind, value in keys)
    data = b""
    for one in tensors:
        fields = struct.pack(f"<I{len(one.dims)}QIQ", len(one.dims), *one.dims, one.type, len(data))
        header += text(one.name.encode()) + fields
        data += one.data + bytes([filler]) * (-len(one.data) % alignment)
    return header + bytes([filler]) * (-len(header) % alignment if tensors else 0) + data


def layers(count: int = 6, dtype: str = "Q4_K") -> list[Info]:
    """The tensors of a small model, one of them shorter than its padding."""
    made = [Info(f"blk.{n}.ffn_up.weight", (512, 20 + n), dtype) for n in range(count)]
    return [Info("token_embd.weight", (256, 30), "Q8_0"), *made, Info("output_norm.weight", (5,))]


def model(folder: Path, name: str = "small-Q4_K_M", **more: object) -> Path:
    """A folder with a model in one file, and a licence beside it."""
    path = folder / f"{name}.gguf"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gguf(layers(), **more))  # type: ignore[arg-type]
    (folder / "LICENSE").write_text("MIT")
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.gguf")}
