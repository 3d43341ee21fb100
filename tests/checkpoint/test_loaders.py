"""Which files are taken, and under which names, is what the loader of a repo wants: cases that came up once."""

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from safetensors.torch import save_file as save_torch

from sharding import job
from sharding.core.errors import SourceError, UsageError
from tests import models
from tests.checkpoint.repos import BERT, LARGE, LORA, PICKLED, modules, pipeline, repo, weights_of
from tests.conftest import listing, random_tensors
from tests.folders import reshard, said, write_ranks

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
MIXIN = "---\ntags:\n- pytorch_model_hub_mixin\n---\n"
MODEL = {"model.safetensors": LARGE}
ONE = {"model.safetensors"}
UNET = {**pipeline(unet=("diffusers", "U")), "unet/diffusion_pytorch_model.safetensors": LARGE}
PIPELINE_LORA = {"pytorch_lora_weights.safetensors": LORA, "learned_embeds.safetensors": LORA}
WITHOUT_WEIGHTS = ("CLIPTokenizer", "TokenizersBackend", "CLIPImageProcessorPil", "DDIMScheduler")
TRANSFORMER = {**modules({".": "Transformer"}), **MODEL, "config.json": BERT}
BESIDE: dict[str, Any] = {
    **{"draft/config.json": BERT, "draft/pytorch_model.bin": PICKLED, "draft/value_head.safetensors": LORA},
    **{"ema/config.json": BERT, "ema/diffusion_pytorch_model.bin": PICKLED},
    **{"ema/diffusion_pytorch_model.fp16.safetensors": LARGE, "lora/pytorch_lora_weights.bin": PICKLED},
    **{"twin/config.json": BERT, "twin/model.safetensors": LARGE, "adapter_model.safetensors": LORA},
    **{"more/adapter_model.safetensors": LORA, "more/adapter_config.json": {}, "open_clip_model.safetensors": LORA},
}
TWINS = {"twin/pytorch_model.bin", "adapter_model.bin", "more/adapter_model.bin", "open_clip_pytorch_model.bin"}


def cut(base: str = "model", count: int = 3) -> set[str]:
    return {f"{base}-{n:05d}-of-{count:05d}.safetensors" for n in range(1, count + 1)}


FOUND: dict[str, tuple[dict[str, Any], set[str]]] = {
    "a LoRA that only its tensors tell": ({"style.safetensors": LORA}, {"style.safetensors"}),
    "by its card": ({"style.safetensors": LARGE, "README.md": "---\ntags: [LoRA]\n---\n"}, {"style.safetensors"}),
    "two LoRAs": (
        {"pytorch_lora_weights.safetensors": LORA, "pytorch_lora_weights.v2.safetensors": LORA},
        {"pytorch_lora_weights.safetensors", "pytorch_lora_weights.v2.safetensors"},
    ),
    "a pickled LoRA that another comes before": (
        {"style.safetensors": LORA, "pytorch_lora_weights.bin": PICKLED}
        | {"README.md": "---\nlibrary_name: diffusers\n---\n"},
        {"style.safetensors", "pytorch_lora_weights.bin"},
    ),
    "a mixin around a model of transformers": ({**MODEL, "config.json": BERT, "README.md": MIXIN}, ONE),
    "one tag": ({**MODEL, "README.md": "---\ntags: model_hub_mixin\n---\n"}, ONE),
    "timm takes its pickle before a file of open_clip": (
        {"pytorch_model.bin": PICKLED, "open_clip_model.safetensors": LORA, "config.json": {"pretrained_cfg": {}}},
        {*ONE, "open_clip_model.safetensors"},
    ),
    "open_clip without a file of its own": ({**MODEL, "config.json": BERT, "open_clip_config.json": {}}, ONE),
    "ColBERT": ({**MODEL, "config.json": {"architectures": ["HF_ColBERT"], "model_type": "bert"}}, ONE),
    "a module at the top, by a dot": ({**modules({".": "StaticEmbedding"}), **MODEL}, ONE),
    "a transformer at the top, by a dot": (TRANSFORMER, cut()),
    "a classifier of SetFit": (TRANSFORMER | {"model_head.pkl": "pickled"}, {*cut(), "model_head.pkl"}),
    "a module of the repo's own code": (
        modules({"./2_Dense/": "my.Own"})
        | {
            "2_Dense/weights.safetensors": LORA,
            "2_Dense/pytorch_model.bin": PICKLED,
            "2_Dense/model.safetensors": LARGE,
        },
        {"2_Dense/model.safetensors", "2_Dense/weights.safetensors"},
    ),
    "pickled shards of a module of the repo's own code": (
        {**modules({"0_Own": "my.Own", "1_Dense": "x.Dense"}), "1_Dense/model.safetensors": LARGE}
        | {f"0_Own/pytorch_model-0000{n}-of-00002.bin": PICKLED for n in (1, 2)}
        | {"0_Own/pytorch_model.bin.index.json": {}},
        {"1_Dense/model.safetensors", *(f"0_Own/pytorch_model-0000{n}-of-00002.bin" for n in (1, 2))},
    ),
    "a module below a folder of other layouts": (
        {**modules({"onnx/0_T": "Transformer"}), "onnx/0_T/model.safetensors": LARGE, "onnx/0_T/config.json": BERT}
        | {"onnx/model.safetensors": LARGE},
        cut("onnx/0_T/model"),
    ),
    "a LoRA with differences": (
        {"style.safetensors": {"a.lora_down.weight": LARGE["layers.0.weight"], "a.diff_b": np.ones(9)}},
        {"style.safetensors"},
    ),
    "adapters without those of earlier steps": (
        {f"{folder}adapter_model.safetensors": LORA for folder in ("", "spanish/", "checkpoint-5/", "original/")},
        {"adapter_model.safetensors", "spanish/adapter_model.safetensors"},
    ),
    "spaCy with parts, two of them at the top": (
        {"meta.json": {"spacy_version": ">=3"}, "tok2vec.safetensors": LARGE, "hf/model.safetensors": LARGE}
        | {"vectors.safetensors": LORA},
        {"tok2vec.safetensors", "hf/model.safetensors", "vectors.safetensors"},
    ),
    "adapters at the top of a pipeline": (
        UNET | PIPELINE_LORA,
        {*cut("unet/diffusion_pytorch_model"), *PIPELINE_LORA},
    ),
    "components with a configuration and no weights": (
        UNET
        | pipeline(unet=("diffusers", "U"), **{kind.lower(): ("transformers", kind) for kind in WITHOUT_WEIGHTS})
        | {f"{kind.lower()}/config.json": {} for kind in WITHOUT_WEIGHTS},
        cut("unet/diffusion_pytorch_model"),
    ),
    "pickles of which no safetensors file is the same": (
        {**MODEL, "config.json": BERT, **BESIDE, **dict.fromkeys(TWINS, PICKLED)},
        {*cut(), *(path for path in BESIDE if not path.endswith(".json"))},
    ),
}


@pytest.mark.parametrize("what", FOUND)
def test_a_loader_finds_the_weights_by_the_names_that_it_knows(tmp_path: Path, what: str) -> None:
    files, kept = FOUND[what]
    reshard(repo(tmp_path / "in", files), tmp_path / "out", "40kB")
    assert weights_of(tmp_path / "out") == kept
    beside = {path for path in files if path.endswith(("config.json", ".bin.index.json"))}
    assert beside <= listing(tmp_path / "out").keys()


@pytest.mark.parametrize(
    ("config", "base", "more"),
    [
        (BERT, "model", {"README.md": MIXIN}),
        ({}, "model", {"README.md": MIXIN}),
        ({"_class_name": "U"}, "diffusion_pytorch_model", {"README.md": MIXIN}),
        ({**BERT, "pretrained_cfg": {}}, "model", {}),
        (BERT, "model", {"open_clip_config.json": {}}),
    ],
    ids=["transformers with a card of a mixin", "nobody with one", "diffusers with one", "around timm", "open_clip"],
)
def test_what_lies_in_shards_with_an_index_is_cut_again(
    tmp_path: Path, config: dict[str, object], base: str, more: dict[str, object]
) -> None:
    shards = dict(zip(sorted(cut(base)), LARGE.items(), strict=True))
    index = {"metadata": {}, "weight_map": {name: shard for shard, (name, _) in shards.items()}}
    files = {shard: {name: array} for shard, (name, array) in shards.items()}
    repo(tmp_path / "in", {"config.json": config, f"{base}.safetensors.index.json": index, **files, **more})
    reshard(tmp_path / "in", tmp_path / "out", "80kB")
    assert weights_of(tmp_path / "out") == cut(base, 2)


def test_one_file_is_not_cut_for_a_pipeline(tmp_path: Path) -> None:
    source = models.save("llama", tmp_path / "in", "1GB")
    (source / "README.md").write_text(MIXIN)
    with pytest.raises(UsageError, match="stays one file"):
        job.plan(str(source), job.Options("20kB", strategy="pp:2"))


def save_ranks(folder: Path) -> None:
    """Write the file of a rank in safetensors."""
    from torch.distributed.checkpoint import HuggingFaceStorageWriter, save

    weights = {name: torch.from_numpy(array.copy()) for name, array in LARGE.items()}
    with warnings.catch_warnings(action="ignore"):
        save(weights, storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True), no_dist=True)


@pytest.mark.parametrize("tag", ["lora", "pytorch_model_hub_mixin"])
@pytest.mark.parametrize("form", ["dcp", "safetensors"])
def test_ranks_are_put_together_whatever_the_card_says(tmp_path: Path, tag: str, form: str) -> None:
    (write_ranks if form == "dcp" else save_ranks)(tmp_path / "in")
    (tmp_path / "in/README.md").write_text(f"---\ntags: [{tag}]\n---\n")
    report = reshard(tmp_path / "in", tmp_path / "out", "40kB")
    names = {tensor for shard in report.plan.shards for tensor in shard.tensors}
    assert names == (LARGE if form == "safetensors" else random_tensors()).keys()
    assert (len(report.plan.shards) == 1) == (tag != "lora")


@pytest.mark.parametrize(
    "more",
    [
        {"adapter_model.safetensors": LORA, "lora/adapter_model.safetensors": LORA},
        {**modules({"": "Transformer"}), "config.json": BERT},
    ],
    ids=["adapters", "modules"],
)
def test_ranks_of_a_training_run_are_the_model_whatever_lies_beside_them(tmp_path: Path, more: dict[str, Any]) -> None:
    report = reshard(repo(write_ranks(tmp_path / "in"), more), tmp_path / "out")
    assert report.source.tensors == 14
    assert {path for path in more if path.endswith(".safetensors")} <= weights_of(tmp_path / "out")


def test_modules_of_the_trained_model_come_with_its_files(tmp_path: Path) -> None:
    files = {**modules({"": "Transformer", "2_Dense": "Dense"}), "config.json": BERT, "2_Dense/config.json": {}}
    more = {"2_Dense/model.safetensors": LORA, "model.safetensors": random_tensors()}
    base = repo(tmp_path / "base", {**files, **more})
    report = reshard(write_ranks(tmp_path / "ranks"), tmp_path / "out", base=str(base))
    assert report.source.library == "sentence-transformers"
    assert load_file(tmp_path / "out/2_Dense/model.safetensors").keys() == LORA.keys()
    assert (tmp_path / "out/model.safetensors.index.json").exists()


@pytest.mark.parametrize("folder", ["last-checkpoint", "out/checkpoint-5", "epoch_3", "checkpoint_10"])
def test_what_a_trainer_left_at_earlier_steps_is_left_out_whole(checkpoint: Path, tmp_path: Path, folder: str) -> None:
    repo(checkpoint, {f"{folder}/model.safetensors": LARGE, f"{folder}/config.json": BERT})
    reshard(checkpoint, tmp_path / "out")
    assert not (tmp_path / "out" / folder).exists()


def test_an_adapter_of_a_task_is_loaded_with_the_class_for_it(tmp_path: Path) -> None:
    files = {"adapter_model.safetensors": LORA, "adapter_config.json": {"task_type": "CAUSAL_LM"}}
    reshard(repo(tmp_path / "in", files), tmp_path / "out")
    assert "AutoPeftModelForCausalLM.from_pretrained" in (tmp_path / "out/README.md").read_text()


def test_what_lies_beside_the_model_stays_as_it_is_in_a_cast(tmp_path: Path) -> None:
    files = {**MODEL, "config.json": {**BERT, "dtype": "float32"}, "codec/model.safetensors": LARGE}
    config = {**BERT, "dtype": "float32", "transformers_weights": "model.safetensors"}
    source, out = repo(tmp_path / "in", {**files, "codec/config.json": config}), tmp_path / "out"
    reshard(source, out, "20kB", dtype="bf16")
    assert json.loads((out / "config.json").read_text())["dtype"] == "bfloat16"
    assert json.loads((out / "codec/config.json").read_text()) == config
    assert (out / "codec/model.safetensors").read_bytes() == (source / "codec/model.safetensors").read_bytes()


def test_a_component_that_names_other_weights_is_refused(tmp_path: Path) -> None:
    files = {**pipeline(text_encoder=("transformers", "T")), "text_encoder/model.safetensors": LARGE}
    config = {**BERT, "transformers_weights": "other.safetensors"}
    source = repo(tmp_path / "in", {**files, "text_encoder/config.json": config})
    with pytest.raises(SourceError, match=r"text_encoder/config.json sets transformers_weights to 'other.safetensors'"):
        job.inspect(str(source))


@pytest.mark.parametrize("library", ["diffusers", "transformers", "stable_diffusion"])
@pytest.mark.parametrize("others", [{}, {"vae/flax_model.msgpack": "x"}])
def test_a_component_with_a_configuration_and_no_weights_is_refused(
    tmp_path: Path, library: str, others: dict[str, object]
) -> None:
    parts = pipeline(unet=("diffusers", "U"), vae=(library, "AutoencoderKL"))
    source = repo(tmp_path / "in", {**UNET, **parts, "vae/config.json": {}, **others})
    with pytest.raises(SourceError, match="vae/"):
        job.inspect(str(source))


def test_old_names_of_attention_blocks_keep_a_model_of_diffusers_in_one_file(tmp_path: Path) -> None:
    from diffusers import AutoencoderKL

    torch.manual_seed(0)
    blocks = {"down_block_types": ("DownEncoderBlock2D",), "up_block_types": ("UpDecoderBlock2D",)}
    vae = AutoencoderKL(block_out_channels=(16,), norm_num_groups=4, **blocks)
    vae.save_pretrained(tmp_path / "in")
    renamed = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}
    tensors = load_file(tmp_path / "in/diffusion_pytorch_model.safetensors")
    for new, old in renamed.items():
        tensors = {name.replace(f".attentions.0.{new}.", f".attentions.0.{old}."): one for name, one in tensors.items()}
    save_torch(tensors, tmp_path / "in/diffusion_pytorch_model.safetensors", metadata={"format": "pt"})
    reshard(tmp_path / "in", tmp_path / "out", "20kB")
    assert "attention blocks" in said(tmp_path / "in")["kept-whole"]
    loaded = AutoencoderKL.from_pretrained(tmp_path / "out").state_dict()
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in vae.state_dict().items())


@pytest.mark.parametrize("halves", [("decoder",), ("decoder", "encoder")], ids=len)
def test_an_autoencoder_without_an_encoder_stays_one_file_wherever_it_is(
    halves: tuple[str, ...], tmp_path: Path
) -> None:
    """diffusers looks for a missing encoder only in a single file."""
    tensors = {f"{half}.layers.{n}.weight": np.ones(5000, np.float32) for half in halves for n in range(3)}
    files = {**pipeline(vae=("diffusers", "AutoencoderKL")), "vae/config.json": {"_class_name": "AutoencoderKL"}}
    source = repo(tmp_path / "in", {**files, "vae/diffusion_pytorch_model.safetensors": tensors})
    reshard(source, tmp_path / "out", "30kB")
    stays = len(halves) == 1
    assert (tmp_path / "out/vae/diffusion_pytorch_model.safetensors").exists() == stays
    assert ("missing encoder" in said(source).get("kept-whole", "")) == stays


def test_a_pipeline_may_have_its_model_at_the_top(tmp_path: Path) -> None:
    from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel

    torch.manual_seed(0)
    blocks = {"down_block_types": ("DownBlock2D",), "up_block_types": ("UpBlock2D",)}
    unet = UNet2DModel(sample_size=8, block_out_channels=(16,), layers_per_block=1, norm_num_groups=4, **blocks)
    DDPMPipeline(unet, DDPMScheduler()).save_pretrained(tmp_path / "in")
    for folder in ("unet", "scheduler"):
        for path in (tmp_path / "in" / folder).iterdir():
            shutil.move(path, tmp_path / "in" / path.name)
        (tmp_path / "in" / folder).rmdir()
    reshard(tmp_path / "in", tmp_path / "out", "20kB")
    assert (tmp_path / "out/diffusion_pytorch_model.safetensors.index.json").exists()
    loaded = DDPMPipeline.from_pretrained(tmp_path / "out").unet.state_dict()
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in unet.state_dict().items())


def test_a_pickled_adapter_keeps_the_tensors_that_share_memory(tmp_path: Path) -> None:
    names = ("base_model.model.model.embed_tokens.weight", "base_model.model.lm_head.weight")
    files = {"config.json": {**BERT, "tie_word_embeddings": True}, "adapter_config.json": {}}
    source = repo(tmp_path / "in", {**files, "adapter_model.bin": dict.fromkeys(names, torch.ones(9, 9))})
    reshard(source, tmp_path / "out")
    assert set(load_file(tmp_path / "out/adapter_model.safetensors")) == set(names)


def test_modules_that_name_each_other_end(tmp_path: Path) -> None:
    kind = "sentence_transformers.base.modules.Router"
    router = {"types": {"": kind, "./": kind, "a": kind, "../a": kind, "a/": kind}}
    files = {**MODEL, **modules({"": kind}), "router_config.json": router, "a/router_config.json": router}
    source = repo(tmp_path / "in", {**files, "a/a/model.safetensors": LARGE})
    assert "a/a/model.safetensors" in [file.path for file in job.inspect(str(source)).weight_files]
