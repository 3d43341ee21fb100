"""What loads a repo: sentence transformers, and descriptions that are none."""

from pathlib import Path
from typing import get_args

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel

from sharding import job
from sharding.core.errors import SourceError
from sharding.core.values import Library
from sharding.report.snippets import loading_code
from tests import models
from tests.checkpoint.repos import modules, ones, pipeline, repo
from tests.conftest import listing, write_checkpoint
from tests.folders import reshard
from tests.kinds import sentences

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
PLAIN = {"model.safetensors": ones("w")}


@pytest.mark.parametrize("is_old", [False, True])
def test_a_sentence_transformer_is_loaded_as_before_also_from_a_folder_of_the_old_kind(
    is_old: bool, tmp_path: Path
) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    sentences.write(source)
    if is_old:
        (source / "0_Transformer").mkdir()
        torch.save(load_file(source / "model.safetensors"), source / "0_Transformer/pytorch_model.bin")
        (source / "model.safetensors").unlink()
        (source / "config.json").rename(source / "0_Transformer/config.json")
        repo(source, modules({"0_Transformer": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense"}))
    reshard(source, out)
    place = "0_Transformer" if is_old else ""
    one, other = (AutoModel.from_pretrained(folder / place) for folder in (source, out))
    assert torch.equal(models.logits(one), models.logits(other))
    assert (out / place / "model.safetensors.index.json").exists()
    assert {"modules.json", "1_Pooling/config.json", "2_Dense/config.json"} <= listing(out).keys()
    assert f"SentenceTransformer({f'./{out.name}'!r})" in (out / "README.md").read_text()


WRONG = ["", "[]", "3", "null", '{"unet": 1}', "[[]]", '[{"path": 3}]', '{"architectures": [3]}', "[" * 100_000]


@pytest.mark.parametrize("name", ["model_index.json", "modules.json", "config.json"])
def test_a_description_that_is_none_does_not_hurt(tmp_path: Path, name: str) -> None:
    folder = write_checkpoint(tmp_path / "in", PLAIN, index=False)
    for text in WRONG:
        (folder / name).write_text(text)
        found = job.inspect(str(folder))
        assert [tensor.name for tensor in found.tensors] == ["w"]
        assert found.architecture == (None if name == "config.json" else "LlamaForCausalLM")


def test_a_pipeline_that_names_folders_outside_has_no_weights(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "secret", PLAIN, index=False)
    names = dict.fromkeys(("../secret", "/etc", ""), ("diffusers", "M"))
    with pytest.raises(SourceError):
        job.inspect(str(repo(tmp_path / "in", {**PLAIN, **pipeline(**names)})))


def test_a_modular_pipeline_is_refused_with_a_hint_that_works(tmp_path: Path) -> None:
    weights = {"transformer/diffusion_pytorch_model.safetensors": ones("w")}
    parts = {"_class_name": "FluxModularPipeline", "transformer": [None, None, {"repo": "a/b"}]}
    config = {"transformer/config.json": {"_class_name": "FluxTransformer2DModel"}}
    repo(tmp_path / "in", {**weights, **config, "modular_model_index.json": parts})
    refused = "folders that no configuration names: transformer/diffusion_pytorch_model.safetensors"
    with pytest.raises(SourceError, match=refused) as refusal:
        job.inspect(str(tmp_path / "in"))
    assert "SOURCE/transformer" in refusal.value.hint
    reshard(tmp_path / "in/transformer", tmp_path / "out")
    assert "diffusion_pytorch_model.safetensors" in listing(tmp_path / "out")


@pytest.mark.parametrize("library", get_args(Library))
def test_the_code_to_load_with_is_python_whatever_the_place_is_called(library: Library) -> None:
    for place in ("a/b'", "./a'", "./it's\\n"):
        compile(loading_code(place, library, "LlamaForCausalLM", "fp'16", place), "card", "exec")
