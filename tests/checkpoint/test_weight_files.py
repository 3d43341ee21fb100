"""Which files are the weights: variants, other names, adapters, quantized and pickled ones."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import save_file
from safetensors.torch import load_file
from safetensors.torch import save_file as save_torch_file
from transformers import AutoModelForCausalLM

from sharding import job
from sharding.core.errors import SourceError, UsageError, VariantMissing
from tests import models
from tests.checkpoint.repos import repo
from tests.conftest import listing, random_tensors, write_checkpoint
from tests.folders import compared, in_folders, reshard, said, weights
from tests.promises import promise

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
SIZE = "50kB"
PLAIN = {"model.safetensors": {"w": np.zeros(3, np.float32)}}


@pytest.fixture(scope="module")
def variants(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.save_variants(tmp_path_factory.mktemp("variants"))


def test_the_plain_weights_are_taken_and_the_variants_left_out_are_named(variants: Path, tmp_path: Path) -> None:
    found = job.inspect(str(variants))
    assert [file.path for file in found.weight_files] == ["model.safetensors"]
    assert "fp16" in said(variants)["variants"]
    assert found.other_variants == ("fp16",)
    assert job.inspect(str(variants), variant="fp16").other_variants == ("",)
    with pytest.raises(VariantMissing, match="no variant 'bf16'") as refusal:
        job.inspect(str(variants), variant="bf16")
    assert "the plain weights, 'fp16'" in refusal.value.hint and refusal.value.there == ("", "fp16")
    with pytest.raises(UsageError, match="only the plain weights"):
        reshard(variants, tmp_path / "out", engine="classic", variant="fp16")


@pytest.mark.parametrize("size", [SIZE, "1GB"])
def test_a_variant_keeps_the_names_of_its_kind_byte_for_byte(variants: Path, tmp_path: Path, size: str) -> None:
    report = reshard(variants, tmp_path / "out", size, variant="fp16")
    model = AutoModelForCausalLM.from_pretrained(variants, variant="fp16")
    model.save_pretrained(tmp_path / "theirs", variant="fp16", max_shard_size=size)
    assert weights(tmp_path / "out") == weights(tmp_path / "theirs")
    assert ("model.safetensors.index.fp16.json" in weights(tmp_path / "out")) == (size == SIZE)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out", variant="fp16")
    assert torch.equal(models.logits(model), models.logits(loaded))
    assert "variant='fp16'" in (tmp_path / "out/README.md").read_text()
    assert compared(variants, tmp_path / "out", variant="fp16").identical and report.source.variant == "fp16"


def test_a_variant_that_is_all_there_is_gets_taken(variants: Path, tmp_path: Path) -> None:
    source = tmp_path / "only"
    shutil.copytree(variants, source)
    (source / "model.safetensors").unlink()
    reshard(source, tmp_path / "out")
    assert "fp16" in said(source)["variant"]
    assert [job.inspect(str(source), variant=name).other_variants for name in ("", "fp16")] == [(), ()]
    assert (tmp_path / "out/model.safetensors.index.fp16.json").exists()
    shutil.copy(source / "model.fp16.safetensors", source / "model.ema.safetensors")
    with pytest.raises(VariantMissing, match="several variants but no plain weights") as refusal:
        job.inspect(str(source))
    assert "'ema', 'fp16'" in refusal.value.hint and refusal.value.there == ("ema", "fp16")


def test_names_of_variants_as_diffusers_wrote_them_before_are_understood(tmp_path: Path) -> None:
    first, second = (f"model-0000{n}-of-00002.fp16.safetensors" for n in (1, 2))
    files = {first: {"a": np.zeros(3)}, second: {"b": np.ones(3)}, **PLAIN}
    folder = write_checkpoint(tmp_path / "in", files, index=False)
    assert [file.path for file in job.inspect(str(folder), variant="fp16").weight_files] == [first, second]
    index = {"weight_map": {"a": first, "b": second}}
    (folder / "model.safetensors.fp16.index.json").write_text(json.dumps(index))
    assert said(folder, "fp16").keys() == {"variant", "left-out"}
    reshard(folder, tmp_path / "out", variant="fp16", size="30B")
    assert "model.safetensors.index.fp16.json" in listing(tmp_path / "out")
    # An index with the name of today counts before it.
    save_file({"c": np.ones(3)}, folder / "old.safetensors")
    (folder / "model.safetensors.index.fp16.json").write_text(json.dumps(index))
    (folder / "model.safetensors.fp16.index.json").write_text('{"weight_map": {"c": "old.safetensors"}}')
    assert [file.path for file in job.inspect(str(folder), variant="fp16").weight_files] == [first, second]


def test_a_pickled_variant_is_taken_and_keeps_the_name_of_its_kind(variants: Path, tmp_path: Path) -> None:
    source = tmp_path / "in"
    shutil.copytree(variants, source)
    torch.save(load_file(source / "model.fp16.safetensors"), source / "pytorch_model.fp16.bin")
    (source / "model.fp16.safetensors").unlink()
    reshard(source, tmp_path / "out", variant="fp16")
    one, other = (AutoModelForCausalLM.from_pretrained(folder, variant="fp16") for folder in (source, tmp_path / "out"))
    assert torch.equal(models.logits(one), models.logits(other)) and one.dtype == torch.float16


@pytest.mark.parametrize("size", ["100kB", "1GB"])
def test_weights_that_the_configuration_names_are_taken_and_the_result_has_the_usual_names(
    tmp_path: Path, size: str
) -> None:
    source = models.save("llama", tmp_path / "in", size)
    named = "consolidated.safetensors" + (".index.json" if size == "100kB" else "")
    (source / f"model{named.removeprefix('consolidated')}").rename(source / named)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "transformers_weights": named}))
    save_file({"other": np.ones(3)}, source / "model.safetensors")
    save_file({"other": np.ones(3)}, source / "model.fp16.safetensors")
    assert job.inspect(str(source)).other_variants == ()  # transformers loads what is named, whatever the variant
    reshard(source, tmp_path / "out")
    assert json.loads((tmp_path / "out/config.json").read_text()) == config
    one, other = (AutoModelForCausalLM.from_pretrained(folder) for folder in (source, tmp_path / "out"))
    assert torch.equal(models.logits(one), models.logits(other))


@pytest.mark.parametrize("name", ["absent.safetensors", "../secret.safetensors", "adapter_model.bin", "model.gguf"])
def test_a_configuration_that_names_no_weights_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SourceError, match="transformers_weights"):
        job.inspect(str(repo(tmp_path, {**PLAIN, "config.json": {"transformers_weights": name}})))


QUANTIZED: dict[str, dict[str, torch.Tensor]] = {
    "bitsandbytes": {
        "q.weight": torch.arange(200, dtype=torch.uint8).view(-1, 1),
        "q.weight.absmax": torch.ones(4),
        "q.weight.quant_state.bitsandbytes__nf4": torch.arange(90, dtype=torch.uint8),
    },
    "torchao": {"q._weight_qdata": torch.arange(-64, 64).to(torch.int8), "q._weight_scale": torch.ones(8).bfloat16()},
}


@promise("README.md#limits")
@pytest.mark.parametrize("method", QUANTIZED)
def test_a_quantized_repo_is_copied_bit_for_bit_with_the_metadata_of_every_shard(method: str, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    # As transformers 5.23 saves what torchao has quantized: what each tensor was stands in the header of every file.
    layout = {"tensor_names": json.dumps(["q.weight"]), "q.weight": json.dumps({"_type": "Int8Tensor"})}
    metadata = {"format": "pt", **(layout if method == "torchao" else {})}
    tensors = QUANTIZED[method]
    files = {name: f"model-{n:05d}-of-{len(tensors):05d}.safetensors" for n, name in enumerate(tensors, start=1)}
    for name, file in files.items():
        save_torch_file({name: tensors[name]}, source / file, metadata=metadata)
    (source / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    config = {"quantization_config": {"quant_method": method}}
    (source / "config.json").write_text(json.dumps(config))
    for size in ("100B", "1GB"):
        out = tmp_path / size
        reshard(source, out, size)
        assert in_folders(out) == in_folders(source)
        assert json.loads((out / "config.json").read_text()) == config
        for path in out.glob("*.safetensors"):
            with safe_open(path, "pt") as file:
                assert file.metadata() == metadata


@pytest.mark.parametrize(("stored", "kept"), [(None, "pt"), ({"who": "me"}, "pt"), ({"format": "mlx"}, "mlx")])
def test_the_format_in_the_metadata_is_the_sources_or_pt(
    tmp_path: Path, stored: dict[str, str] | None, kept: str
) -> None:
    (tmp_path / "in").mkdir()
    save_file(random_tensors(), tmp_path / "in/model.safetensors", metadata=stored)
    reshard(tmp_path / "in", tmp_path / "out")
    for path in (tmp_path / "out").glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            assert file.metadata() == {**(stored or {}), "format": kept}
