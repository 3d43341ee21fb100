"""GGUF files against llama.cpp v0.5.0: what it refuses, what its gguf-split writes, and the logits that it computes."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharding.core.errors import HeaderError
from sharding.formats.gguf import TYPES, parse_header
from tests.conftest import ROOT
from tests.folders import reshard
from tests.formats.test_gguf import UNSOUND
from tests.ggufs import MODEL, Info, files, gguf, key, layers
from tests.kinds.libraries import packages

pytestmark = pytest.mark.thorough

LLAMA = ROOT / ".venv/llama"
BINS = LLAMA / "linux-x64/bins/linux-x64"
_BEYOND = {"announces 4,294,967,296 keys", "contains a NUL", "not UTF-8"}
"""What only this tool refuses, because of its own bounds or for the names in JSON."""


class _Params(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("context", ctypes.c_void_p))


@pytest.fixture(scope="module")
def ggml() -> ctypes.CDLL:
    library = ctypes.CDLL(str(BINS / "libggml-base.so"))
    library.ggml_type_size.restype = ctypes.c_size_t
    library.ggml_blck_size.restype = ctypes.c_int64
    library.gguf_init_from_file.restype = ctypes.c_void_p
    library.gguf_init_from_file.argtypes = (ctypes.c_char_p, _Params)
    library.gguf_free.argtypes = (ctypes.c_void_p,)
    library.gguf_logs_to = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
    library.ggml_log_set(library.gguf_logs_to, None)
    return library


def is_read(ggml: ctypes.CDLL, path: Path) -> bool:
    """Whether llama.cpp reads the header of a file."""
    context = ggml.gguf_init_from_file(str(path).encode(), _Params(True, None))
    if context:
        ggml.gguf_free(context)
    return bool(context)


def split(*words: object) -> None:
    subprocess.run([LLAMA / "gguf-split", *map(str, words)], check=True, capture_output=True)


def test_every_type_has_the_size_that_ggml_says_and_the_name_of_gguf_py(ggml: ctypes.CDLL) -> None:
    sizes = {number: (ggml.ggml_blck_size(number), ggml.ggml_type_size(number)) for number in range(43)}
    assert {number: kind[1:] for number, kind in TYPES.items()} == {n: one for n, one in sizes.items() if one[0]}
    script = "import gguf; print({t.value: t.name for t in gguf.GGMLQuantizationType})"
    names = eval(_gguf_py(script))
    assert {number: kind[0] for number, kind in TYPES.items() if number in names} == names


def _gguf_py(*words: object) -> str:
    """Run a script with gguf-py, which this process does not have."""
    env = os.environ | {"PYTHONPATH": str(packages())}
    return subprocess.check_output([sys.executable, "-c", *map(str, words)], text=True, env=env)


@settings(max_examples=2000)
@given(st.integers(0, 420), st.binary(min_size=1, max_size=9), st.integers(0, 4))
def test_no_header_is_read_that_llama_cpp_refuses_and_none_refused_that_it_reads(
    ggml: ctypes.CDLL, tmp_path: Path, position: int, bytes_: bytes, alignment: int
) -> None:
    data = bytearray(gguf(layers(2), [*MODEL, key("general.alignment", 2 << alignment)], alignment=2 << alignment))
    data[position : position + len(bytes_)] = bytes_
    (tmp_path / "m.gguf").write_bytes(data)
    theirs = is_read(ggml, tmp_path / "m.gguf")
    try:
        parse_header(bytes(data), len(data), "m.gguf")
    except HeaderError as error:
        ours = any(word in error.message for word in ("NUL", "UTF-8", "truncated", "are read", "at most"))
        assert not theirs or ours
    else:
        assert theirs


@pytest.mark.parametrize("problem", sorted(UNSOUND.keys() - _BEYOND - {"truncated"}))
def test_each_refusal_is_one_of_llama_cpp(ggml: ctypes.CDLL, tmp_path: Path, problem: str) -> None:
    (tmp_path / "m.gguf").write_bytes(UNSOUND[problem])
    assert not is_read(ggml, tmp_path / "m.gguf")


def every_type(folder: Path, version: int = 3) -> Path:
    """A model with a tensor of each type, of some hundred kilobytes."""
    tensors = [Info("first.weight", (256, 9))]
    for number, (name, block, block_bytes) in TYPES.items():
        info = Info(f"{name.lower()}.weight", (256, 900))
        info.type, info.data = number, np.random.default_rng(number).bytes(256 * 900 // block * block_bytes)
        tensors.append(info)
    folder.mkdir(parents=True)
    (folder / "m-MIX.gguf").write_bytes(
        gguf([*tensors, Info("odd", (5,)), Info("last", (3, 7), "F16")], version=version)
    )
    return folder


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("megabytes", [1, 2])
def test_splits_and_the_merged_file_are_those_of_gguf_split_byte_for_byte(
    tmp_path: Path, version: int, megabytes: int
) -> None:
    source = every_type(tmp_path / "source", version)
    (tmp_path / "theirs").mkdir()
    size = f"{megabytes}M"
    split("--split", "--split-max-size", size, source / "m-MIX.gguf", tmp_path / "theirs/m-MIX")
    reshard(source, tmp_path / "ours", f"{size}B")
    assert len(files(tmp_path / "ours")) > 3 and files(tmp_path / "ours") == files(tmp_path / "theirs")
    split("--merge", min((tmp_path / "theirs").iterdir()), tmp_path / "m-MIX.gguf")
    reshard(tmp_path / "theirs", tmp_path / "merged", "single-file")
    assert files(tmp_path / "merged")["m-MIX.gguf"] == (tmp_path / "m-MIX.gguf").read_bytes()


def test_splits_that_gguf_py_writes_are_merged_as_gguf_split_merges_them(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    _gguf_py(_WRITE, tmp_path / "parts/m.gguf")
    assert len(files(tmp_path / "parts")) > 2
    split("--merge", min((tmp_path / "parts").iterdir()), tmp_path / "m.gguf")
    reshard(tmp_path / "parts", tmp_path / "merged", "single-file")
    assert files(tmp_path / "merged") == {"m.gguf": (tmp_path / "m.gguf").read_bytes()}


_WRITE = """
import sys, numpy, gguf
writer = gguf.GGUFWriter(sys.argv[1], "llama", split_max_size=5000)
writer.add_block_count(3)
for n in range(9):
    writer.add_tensor(f"blk.{n}.w", numpy.arange(501 + n, dtype=numpy.float32))
writer.write_header_to_file(); writer.write_kv_data_to_file(); writer.write_tensors_to_file(); writer.close()
"""

_LLAMA = """
import sys, numpy, gguf
rows, wide, random = 32, 64, numpy.random.default_rng(0)
writer = gguf.GGUFWriter(sys.argv[1], "llama")
writer.add_block_count(2); writer.add_context_length(64); writer.add_embedding_length(rows)
writer.add_feed_forward_length(wide); writer.add_head_count(4); writer.add_head_count_kv(4)
writer.add_layer_norm_rms_eps(1e-5); writer.add_rope_dimension_count(8); writer.add_vocab_size(40)
writer.add_tokenizer_model("llama"); writer.add_token_list([f"t{n}" for n in range(40)])
writer.add_token_scores([0.0] * 40); writer.add_token_types([1] * 40)
if len(sys.argv) > 2: writer.add_custom_alignment(int(sys.argv[2]))
def add(name, *shape): writer.add_tensor(name, random.standard_normal(shape, numpy.float32))
add("token_embd.weight", 40, rows); add("output_norm.weight", rows); add("output.weight", 40, rows)
for n in range(2):
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"): add(f"blk.{n}.{name}.weight", rows, rows)
    for name in ("ffn_gate", "ffn_up"): add(f"blk.{n}.{name}.weight", wide, rows)
    add(f"blk.{n}.ffn_down.weight", rows, wide)
    for name in ("attn_norm", "ffn_norm"): add(f"blk.{n}.{name}.weight", rows)
writer.write_header_to_file(); writer.write_kv_data_to_file(); writer.write_tensors_to_file(); writer.close()
"""


@pytest.mark.parametrize("alignment", [[], ["64"]])
def test_original_splits_and_merged_file_have_equal_logits_in_llama_cpp(tmp_path: Path, alignment: list[str]) -> None:
    source = tmp_path / "source"
    source.mkdir()
    _gguf_py(_LLAMA, source / "m-F32.gguf", *alignment)
    reshard(source, tmp_path / "parts", "20kB")
    reshard(tmp_path / "parts", tmp_path / "merged", "single-file")
    reshard(source, tmp_path / "copy", "single-file")

    def logits(folder: Path) -> str:
        first = min(folder.glob("*.gguf"))
        return subprocess.check_output([LLAMA / "logits", first, BINS], text=True)

    original = logits(source)
    assert len(set(original.split())) > 30 and len(files(tmp_path / "parts")) > 3
    for folder in ("parts", "merged", "copy"):
        assert logits(tmp_path / folder) == original
