"""The GGUF models of a source: which there are, which one is taken, and which files do not belong together."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from sharding import job
from sharding.checkpoint.read import read_checkpoint
from sharding.core.errors import SourceError, UsageError, VariantMissing
from sharding.core.options import Options
from sharding.core.values import Content
from sharding.storage.folder_source import open_folder
from tests.folders import reshard
from tests.ggufs import MODEL, Info, gguf, key, layers, model
from tests.promises import promise

NAMES = ("a-Q4_K_M", "a-UD-Q4_K_M", "a.q8_0", "sub/a-BF16", "mmproj-a-F16", "imatrix")


@pytest.fixture
def several(tmp_path: Path) -> Path:
    for name in NAMES:
        model(tmp_path / "several", name)
    return tmp_path / "several"


def read(folder: Path, variant: str = "") -> Content:
    return read_checkpoint(open_folder(str(folder)), variant)


def taken(folder: Path, variant: str = "") -> list[str]:
    return [component.stem for component in read(folder, variant).components]


@pytest.mark.parametrize(
    ("variant", "names"),
    [
        ("Q8_0", ["a.q8_0"]),
        ("bf16", ["sub/a-BF16"]),
        ("UD-Q4_K_M", ["a-UD-Q4_K_M"]),
        ("a-Q4_K_M", ["a-Q4_K_M"]),
        ("a-Q4_K_M.gguf", ["a-Q4_K_M"]),
        ("mmproj-a-F16", ["mmproj-a-F16"]),
        ("*Q4_K_M", ["a-Q4_K_M", "a-UD-Q4_K_M"]),
        ("*", ["a-Q4_K_M", "a-UD-Q4_K_M", "a.q8_0", "sub/a-BF16"]),
    ],
)
def test_a_model_is_taken_by_its_tag_its_name_or_a_glob(several: Path, variant: str, names: Sequence[str]) -> None:
    assert taken(several, variant) == names


@pytest.mark.parametrize(("variant", "there"), [("", 4), ("F16", 4), ("Q4_K_M", 2), ("no*", 4)])
def test_where_several_could_be_meant_they_are_named(several: Path, variant: str, there: int) -> None:
    with pytest.raises(VariantMissing) as error:
        read(several, variant)
    assert len(error.value.there) == there and all(name in error.value.hint for name in error.value.there)


def test_inspect_lists_all_models_without_a_choice(several: Path) -> None:
    assert len(job.inspect(str(several)).components) == 4
    assert job.inspect(str(several), variant="BF16").sizes["Q8_0"] == (several / "a.q8_0.gguf").stat().st_size


def test_beside_other_weights_only_who_asks_gets_them(several: Path, checkpoint: Path) -> None:
    (checkpoint / "a.gguf").write_bytes(gguf(layers()))
    assert job.inspect(str(checkpoint)).format == "safetensors"
    assert job.inspect(str(checkpoint), format="gguf").format == "gguf"


def parts(folder: Path, **changed: bytes) -> Path:
    """A model in three parts, some of which may be `changed`, or left out if they have no bytes."""
    folder.mkdir()
    for number in range(3):
        keys = [key("split.no", number, 2), key("split.tensors.count", 3, 5), key("split.count", 3, 2)]
        data = gguf([Info(f"w{number}", (7,))], [*(MODEL if not number else ()), *keys])
        if data := changed.get(f"part{number}", data):
            (folder / f"m-0000{number + 1}-of-00003.gguf").write_bytes(data)
    return folder


def _keys(no: int, tensors: int = 3, count: int = 3, kind: int = 2) -> list[tuple[bytes, int, bytes]]:
    return [key("split.no", no, kind), key("split.tensors.count", tensors, 5), key("split.count", count, 2)]


@pytest.mark.parametrize(
    ("problem", "part", "data"),
    [
        ("m-00002-of-00003", 1, b""),
        ("its header says split.no 2", 1, gguf([Info("w1", (7,))], _keys(2))),
        ("its header says split.no None", 1, gguf([Info("w1", (7,))], [])),
        ("its header says split.tensors.count 4", 0, gguf([Info("w0", (7,))], _keys(0, 4))),
        ("its header says split.count 2", 0, gguf([Info("w0", (7,))], _keys(0, 3, 2))),
        ("another type", 0, gguf([Info("w0", (7,))], _keys(0, kind=4))),
        ("w0 is in two files", 1, gguf([Info("w0", (7,))], _keys(1))),
        ("truncated", 2, gguf([Info("w2", (7,))], _keys(2))[:-9]),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(tmp_path: Path, problem: str, part: int, data: bytes) -> None:
    with pytest.raises(SourceError, match=problem):
        read(parts(tmp_path / "parts", **{f"part{part}": data}))


def test_keys_of_later_parts_and_bytes_behind_the_last_tensor_are_left_out_with_a_finding(tmp_path: Path) -> None:
    data = gguf([Info("w1", (7,))], [*_keys(1), key("extra", 1)]) + bytes(50)
    found = read(parts(tmp_path / "parts", part1=data)).findings
    assert [one.code for one in found if one.level == "warning"] == ["behind-tensors", "keys-left-out"]
    assert "50 bytes" in found[0].message and "extra" in found[1].message


def test_one_of_several_parts_alone_and_two_sets_of_one_model_are_refused(tmp_path: Path) -> None:
    lone = model(tmp_path / "lone", "m")
    (lone / "m.gguf").write_bytes(gguf(layers(), [*MODEL, *_keys(0)]))
    with pytest.raises(SourceError, match="its header says split.*count 3"):
        read(lone)
    (lone / "m-00001-of-00001.gguf").write_bytes(gguf(layers()))
    with pytest.raises(SourceError, match="m is there twice"):
        read(lone)
    with pytest.raises(SourceError, match="m is there twice"):
        (parts(tmp_path / "parts") / "m.gguf").write_bytes(gguf(layers()))
        read(tmp_path / "parts")


@pytest.mark.parametrize("name", ["m.gguf.part1of2", "m.gguf-split-a"])
def test_plain_pieces_are_to_be_put_together_first(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(gguf(layers())[:1000])
    with pytest.raises(SourceError, match="plain pieces") as error:
        read(tmp_path)
    assert "cat" in error.value.hint


@promise("docs/formats.md#gguf")
@pytest.mark.parametrize(
    "chosen", [{"dtype": "bf16"}, {"dequantize": True}, {"strategy": "blocks"}, {"order": "transformers"}]
)
def test_what_would_change_or_reorder_tensors_is_wrong_usage(tmp_path: Path, chosen: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="cannot be used with GGUF"):
        job.plan(str(model(tmp_path / "m")), Options(**chosen))  # type: ignore[arg-type]


def test_what_llama_cpp_loads_from_one_file_is_never_split(tmp_path: Path) -> None:
    source = model(tmp_path / "m")
    (source / "small-Q4_K_M.gguf").write_bytes(gguf(layers(), [key("general.type", "adapter")]))
    with pytest.raises(UsageError, match="only from one file"):
        job.plan(str(source), "20kB")
    reshard(source, tmp_path / "out", "1MB")
    assert (tmp_path / "out/small-Q4_K_M.gguf").read_bytes() == (source / "small-Q4_K_M.gguf").read_bytes()


def test_every_choice_that_is_offered_takes_its_own_model(tmp_path: Path) -> None:
    names = ["Q8_0", "m-Q8_0", "x/F16", "a-F16", "b-Q4_0"]
    for name in names:
        model(tmp_path, name)
    with pytest.raises(VariantMissing) as refusal:
        read(tmp_path)
    assert sorted(taken(tmp_path, choice)[0] for choice in refusal.value.there) == sorted(names)


def test_a_model_that_is_there_twice_and_pieces_of_others_stand_in_nobodys_way(tmp_path: Path) -> None:
    for name in ("m-Q8_0", "m-Q4_0", "m-Q4_0-00001-of-00002"):
        model(tmp_path, name)
    for name in ("m-F16.gguf.part1of2", "m-F16.gguf.incomplete"):
        (tmp_path / name).write_bytes(b"GGUF")
    content = read(tmp_path, "Q8_0")
    assert [file.path for file in content.side_files] == ["LICENSE"]
    for words in ("piece of a GGUF", "unfinished download"):
        assert any(words in one.message for one in content.findings)
