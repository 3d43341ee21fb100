"""Which files are taken, and under which names, is what the loader of a repo wants: cases that came up once."""

import json
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import load_file
from safetensors.torch import save_file as save_torch

from sharding import job
from sharding.core.errors import SourceError, UsageError
from tests import models
from tests.conftest import listing, random_tensors, write_checkpoint
from tests.folders import in_folders, reshard, said, write_ranks

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
LARGE = {f"layers.{n}.weight": np.full(9000, n, np.float32) for n in range(3)}
LORA = {f"unet.{n}.lora_A.weight": np.full(9000, n, np.float32) for n in range(3)}


def repo(folder: Path, files: Mapping[str, object]) -> Path:
    """Write files: arrays as safetensors, documents as JSON, texts, and pickles as torch has them."""
    for path, content in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if path.endswith(".safetensors"):
            save_file(content, place)
        elif path.endswith((".bin", ".pth")):
            torch.save(content, place)
        else:
            place.write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def weights_of(folder: Path) -> set[str]:
    return {path for path in listing(folder) if path.endswith((".safetensors", ".bin", ".pth", ".pkl"))}


PICKLED = {name: torch.from_numpy(array) for name, array in LARGE.items()}
MIXIN = "---\ntags:\n- pytorch_model_hub_mixin\n---\n"
BERT = {"architectures": ["BertModel"], "model_type": "bert", "transformers_version": "5.0"}


@pytest.mark.parametrize(
    ("files", "kept"),
    [
        pytest.param({"style.safetensors": LORA}, {"style.safetensors"}, id="a LoRA that only its tensors tell"),
        pytest.param(
            {"style.safetensors": LORA, "README.md": "---\ntags: [LoRA]\n---\n"},
            {"style.safetensors"},
            id="by its card",
        ),
        pytest.param(
            {"pytorch_lora_weights.safetensors": LORA, "pytorch_lora_weights.v2.safetensors": LORA},
            {"pytorch_lora_weights.safetensors", "pytorch_lora_weights.v2.safetensors"},
            id="two LoRAs",
        ),
        pytest.param(
            {
                "style.safetensors": LORA,
                "pytorch_lora_weights.bin": PICKLED,
                "README.md": "---\nlibrary_name: diffusers\n---\n",
            },
            {"style.safetensors", "pytorch_lora_weights.bin"},
            id="a pickled LoRA that another comes before",
        ),
        pytest.param(
            {"model.safetensors": LARGE, "config.json": BERT, "README.md": MIXIN},
            {"model.safetensors"},
            id="a mixin around a model of transformers",
        ),
        pytest.param(
            {"model.safetensors": LARGE, "README.md": "---\ntags: model_hub_mixin\n---\n"},
            {"model.safetensors"},
            id="one tag",
        ),
        pytest.param(
            {"pytorch_model.bin": PICKLED, "open_clip_model.safetensors": LORA, "config.json": {"pretrained_cfg": {}}},
            {"model.safetensors", "open_clip_model.safetensors"},
            id="timm takes its pickle before a file of open_clip",
        ),
        pytest.param(
            {"model.safetensors": LARGE, "config.json": BERT, "open_clip_config.json": {}},
            {"model.safetensors"},
            id="open_clip without a file of its own",
        ),
        pytest.param(
            {"model.safetensors": LARGE, "config.json": {"architectures": ["HF_ColBERT"], "model_type": "bert"}},
            {"model.safetensors"},
            id="ColBERT",
        ),
        pytest.param(
            {"modules.json": [{"path": ".", "type": "sentence_transformers.models.StaticEmbedding"}]}
            | {"model.safetensors": LARGE},
            {"model.safetensors"},
            id="a module at the top, by a dot",
        ),
        pytest.param(
            {"modules.json": [{"path": "./2_Dense/", "type": "my.Own"}], "2_Dense/weights.safetensors": LORA}
            | {"2_Dense/pytorch_model.bin": PICKLED, "2_Dense/model.safetensors": LARGE},
            {"2_Dense/model.safetensors", "2_Dense/weights.safetensors"},
            id="a module of the repo's own code",
        ),
        pytest.param(
            {"style.safetensors": {"a.lora_down.weight": LARGE["layers.0.weight"], "a.diff_b": np.ones(9)}},
            {"style.safetensors"},
            id="a LoRA with differences",
        ),
        pytest.param(
            {f"{folder}adapter_model.safetensors": LORA for folder in ("", "spanish/", "checkpoint-5/", "original/")},
            {"adapter_model.safetensors", "spanish/adapter_model.safetensors"},
            id="adapters without those of earlier steps",
        ),
        pytest.param(
            {"meta.json": {"spacy_version": ">=3"}, "tok2vec.safetensors": LARGE, "hf/model.safetensors": LARGE}
            | {"vectors.safetensors": LORA},
            {"tok2vec.safetensors", "hf/model.safetensors", "vectors.safetensors"},
            id="spaCy with parts, two of them at the top",
        ),
    ],
)
def test_a_loader_of_one_file_finds_it_by_its_own_name(
    tmp_path: Path, files: dict[str, object], kept: set[str]
) -> None:
    source = repo(tmp_path / "in", files)
    reshard(source, tmp_path / "out", "20kB")
    assert weights_of(tmp_path / "out") == kept


def in_shards(folder: Path, config: Mapping[str, object], base: str, more: Mapping[str, object]) -> Path:
    """Write a model in three shards with an index."""
    names = [f"{base}-0000{n + 1}-of-00003.safetensors" for n in range(3)]
    shards = {names[n]: {name: array} for n, (name, array) in enumerate(LARGE.items())}
    repo(folder, {"config.json": dict(config), **shards, **more})
    index = {"metadata": {}, "weight_map": dict(zip(LARGE, names, strict=True))}
    (folder / f"{base}.safetensors.index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize(
    ("config", "base", "more"),
    [
        pytest.param(BERT, "model", {"README.md": MIXIN}, id="of transformers, with the card of a mixin"),
        pytest.param({}, "model", {"README.md": MIXIN}, id="of nobody, with the card of a mixin"),
        pytest.param({"_class_name": "U"}, "diffusion_pytorch_model", {"README.md": MIXIN}, id="of diffusers"),
        pytest.param({**BERT, "pretrained_cfg": {}}, "model", {}, id="of transformers around timm"),
        pytest.param(
            BERT, "model", {"open_clip_config.json": {}}, id="of transformers with a configuration of open_clip"
        ),
    ],
)
def test_what_lies_in_shards_with_an_index_is_cut_again(
    tmp_path: Path, config: dict[str, object], base: str, more: dict[str, object]
) -> None:
    source = in_shards(tmp_path / "in", config, base, more)
    reshard(source, tmp_path / "out", "80kB")
    assert weights_of(tmp_path / "out") == {f"{base}-0000{n}-of-00002.safetensors" for n in (1, 2)}


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
    source = tmp_path / "in"
    if form == "dcp":
        write_ranks(source)
    else:
        save_ranks(source)
    (source / "README.md").write_text(f"---\ntags: [{tag}]\n---\n")
    report = reshard(source, tmp_path / "out", "40kB")
    names = {tensor for shard in report.plan.shards for tensor in shard.tensors}
    assert names == (set(LARGE) if form == "safetensors" else {*random_tensors()})
    assert (len(report.plan.shards) == 1) == (tag != "lora")


def test_modules_of_the_trained_model_come_with_its_files(tmp_path: Path) -> None:
    modules = [
        {"path": "", "type": "sentence_transformers.models.Transformer"},
        {"path": "2_Dense", "type": "sentence_transformers.models.Dense"},
    ]
    base = repo(
        tmp_path / "base",
        {"modules.json": modules, "config.json": BERT, "2_Dense/config.json": {}, "2_Dense/model.safetensors": LORA},
    )
    save_file(random_tensors(), base / "model.safetensors")
    report = reshard(write_ranks(tmp_path / "ranks"), tmp_path / "out", base=str(base))
    assert report.source.library == "sentence-transformers"
    assert load_file(tmp_path / "out/2_Dense/model.safetensors").keys() == LORA.keys()
    assert (tmp_path / "out/model.safetensors.index.json").exists()


@pytest.mark.parametrize("folder", ["last-checkpoint", "out/checkpoint-5", "epoch_3", "checkpoint_10"])
def test_what_a_trainer_left_at_earlier_steps_is_left_out_whole(checkpoint: Path, tmp_path: Path, folder: str) -> None:
    repo(checkpoint, {f"{folder}/model.safetensors": LARGE, f"{folder}/config.json": BERT})
    reshard(checkpoint, tmp_path / "out")
    assert not (tmp_path / "out" / folder).exists()


def test_a_module_of_the_repos_own_code_keeps_pickled_shards_and_their_index(tmp_path: Path) -> None:
    shards = {f"0_Own/pytorch_model-0000{n}-of-00002.bin": PICKLED for n in (1, 2)}
    modules = [{"path": "0_Own", "type": "my.Own"}, {"path": "1_Dense", "type": "x.Dense"}]
    files = {"modules.json": modules, "1_Dense/model.safetensors": LARGE, **shards}
    source = repo(tmp_path / "in", {**files, "0_Own/pytorch_model.bin.index.json": {}})
    reshard(source, tmp_path / "out")
    assert {*shards, "0_Own/pytorch_model.bin.index.json"} <= listing(tmp_path / "out").keys()


def test_an_adapter_of_a_task_is_loaded_with_the_class_for_it(tmp_path: Path) -> None:
    files = {"adapter_model.safetensors": LORA, "adapter_config.json": {"task_type": "CAUSAL_LM"}}
    reshard(repo(tmp_path / "in", files), tmp_path / "out")
    assert "AutoPeftModelForCausalLM.from_pretrained" in (tmp_path / "out/README.md").read_text()


def test_a_transformer_at_the_top_by_a_dot_is_cut(tmp_path: Path) -> None:
    modules = [{"path": ".", "type": "sentence_transformers.models.Transformer"}]
    source = repo(tmp_path / "in", {"modules.json": modules, "model.safetensors": LARGE, "config.json": BERT})
    reshard(source, tmp_path / "out", "20kB")
    assert (tmp_path / "out/model.safetensors.index.json").exists()


def test_a_classifier_of_setfit_stays_beside_its_sentence_transformer(tmp_path: Path) -> None:
    modules = [{"path": "", "type": "sentence_transformers.models.Transformer"}]
    source = repo(tmp_path / "in", {"modules.json": modules, "model.safetensors": LARGE, "config.json": BERT})
    (source / "model_head.pkl").write_bytes(b"pickled")
    reshard(source, tmp_path / "out", "20kB")
    assert (tmp_path / "out/model_head.pkl").read_bytes() == b"pickled"


def test_a_module_below_a_folder_of_other_layouts_is_there_whole(tmp_path: Path) -> None:
    modules = [{"path": "onnx/0_T", "type": "sentence_transformers.models.Transformer"}]
    files = {"modules.json": modules, "onnx/0_T/model.safetensors": LARGE, "onnx/0_T/config.json": BERT}
    source = repo(tmp_path / "in", files | {"onnx/model.safetensors": LARGE})
    reshard(source, tmp_path / "out", "20kB")
    assert in_folders(tmp_path / "out").keys() == {f"onnx/0_T/{name}" for name in LARGE}
    assert (tmp_path / "out/onnx/0_T/config.json").exists()


def test_a_configuration_beside_the_model_stays_as_its_weights_do(tmp_path: Path) -> None:
    files = {"model.safetensors": LARGE, "config.json": {**BERT, "dtype": "float32"}, "codec/model.safetensors": LARGE}
    config = {**BERT, "dtype": "float32", "transformers_weights": "model.safetensors"}
    source = repo(tmp_path / "in", {**files, "codec/config.json": config})
    reshard(source, tmp_path / "out", "20kB", dtype="bf16")
    assert json.loads((tmp_path / "out/config.json").read_text())["dtype"] == "bfloat16"
    assert json.loads((tmp_path / "out/codec/config.json").read_text()) == config


def test_pickles_beside_stay_where_no_safetensors_file_is_the_same(checkpoint: Path, tmp_path: Path) -> None:
    files = {
        "draft/config.json": BERT,
        "draft/pytorch_model.bin": PICKLED,
        "draft/value_head.safetensors": LORA,
        "ema/config.json": BERT,
        "ema/diffusion_pytorch_model.bin": PICKLED,
        "ema/diffusion_pytorch_model.fp16.safetensors": LARGE,
        "lora/pytorch_lora_weights.bin": PICKLED,
        "twin/config.json": BERT,
        "twin/pytorch_model.bin": PICKLED,
        "twin/model.safetensors": LARGE,
    }
    repo(checkpoint, files)
    reshard(checkpoint, tmp_path / "out")
    beside = {path for path in weights_of(tmp_path / "out") if "/" in path}
    assert beside == {path for path in files if not path.endswith(".json")} - {"twin/pytorch_model.bin"}


def test_an_adapter_at_the_top_of_a_pipeline_stays_there(tmp_path: Path) -> None:
    source = repo(
        tmp_path / "in",
        {
            "model_index.json": {"_class_name": "P", "unet": ["diffusers", "U"]},
            "unet/diffusion_pytorch_model.safetensors": LARGE,
            "pytorch_lora_weights.safetensors": LORA,
            "learned_embeds.safetensors": LORA,
        },
    )
    reshard(source, tmp_path / "out", "20kB")
    assert {"pytorch_lora_weights.safetensors", "learned_embeds.safetensors"} <= weights_of(tmp_path / "out")


def test_a_component_that_names_other_weights_is_refused(tmp_path: Path) -> None:
    source = repo(
        tmp_path / "in",
        {
            "model_index.json": {"_class_name": "P", "text_encoder": ["transformers", "T"]},
            "text_encoder/model.safetensors": LARGE,
            "text_encoder/config.json": {**BERT, "transformers_weights": "other.safetensors"},
        },
    )
    with pytest.raises(SourceError, match=r"text_encoder/config.json sets transformers_weights to 'other.safetensors'"):
        job.inspect(str(source))


@pytest.mark.parametrize("kind", ["CLIPTokenizer", "TokenizersBackend", "CLIPImageProcessorPil", "DDIMScheduler"])
def test_a_component_without_weights_may_have_a_configuration(tmp_path: Path, kind: str) -> None:
    source = repo(
        tmp_path / "in",
        {
            "model_index.json": {"_class_name": "P", "unet": ["diffusers", "U"], "other": ["transformers", kind]},
            "unet/diffusion_pytorch_model.safetensors": LARGE,
            "other/config.json": {},
        },
    )
    reshard(source, tmp_path / "out")
    assert (tmp_path / "out/other/config.json").exists()


@pytest.mark.parametrize("library", ["diffusers", "transformers", "stable_diffusion"])
@pytest.mark.parametrize("others", [{}, {"vae/flax_model.msgpack": "x"}])
def test_a_component_with_a_configuration_and_no_weights_is_refused(
    tmp_path: Path, library: str, others: dict[str, object]
) -> None:
    source = repo(
        tmp_path / "in",
        {
            "model_index.json": {"_class_name": "P", "unet": ["diffusers", "U"], "vae": [library, "AutoencoderKL"]},
            "unet/diffusion_pytorch_model.safetensors": LARGE,
            "vae/config.json": {},
            **others,
        },
    )
    with pytest.raises(SourceError, match="vae/"):
        job.inspect(str(source))


def test_ranks_of_a_training_run_beside_an_adapter_are_the_model(tmp_path: Path) -> None:
    source = write_ranks(tmp_path / "in")
    repo(source, {"adapter_model.safetensors": LORA, "lora/adapter_model.safetensors": LORA})
    report = reshard(source, tmp_path / "out")
    assert report.source.tensors == 14
    assert {"adapter_model.safetensors", "lora/adapter_model.safetensors"} <= weights_of(tmp_path / "out")


def test_ranks_of_a_trained_sentence_transformer_are_its_model(tmp_path: Path) -> None:
    modules = [{"path": "", "type": "sentence_transformers.models.Transformer"}]
    source = repo(write_ranks(tmp_path / "in"), {"modules.json": modules, "config.json": BERT})
    assert len(job.inspect(str(source)).tensors) == 14


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


def test_an_autoencoder_without_an_encoder_stays_one_file_wherever_it_is(tmp_path: Path) -> None:
    """diffusers looks for a missing encoder only in a single file."""
    halves = {
        half: {f"{half}.layers.{n}.weight": np.ones(5000, np.float32) for n in range(3)}
        for half in ("decoder", "encoder")
    }
    for number, tensors in enumerate((halves["decoder"], halves["decoder"] | halves["encoder"])):
        source = repo(
            tmp_path / f"in-{number}",
            {
                "model_index.json": {"_class_name": "P", "vae": ["diffusers", "AutoencoderKL"]},
                "vae/config.json": {"_class_name": "AutoencoderKL"},
                "vae/diffusion_pytorch_model.safetensors": tensors,
            },
        )
        out = tmp_path / f"out-{number}"
        reshard(source, out, "30kB")
        assert (out / "vae/diffusion_pytorch_model.safetensors").exists() == (number == 0)
        assert ("missing encoder" in said(source).get("kept-whole", "")) == (number == 0)


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
    shared = torch.ones(9, 9)
    names = ("base_model.model.model.embed_tokens.weight", "base_model.model.lm_head.weight")
    source = repo(tmp_path / "in", {"config.json": {**BERT, "tie_word_embeddings": True}, "adapter_config.json": {}})
    torch.save(dict.fromkeys(names, shared), source / "adapter_model.bin")
    reshard(source, tmp_path / "out")
    assert set(load_file(tmp_path / "out/adapter_model.safetensors")) == set(names)


def test_modules_that_name_each_other_end(tmp_path: Path) -> None:
    kind = "sentence_transformers.base.modules.Router"
    types = {"": kind, "./": kind, "a": kind, "../a": kind, "a/": kind}
    source = write_checkpoint(tmp_path / "in", {"model.safetensors": LARGE}, index=False)
    files = {"modules.json": [{"path": "", "type": kind}], "router_config.json": {"types": types}}
    repo(source, {**files, "a/router_config.json": {"types": types}, "a/a/model.safetensors": LARGE})
    assert "a/a/model.safetensors" in [file.path for file in job.inspect(str(source)).weight_files]
