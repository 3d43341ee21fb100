"""What loads a repo: sentence transformers, and descriptions that are none."""

import json
import shutil
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import load_file
from transformers import AutoModel

from sharding import job
from sharding.core.errors import SourceError
from sharding.core.values import Library
from sharding.report.snippets import loading_code
from tests import models
from tests.conftest import listing, write_checkpoint
from tests.folders import in_folders, reshard, said

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
SIZE = "50kB"
PLAIN = {"model.safetensors": {"w": np.zeros(3, np.float32)}}


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT with a pooling and a dense module, in the files of sentence-transformers."""
    folder = tmp_path_factory.mktemp("sentences") / "tiny"
    models.build("bert").save_pretrained(folder)
    parts = ("", "1_Pooling", "2_Dense")
    kinds = ("Transformer", "Pooling", "Dense")
    modules = [
        {"idx": n, "name": str(n), "path": part, "type": f"sentence_transformers.models.{kind}"}
        for n, (part, kind) in enumerate(zip(parts, kinds, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps({"word_embedding_dimension": 32}))
    (folder / "2_Dense").mkdir()
    (folder / "2_Dense/config.json").write_text(json.dumps({"in_features": 32, "out_features": 500}))
    dense = {"linear.weight": np.ones((500, 32), np.float32), "linear.bias": np.ones(500, np.float32)}
    save_file(dense, folder / "2_Dense/model.safetensors")
    return folder


def test_a_sentence_transformer_is_cut_but_for_the_modules_that_know_one_file(sentences: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    report = reshard(sentences, out)
    assert in_folders(out) == in_folders(sentences)
    assert (out / "model.safetensors.index.json").exists()
    assert (out / "2_Dense/model.safetensors").stat().st_size > 50_000
    assert "2_Dense/model" in said(sentences)["kept-whole"]
    assert {"modules.json", "1_Pooling/config.json", "2_Dense/config.json"} <= set(listing(out))
    one, other = (AutoModel.from_pretrained(folder) for folder in (sentences, out))
    assert torch.equal(models.logits(one), models.logits(other))
    assert f"SentenceTransformer({f'./{out.name}'!r})" in (out / "README.md").read_text()
    assert {finding.code for finding in report.plan.findings} == said(sentences).keys()


def test_a_pickled_module_of_a_sentence_transformer_is_copied(sentences: Path, tmp_path: Path) -> None:
    source = tmp_path / "in"
    shutil.copytree(sentences, source)
    (source / "2_Dense/model.safetensors").unlink()
    (source / "2_Dense/pytorch_model.bin").write_bytes(b"pickled")
    reshard(source, tmp_path / "out")
    assert (tmp_path / "out/2_Dense/pytorch_model.bin").read_bytes() == b"pickled"


def test_a_sentence_transformer_of_the_old_kind_has_a_folder_with_pickled_weights(
    sentences: Path, tmp_path: Path
) -> None:
    source = tmp_path / "in"
    shutil.copytree(sentences, source)
    (source / "0_Transformer").mkdir()
    torch.save(load_file(source / "model.safetensors"), source / "0_Transformer/pytorch_model.bin")
    (source / "model.safetensors").unlink()
    (source / "config.json").rename(source / "0_Transformer/config.json")
    modules = json.loads((source / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (source / "modules.json").write_text(json.dumps(modules))
    reshard(source, tmp_path / "out")
    one, other = (AutoModel.from_pretrained(folder) for folder in (sentences, tmp_path / "out/0_Transformer"))
    assert torch.equal(models.logits(one), models.logits(other))


@pytest.mark.parametrize("text", ["", "[]", "3", "null", '{"unet": 1}', "[[]]", '[{"path": 3}]', "[" * 100_000])
@pytest.mark.parametrize("name", ["model_index.json", "modules.json", "config.json"])
def test_a_description_that_is_none_does_not_hurt(tmp_path: Path, name: str, text: str) -> None:
    folder = write_checkpoint(tmp_path / "in", PLAIN, index=False)
    (folder / name).write_text(text)
    assert [tensor.name for tensor in job.inspect(str(folder)).tensors] == ["w"]


def test_a_pipeline_that_names_folders_outside_has_no_weights(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "in", PLAIN, index=False)
    write_checkpoint(tmp_path / "secret", PLAIN, index=False)
    parts = {"_class_name": "P", "../secret": ["diffusers", "M"], "/etc": ["diffusers", "M"], "": ["diffusers", "M"]}
    (folder / "model_index.json").write_text(json.dumps(parts))
    with pytest.raises(SourceError):
        job.inspect(str(folder))


def test_a_modular_pipeline_is_refused_with_a_hint_that_works(tmp_path: Path) -> None:
    folder = write_checkpoint(
        tmp_path / "in/transformer", {"diffusion_pytorch_model.safetensors": PLAIN["model.safetensors"]}
    )
    (folder / "config.json").write_text('{"_class_name": "FluxTransformer2DModel"}')
    parts = {"_class_name": "FluxModularPipeline", "transformer": [None, None, {"repo": "a/b"}]}
    (tmp_path / "in/modular_model_index.json").write_text(json.dumps(parts))
    with pytest.raises(SourceError, match="no configuration names") as refusal:
        job.inspect(str(tmp_path / "in"))
    assert "SOURCE/transformer" in refusal.value.hint
    reshard(tmp_path / "in/transformer", tmp_path / "out", SIZE)
    assert "diffusion_pytorch_model.safetensors" in listing(tmp_path / "out")


@pytest.mark.parametrize("library", get_args(Library))
@pytest.mark.parametrize("base", ["model", "pytorch_lora_weights", "learned_embeds", "it's\\n"])
def test_the_code_to_load_with_is_python_whatever_the_names_are(library: Library, base: str) -> None:
    for named in (None, "LlamaForCausalLM", "x; import os", "StableDiffusionPipeline"):
        for place in ("a/b'", "./a'"):
            compile(loading_code(place, library, named, "fp'16", base), "card", "exec")
        assert "import os" not in loading_code("a/b", library, named, base=base)
