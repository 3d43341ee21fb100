"""Weights that lie beside a model, which something finds by name, are in the copy as they are."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from sharding import job
from sharding.core.errors import SourceError
from tests import models
from tests.checkpoint.repos import BERT, repo
from tests.folders import compared, finish, reshard
from tests.fuzz.seeds import saved
from tests.storage.publications import write_pipeline

ADAPTER = {"lora_A.weight": np.arange(9000, dtype=np.float32)}


def put(folder: Path, path: str) -> bytes:
    """Write weights at `path`, and a configuration beside those in a folder of their own; return the bytes."""
    above = path.rpartition("/")[0]
    config = {f"{above}/adapter_config.json": {}} if above else {}
    repo(folder, {**config, path: ADAPTER if path.endswith(".safetensors") else saved({"w": torch.ones(9)})})
    return (folder / path).read_bytes()


@pytest.mark.parametrize(
    "paths",
    [
        [
            *("speech-lora/adapter_model.safetensors", "adapters/adapter_model.bin", "open_clip_model.safetensors"),
            *("speech_tokenizer/model.safetensors", "deep/er/head.safetensors", "adapter_model.safetensors"),
            "speaker_embeddings/v2/en_speaker_0.npy",
            *("value_head.safetensors", "adapter.fra.safetensors", "spk_dict.pt", "pytorch_lora_weights.safetensors"),
        ],
        ["value_head.bin"],
    ],
)
def test_weights_that_something_finds_by_name_are_copied_byte_for_byte(
    checkpoint: Path, tmp_path: Path, paths: list[str]
) -> None:
    data = {path: put(checkpoint, path) for path in paths}
    report = reshard(checkpoint, tmp_path / "out")
    assert {path: (tmp_path / "out" / path).read_bytes() for path in paths} == data
    [kept] = [finding for finding in job.inspect(str(checkpoint)).findings if finding.code == "kept-whole"]
    assert [path for path in sorted(paths)[:2] if path not in kept.message] == []
    assert {*paths} <= {*report.files} and len(report.plan.shards) > 2
    assert compared(checkpoint, tmp_path / "out").identical


def test_the_model_once_more_and_states_of_the_training_are_left_out_by_name(checkpoint: Path, tmp_path: Path) -> None:
    paths = [
        *("onnx/model.safetensors", "original/consolidated.00.pth", "checkpoint-500/model.safetensors"),
        *("global_step100/zero_pp_rank_0_mp_rank_00_optim_states.pt", "speech-lora/optimizer.pt"),
        "single_file.safetensors",
    ]
    for path in paths:
        put(checkpoint, path)
    for folder in ("global_step100", "onnx", "original"):
        (checkpoint / folder / "adapter_config.json").unlink()
    reshard(checkpoint, tmp_path / "out")
    assert not [path for path in paths if (tmp_path / "out" / path).exists()]
    messages = [finding.message for finding in job.inspect(str(checkpoint)).findings if finding.code == "left-out"]
    assert [path for path in paths if not any(path in message for message in messages)] == []


def test_verify_notices_one_that_is_other_missing_or_new(checkpoint: Path, tmp_path: Path) -> None:
    put(checkpoint, "lora/adapter_model.safetensors")
    out = tmp_path / "out"
    reshard(checkpoint, out)
    place = out / "lora/adapter_model.safetensors"
    data = place.read_bytes()

    def problem() -> tuple[str, str]:
        (mismatch,) = compared(checkpoint, out).mismatches
        return mismatch.tensor, mismatch.problem

    assert compared(checkpoint, out, quick=False).identical
    place.write_bytes(data[:-1] + b"!")
    assert problem() == ("lora/adapter_model.safetensors", "its bytes differ")
    place.unlink()
    assert problem() == ("lora/adapter_model.safetensors", "it is missing")
    place.write_bytes(data)
    put(out, "more/adapter_model.safetensors")
    assert compared(checkpoint, out).identical, "nothing finds that with the model"
    put(out, "adapter_model.safetensors")
    assert problem() == ("adapter_model.safetensors", "it is not in the original")


@pytest.mark.parametrize("quick", [False, True])
def test_a_new_one_counts_in_the_folder_of_every_component_and_nowhere_else(tmp_path: Path, quick: bool) -> None:
    source, one, other = write_pipeline(tmp_path / "in"), tmp_path / "one", tmp_path / "other"
    for out in (one, other):
        reshard(source, out)
    for folder, counts in (("text_encoder/", True), ("unet/", True), ("more/", False), ("unet/deep/", False)):
        place = other / folder / "adapter_model.safetensors"
        place.parent.mkdir(exist_ok=True)
        save_file(ADAPTER, place)
        for pair, problem in (((one, other), "it is not in the original"), ((other, one), "it is missing")):
            found = [(each.tensor, each.problem) for each in compared(*pair, quick=quick).mismatches]
            told = counts or problem == "it is missing"
            assert found == ([(f"{folder}adapter_model.safetensors", problem)] if told else []), folder
        place.unlink()


def test_a_quick_look_says_that_it_has_not_compared_their_bytes(checkpoint: Path, tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    reshard(checkpoint, one)
    reshard(checkpoint, other)
    before = compared(one, other, quick=True).unchecked
    for out in (one, other):
        put(out, "lora/adapter_model.safetensors")
    assert len(compared(one, other, quick=True).unchecked) == len(before) + 1
    (other / "lora/adapter_model.safetensors").write_bytes(b"short")
    assert not compared(one, other, quick=True).identical


@pytest.mark.usefixtures("classic_here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_the_classic_engine_copies_them_too(tmp_path: Path) -> None:
    source = models.save("llama", tmp_path / "in", layers=1)
    data = put(source, "lora/adapter_model.safetensors")
    finish(job.shard(str(source), str(tmp_path / "out"), "50kB", engine="classic"))
    assert (tmp_path / "out/lora/adapter_model.safetensors").read_bytes() == data


@pytest.mark.parametrize(
    ("side", "model"),
    [
        *(("speaker_embeddings.safetensors", "model.pth"), ("mmproj.safetensors", "llava-q4.gguf")),
        *(("head.safetensors", model) for model in ("tf_model.h5", "flax_model.msgpack", "weights.ckpt")),
    ],
)
@pytest.mark.parametrize("config", [{}, {"config.json": BERT}], ids=len)
def test_weights_beside_a_model_in_another_format_are_not_taken_for_it(
    tmp_path: Path, side: str, model: str, config: dict[str, Any]
) -> None:
    with pytest.raises(SourceError) as refusal:
        job.inspect(str(repo(tmp_path, {side: ADAPTER, model: "x", **config})))
    assert side in refusal.value.message and model in refusal.value.message


@pytest.mark.parametrize("other", ["yolo.pt", "yolo.Q4_K_M.gguf", "training_args.bin", "vocabulary.pkl"])
def test_the_one_file_beside_itself_in_another_format_or_beside_data_is_the_model(tmp_path: Path, other: str) -> None:
    repo(tmp_path, {"yolo.safetensors": ADAPTER, other: "x"})
    assert [file.path for file in job.inspect(str(tmp_path)).weight_files] == ["yolo.safetensors"]
