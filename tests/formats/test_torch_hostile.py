"""What a `.bin` file from anybody may try: nothing in it is executed, and every refusal is one sentence, soon said."""

import builtins
import importlib
import io
import os
import pickle
import struct
import subprocess
import tarfile
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._utils import _rebuild_tensor_v2

from sharding.checkpoint.readers.torch_bin import Archive, read_archive
from sharding.core.dtypes import BY_TORCH
from sharding.core.errors import SourceError
from sharding.formats import torch_globals as stand_ins
from sharding.recipes.laid import Laid
from sharding.recipes.stored import place_of
from tests.fuzz.seeds import archives, rezipped, saved
from tests.fuzz.targets import Memory
from tests.promises import promise

MARK = "executed-by-a-checkpoint"
SIX = struct.pack("<6f", *range(6))


class Call:
    """Pickled as a call of `function` with `arguments`."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.made = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.made


class Id(tuple[Any, ...]):
    """Pickled as a persistent id."""


class Pickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> Any:
        return tuple(value) if isinstance(value, Id) else None


def pickled_as(value: Any, protocol: int = 2) -> bytes:
    stream = io.BytesIO()
    Pickler(stream, protocol).dump(value)
    return stream.getvalue()


def tensor(
    offset: int = 0,
    shape: Any = (2, 3),
    strides: Any = (3, 1),
    count: int = 6,
    kind: type = torch.FloatStorage,
    key: str = "0",
) -> Call:
    storage = Id(("storage", kind, key, "cpu", count))
    return Call(_rebuild_tensor_v2, storage, offset, shape, strides, False, OrderedDict())


def packed(
    data: bytes, records: dict[str, bytes] | None = None, packing: int = zipfile.ZIP_STORED, order: bytes = b"little"
) -> bytes:
    stream = io.BytesIO()
    inside = {"data.pkl": data, "byteorder": order, "version": b"3\n", "data/0": SIX, **(records or {})}
    with zipfile.ZipFile(stream, "w", packing) as file:
        for name, content in inside.items():
            file.writestr(f"archive/{name}" if not name.startswith("!") else name[1:], content)
    return stream.getvalue()


def state(**values: Any) -> bytes:
    return packed(pickled_as({"w": tensor(), **values}))


def of(**made: Any) -> bytes:
    """A file of one tensor that is made like that."""
    return packed(pickled_as({"w": tensor(**made)}))


def read(data: bytes) -> Archive:
    source = Memory(data)
    return read_archive(source, source.files[0])


def with_directory(change: Callable[[bytearray, list[int]], None]) -> bytes:
    """A sound file whose directory was changed; `change` gets the file and where its entries are."""
    data = bytearray(state())
    entries = [at for at in range(len(data)) if data[at : at + 4] == b"PK\1\2"]
    change(data, entries)
    return bytes(data)


def same_place(data: bytearray, entries: list[int]) -> None:
    data[entries[2] + 42 : entries[2] + 46] = data[entries[1] + 42 : entries[1] + 46]


def longer(data: bytearray, entries: list[int]) -> None:
    for at in (20, 24):
        data[entries[0] + at : entries[0] + at + 4] = struct.pack("<I", 1 << 20)


def other_start(data: bytearray, entries: list[int]) -> None:
    data[-6:-2] = struct.pack("<I", 3)


def more_entries(data: bytearray, entries: list[int]) -> None:
    data[-14:-10] = struct.pack("<2H", 60000, 60000)


def test_a_sound_file_made_by_these_means_is_read() -> None:
    (entry,) = read(state()).tensors
    assert (entry.name, entry.dtype, entry.shape, entry.bytes) == ("w", "F32", (2, 3), 24)
    assert torch.load(io.BytesIO(state()), weights_only=True)["w"].tolist() == [[0, 1, 2], [3, 4, 5]]


EXECUTING: dict[str, bytes] = {
    "os.system": pickled_as({"w": Call(os.system, f"touch {MARK}")}),
    "eval": pickled_as({"w": Call(builtins.eval, f"open({MARK!r}, 'w')")}),
    "exec": pickled_as({"w": Call(builtins.exec, f"open({MARK!r}, 'w')")}),
    "open": pickled_as({"w": Call(builtins.open, MARK, "w")}),
    "an import": pickled_as({"w": Call(importlib.import_module, "antigravity")}),
    "a process": pickled_as({"w": Call(subprocess.Popen, ["touch", MARK])}),
    "an attribute": pickled_as({"w": Call(builtins.getattr, 1, "real")}),
    "a newer protocol": pickled_as({"w": Call(os.system, f"touch {MARK}")}, protocol=4),
    "the oldest protocol": pickled_as({"w": Call(os.system, f"touch {MARK}")}, protocol=0),
    "an instance": b"(S'touch %s'\nios\nsystem\n." % MARK.encode(),
    "an object": b"(cos\nsystem\nS'touch %s'\no." % MARK.encode(),
    "an extension": b"\x82\1.",
    "a name below an allowed one": b"\x80\2ctorch._utils\n_rebuild_tensor_v2.__globals__\n.",
    "an unused name": b"\x80\2cos\nsystem\n0}.",
    "behind an allowed class": pickled_as({"w": Call(torch._tensor._rebuild_from_type_v2, os.system, str, ("x",), {})}),
}


@promise("docs/formats.md#pickled-weights", "docs/formats.md#what-is-refused", "docs/security.md#what-is-trusted")
@pytest.mark.parametrize("form", ["zip", "old"])
@pytest.mark.parametrize("what", EXECUTING)
def test_nothing_is_executed(what: str, form: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    head = b"".join(pickled_as(part) for part in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}))
    data = packed(EXECUTING[what]) if form == "zip" else head + EXECUTING[what] + pickled_as([])
    with pytest.raises(SourceError, match=r"weights-only reader|calls") as caught:
        read(data)
    assert caught.value.hint
    assert not list(tmp_path.iterdir())


def test_what_torch_would_build_is_not_even_allocated() -> None:
    huge = {"a": Call(bytearray, 1 << 50), "b": Call(Counter, {"x": 1}), "c": Call(complex, 1, 2)}
    huge |= {"d": Call(torch.device, "cuda:99"), "e": {1, 2}, "f": Call(torch.Size, (1, 2))}
    found = read(state(**huge))
    assert found.ignored == tuple(huge)
    assert [entry.name for entry in found.tensors] == ["w"]


COMPLEX = torch.ones(2, dtype=torch.complex64)
SOUND_PICKLE = pickled_as({"w": tensor()})
REFUSED: dict[str, tuple[bytes, str]] = {
    # Depth, length, hashes
    "lists without end": (packed(b"\x80\2" + b"]" * 50 + b"a" * 49 + b"."), "no dictionary"),
    "marks without end": (packed(b"(" * 5000), "nested too deeply"),
    "a text of 4 GB": (packed(b"X\xff\xff\xff\xff."), "ends early"),
    "a number of 255 bytes as a size": (of(shape=(1 << 2000, 3)), "an impossible"),
    "keys that collide": (packed(pickled_as({(1 << 61) - 1: tensor()})), "neither text nor small numbers"),
    "keys that take for ever to hash": (packed(b"})" + b"2\x86" * 60 + b"Ns."), "does not support its instruction"),
    "a pair as a key": (packed(pickled_as({("a", "b"): tensor()})), "neither text nor small numbers"),
    "an empty stack": (packed(b"a."), "uses a value that does not exist"),
    "nothing remembered": (packed(b"h\5."), "uses a value that does not exist"),
    "no end": (packed(b"}"), "ends early"),
    "an escape in a name": (packed(b"ctorch\nFloat\\x53torage\n."), r"asks for 'torch\.Float\\\\x53torage'"),
    "a call without a list": (packed(b"ccollections\nOrderedDict\n}R."), "without a list of arguments"),
    # Tensors that cannot be
    "a storage larger than its record": (of(count=7), "extends beyond"),
    "strides beyond it": (of(strides=(3, 1 << 40)), "extends beyond"),
    "a negative offset": (of(offset=-1), "an impossible"),
    "a negative stride": (of(strides=(-3, 1)), "an impossible"),
    "a negative size": (of(shape=(-2, 3)), "an impossible"),
    "more strides than sizes": (of(strides=(3, 1, 1)), "an impossible"),
    "a truth for a size": (of(shape=(True, 3)), "an impossible"),
    "a hundred dimensions": (of(shape=(1,) * 100, strides=(1,) * 100), "an impossible"),
    "a window that overlaps itself": (of(shape=(4, 3), strides=(1, 1)), "overlaps itself"),
    "an exabyte": (of(shape=(1 << 40, 1 << 20), strides=(0, 0)), "1.0 GB more"),
    "too many for 64 bits": (of(shape=(1 << 62,) * 9, strides=(0,) * 9), "1.0 GB more"),
    "one storage a thousand times": (
        packed(
            pickled_as({str(n): tensor(shape=(n, 1000), strides=(0, 1), count=1000) for n in range(1, 1000)}),
            {"data/0": bytes(4000)},
        ),
        "1.0 GB more",
    ),
    "one storage in two ways": (state(v=tensor(kind=torch.IntStorage)), "in two ways"),
    "a storage that is not there": (of(key="7"), "'7' is missing"),
    "a storage of another folder": (of(key="../data.pkl"), "is missing"),
    "an id of something else": (packed(pickled_as({"w": Id(("module", "x", "0", "cpu", 1))})), "not a storage"),
    # Names that cannot be
    "the name of the metadata": (packed(pickled_as({"__metadata__": tensor()})), "does not allow"),
    "half a character": (packed(pickled_as({"\ud800": tensor()})), "is not UTF-8"),
    "a number for a name": (packed(pickled_as({7: tensor()})), "does not allow"),
    # Tensors that safetensors has not
    "a sparse tensor": (saved({"w": torch.eye(2).to_sparse()}), "w is a sparse tensor"),
    "a conjugated view": (saved({"w": COMPLEX.conj()}), "w is a conjugated or negated view"),
    "a negated view": (saved({"v": torch.ones(2), "w": COMPLEX.conj().imag}), "w is a conjugated or negated view"),
    "a view negated twice": (saved({"w": COMPLEX.imag._neg_view()}), "w is a conjugated or negated view"),
    "a wide complex tensor": (saved({"w": torch.ones(2, dtype=torch.complex128)}), "w has the dtype complex128"),
    "a tensor without data": (saved({"w": torch.empty(2, device="meta")}), "w is a tensor without data"),
    # What is no checkpoint
    "a tensor alone": (saved(torch.ones(2)), "no dictionary"),
    "tensors deeper inside": (saved({"model": {"w": torch.ones(2)}}), "no tensors by name, only model"),
    "a model below a key, a number beside it": (
        saved({"model": {"w": torch.ones(2)}, "epoch": torch.tensor(3)}),
        "tensors inside model and others beside it",
    ),
    "some tensors in a list": (saved({"w": torch.ones(2), "more": [(torch.ones(2),)]}), "tensors inside more"),
    "a program": (packed(pickled_as({}), {"constants.pkl": b""}), "TorchScript"),
    "another zip file": (packed(b"", {"!other": b""}).replace(b"data.pkl", b"data.txt"), "no data.pkl"),
    "nothing": (b"", "ends early"),
    "a text": (b"version https://git-lfs.github.com/spec/v1\n", "pointer of Git LFS"),
    # Zip files that say two things
    "compressed": (packed(SOUND_PICKLE, packing=zipfile.ZIP_DEFLATED), "compressed"),
    "from a big-endian machine": (packed(SOUND_PICKLE, order=b"big"), "big-endian"),
    "a path upwards": (packed(SOUND_PICKLE, {"!archive/../../etc/passwd": b"x"}), "leads out of it"),
    "a path from the root": (packed(SOUND_PICKLE, {"!/etc/passwd": b"x"}), "leads out of it"),
    "a path of Windows": (packed(SOUND_PICKLE, {"!archive\\x": b"x"}), "leads out of it"),
    "two records in one place": (with_directory(same_place), "overlaps"),
    "a record longer than the file": (with_directory(longer), "overlaps"),
    "a directory elsewhere": (with_directory(other_start), "not where its end says"),
    "more records than there are": (with_directory(more_entries), "directory is damaged|only one part of a split"),
    "a file cut off": (state()[:-30], "has no end record"),
    "something behind the end": (state() + b"x", "bytes after its end"),
    # Old files
    "an old file cut off": (archives()["old"][:-1], "storages end"),
    "an old file with more": (archives()["old"] + b"x", "storages end"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_it_is_refused_in_one_sentence(what: str) -> None:
    data, sentence = REFUSED[what]
    with pytest.raises(SourceError, match=sentence) as caught:
        read(data)
    assert caught.value.hint
    assert len(caught.value.message) < 500


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_a_quantized_tensor_is_refused_by_name() -> None:
    scales, zeros = torch.tensor([0.5, 0.25]), torch.zeros(2, dtype=torch.int64)
    for odd in (
        torch.quantize_per_channel(torch.ones(2, 3), scales, zeros, 0, torch.qint8),
        torch.quantize_per_tensor(torch.ones(2, 3), 0.5, 0, torch.quint8),
    ):
        with pytest.raises(SourceError, match="odd is a quantized tensor, which safetensors does not support"):
            read(saved({"plain": torch.ones(2), "odd": odd}))


def test_lists_that_hold_themselves_end() -> None:
    itself: list[Any] = [1]
    itself.append(itself)
    found = read(saved({"w": torch.ones(2), "again": itself, "twice": [itself] * 3}))
    assert found.ignored == ("again", "twice")


def test_one_name_twice_is_refused() -> None:
    with pytest.warns(UserWarning, match="Duplicate"):
        data = packed(pickled_as({"w": tensor()}), {"!archive/data/0": SIX})
    with pytest.raises(SourceError, match="twice"):
        read(data)


def test_the_tar_files_of_the_first_torch_are_refused() -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as file:
        file.addfile(tarfile.TarInfo("storages"))
    with pytest.raises(SourceError):
        read(stream.getvalue())


@pytest.mark.parametrize(
    ("limit", "data"),
    {
        "sharding.formats.torch_pickle.Machine.most_steps": packed(b"]" * 1200 + b"."),
        "sharding.formats.torch_file.MAX_PICKLE_BYTES": packed(b"]" * 1200 + b"."),
        "sharding.formats.torch_file.MAX_DIRECTORY_BYTES": packed(b"", {str(number): b"" for number in range(30)}),
    }.items(),
)
def test_no_more_is_read_than_a_checkpoint_needs(limit: str, data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit, 1000)
    with pytest.raises(SourceError, match="larger than|more than"):
        read(data)


def test_one_long_list_given_to_many_calls_is_counted_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sharding.formats.torch_pickle.Machine.most_steps", 20_000)
    pairs = b"](" + b"K\1K\2\x86" * 500 + b"e\x85q\0"
    calls = b"ccollections\nOrderedDict\nq\1" + b"h\1h\0R" * 1000
    with pytest.raises(SourceError, match="more than 20000 instructions"):
        read(packed(pairs + calls + b"."))


SOUND = [data for name, data in archives().items() if name in ("views", "dtypes", "wrapped")]
PIECES = [b"K\0", b"K\1", b"M\1\1", b"N", b")", b"]", b"}", b"(", b"t", b"R", b"h\0", b"q\0", b"\x85", b"s", b"u", b"e", b"b", b"Q"]  # fmt: skip
NAMES = [b"ctorch\nFloatStorage\n", b"ctorch\nSize\n", b"ccollections\nOrderedDict\n", b"ctorch._utils\n_rebuild_parameter\n"]  # fmt: skip


@st.composite
def mutations(draw: st.DrawFn) -> bytes:
    """A sound file with a pickle that was cut, spliced and changed."""
    with zipfile.ZipFile(io.BytesIO(draw(st.sampled_from(SOUND)))) as file:
        inside = {name.partition("/")[2]: file.read(name) for name in file.namelist()}
    text = inside["data.pkl"]
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.sampled_from([0, 1, 1, 1, 2, 5])))
        copied = draw(st.integers(0, len(text)))
        pieces = st.sampled_from([*PIECES, *NAMES, b"", text[copied : copied + 20]])
        text = text[:start] + draw(pieces | st.binary(min_size=1, max_size=1)) + text[end:]
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as new:
        for name, content in {**inside, "data.pkl": text}.items():
            if name != ".format_version":  # with it torch would take the places for granted
                new.writestr(f"archive/{name}", content)
    return stream.getvalue()


@promise("docs/formats.md#pickled-weights")
@settings(max_examples=200)
@given(data=mutations())
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_is_accepted_of_a_mutated_pickle_is_what_torch_reads(data: bytes) -> None:
    try:
        found = read(data)
    except SourceError:
        return
    theirs = torch.load(io.BytesIO(data), map_location="meta", weights_only=True)
    theirs = theirs["state_dict"] if isinstance(theirs.get("state_dict"), dict) else theirs
    assert {entry.name for entry in found.tensors} | set(found.tied) == {
        name for name, value in theirs.items() if isinstance(value, torch.Tensor)
    }
    for entry in found.tensors:
        one = theirs[entry.name]
        view = entry.recipe.boxes[0] if isinstance(entry.recipe, Laid) else None
        place = one.untyped_storage()._checkpoint_offset + one.storage_offset() * one.element_size()
        assert (entry.dtype, entry.shape) == (BY_TORCH[str(one.dtype)[6:]].name, tuple(one.shape))
        assert one.is_contiguous() == (view is None)
        assert not one.numel() or place == (view.origin if view else place_of(entry).start_byte)
        assert view is None or all(
            ours == stride or length == 1
            for ours, stride, length in zip(view.strides, one.stride(), one.shape, strict=True)
        )


def test_every_name_that_is_allowed_is_allowed_by_torch() -> None:
    assert set(torch._weights_only_unpickler._get_allowed_globals()) >= stand_ins.ALLOWED


def test_every_storage_has_the_dtype_that_torch_gives_it() -> None:
    allowed = torch._weights_only_unpickler._get_allowed_globals()
    assert {name: str(allowed[name].dtype) for name in stand_ins.STORAGE_DTYPES} == {
        name: f"torch.{dtype}" for name, dtype in stand_ins.STORAGE_DTYPES.items()
    }


@pytest.mark.parametrize(
    ("made", "is_within"),
    {
        "all of it": ({"shape": (2, 3), "strides": (3, 1), "count": 6}, True),
        "its end": ({"offset": 4, "shape": (2,), "strides": (1,), "count": 6}, True),
        "one beyond its end": ({"offset": 5, "shape": (2,), "strides": (1,), "count": 6}, False),
        "beyond a storage that is shorter than its record": ({"shape": (2, 3), "strides": (3, 1), "count": 5}, False),
        "the last column, one beyond": ({"offset": 3, "shape": (2, 1), "strides": (3, 1), "count": 6}, False),
        "the last column": ({"offset": 2, "shape": (2, 1), "strides": (3, 1), "count": 6}, True),
        "every element of it again and again": ({"shape": (9, 6), "strides": (0, 1), "count": 6}, True),
    }.values(),
    ids=lambda value: str(value).replace(" ", ""),
)
def test_a_tensor_ends_where_its_storage_ends_and_not_where_its_record_does(
    made: dict[str, object], is_within: bool
) -> None:
    data = packed(pickled_as({"w": tensor(), "v": tensor(**made)} if made["count"] == 6 else {"v": tensor(**made)}))  # type: ignore[arg-type]
    if is_within:
        assert [entry.shape for entry in read(data).tensors if entry.name == "v"] == [made["shape"]]
        assert torch.load(io.BytesIO(data), weights_only=True)["v"].shape == made["shape"]
        return
    with pytest.raises(SourceError, match="v extends beyond the bytes of its storage"):
        read(data)
    with pytest.raises(RuntimeError):
        torch.load(io.BytesIO(data), weights_only=True)


def with_own_header(data: bytes, name: str, more: int) -> bytes:
    """The zip file, where the own header of record `name` says that so many bytes `more` stand before its content."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        at = file.getinfo(name).header_offset + 28
    changed = bytearray(data)
    struct.pack_into("<H", changed, at, struct.unpack_from("<H", data, at)[0] + more)
    return bytes(changed)


@pytest.mark.parametrize(
    ("name", "more"),
    [("archive/data.pkl", 1), ("archive/data/0", 8), ("archive/data/1", 1), ("archive/data/1", 60_000)],
)
def test_a_record_that_its_own_header_puts_elsewhere_than_the_directory_is_refused(name: str, more: int) -> None:
    sound = rezipped(saved({"w": torch.arange(2.0), "v": torch.ones(3)}))
    assert [entry.name for entry in read(sound).tensors] == ["w", "v"]
    with pytest.raises(SourceError, match=f"'{name}' overlaps the bytes after it"):
        read(with_own_header(sound, name, more))


@pytest.mark.parametrize("name", ["archive/data/0", "archive/data/1"])
def test_a_record_that_does_not_begin_where_the_directory_says_is_refused(name: str) -> None:
    data = bytearray(rezipped(saved({"w": torch.arange(2.0), "v": torch.ones(3)})))
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        at = file.getinfo(name).header_offset
    data[at : at + 4] = b"PK\1\2"
    with pytest.raises(SourceError, match=f"'{name}' is not where its directory says"):
        read(bytes(data))
