"""The kind that a name tells, compared with the module that holds the tensor in transformers or diffusers."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSpeechSeq2Seq,
    PreTrainedModel,
)

from sharding.drawing.map_svg import COLOURS
from sharding.drawing.tensor_kinds import Kind, kind_of
from tests.models import CLASSES, SMALL

KINDS: tuple[Kind, ...] = tuple(COLOURS)
MODELS: dict[str, tuple[type, dict[str, Any]]] = {
    "llama": (AutoModelForCausalLM, CLASSES["llama"][2]),
    "mixtral": (AutoModelForCausalLM, CLASSES["mixtral"][2]),
    "gpt2": (AutoModelForCausalLM, CLASSES["gpt2"][2]),
    "t5": (AutoModelForSeq2SeqLM, CLASSES["t5"][2]),
    "bert": (AutoModelForMaskedLM, SMALL),
    "vit": (AutoModelForImageClassification, CLASSES["vit"][2]),
    "whisper": (
        AutoModelForSpeechSeq2Seq,
        {
            **{f"{part}_{key}": 2 for part in ("encoder", "decoder") for key in ("layers", "attention_heads")},
            **{"d_model": 32, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "vocab_size": 96},
        },
    ),
}
LAYERS = {"num_hidden_layers": 2, "n_layer": 2, "num_layers": 2}
MODULES: dict[str, Kind] = {
    # transformers
    **dict.fromkeys(("LlamaRMSNorm", "MixtralRMSNorm", "T5LayerNorm"), "norm"),
    **dict.fromkeys(("LlamaAttention", "MixtralAttention", "GPT2Attention", "T5Attention"), "attention"),
    **dict.fromkeys(("BertAttention", "ViTAttention", "WhisperAttention"), "attention"),
    **dict.fromkeys(("LlamaMLP", "GPT2MLP", "T5LayerFF", "BertIntermediate", "BertOutput", "ViTMLP"), "mlp"),
    # They hold the two matrices of their MLP themselves.
    **dict.fromkeys(("WhisperEncoderLayer", "WhisperDecoderLayer"), "mlp"),
    "MixtralSparseMoeBlock": "expert",
    **dict.fromkeys(("WhisperPositionalEmbedding", "ViTEmbeddings", "BertLMPredictionHead"), "embedding"),
    # diffusers
    **{"Attention": "attention", "FeedForward": "mlp", "TimestepEmbedding": "embedding"},
    **dict.fromkeys(("ResnetBlock2D", "Transformer2DModel"), "other"),
    # torch
    **{"LayerNorm": "norm", "GroupNorm": "norm", "Embedding": "embedding"},
}
"""What the modules of a class do, unless a module inside them does something else. All others do not tell."""
DISAGREEMENTS = {
    # A table of T5 that only attention reads: it is added to the scores. The class is Embedding.
    "t5": {f"{part}.block.0.layer.0.SelfAttention.relative_attention_bias.weight" for part in ("encoder", "decoder")}
}
"""Where a name tells something else than the class, and is right."""


def around(model: torch.nn.Module, name: str) -> Iterator[torch.nn.Module]:
    """The modules around a tensor, from the innermost to the model itself."""
    while name:
        name = name.rpartition(".")[0]
        yield model.get_submodule(name)


def by_class(model: torch.nn.Module, name: str) -> Kind:
    """The kind of a tensor by the classes of the modules around it."""
    head = model.get_output_embeddings() if isinstance(model, PreTrainedModel) else None
    for module in around(model, name):
        if module is head:
            return "embedding"
        if kind := MODULES.get(type(module).__name__):
            return kind
    return "other"


def wrong(kinds: Iterable[tuple[str, Kind]]) -> set[str]:
    """The names among `kinds` that do not tell their kind."""
    return {name for name, kind in kinds if kind_of(name) != kind}


def stored_kinds(model: PreTrainedModel, folder: Path) -> dict[str, Kind]:
    """The kinds of what `model` saves in `folder`, by the names in its files: in memory some have others.

    Every number of a tensor says the kind, so that it is known even if tensors are saved in parts or joined.
    """
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.fill_(KINDS.index(by_class(model, name)))
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    assert all(len(tensor.unique()) == 1 for tensor in tensors.values())
    return {name: KINDS[int(tensor.flatten()[0])] for name, tensor in tensors.items()}


@pytest.mark.parametrize("model_type", MODELS)
def test_the_names_that_transformers_writes_tell_what_the_modules_do(model_type: str, tmp_path: Path) -> None:
    auto, options = MODELS[model_type]
    options = {key: LAYERS.get(key, given) for key, given in options.items()}
    tokens = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), 0)
    model = auto.from_config(AutoConfig.for_model(model_type, **options, **tokens))
    kinds = stored_kinds(model, tmp_path)
    assert set(kinds.values()) >= {"attention", "embedding", "norm", "expert" if model_type == "mixtral" else "mlp"}
    assert wrong(kinds.items()) == DISAGREEMENTS.get(model_type, set())


def unet() -> torch.nn.Module:
    """The UNet of Stable Diffusion XL, by the configuration in its repo."""
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(
        cross_attention_dim=2048,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        block_out_channels=(320, 640, 1280),
        transformer_layers_per_block=(1, 2, 10),
        attention_head_dim=(5, 10, 20),
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=256,
        projection_class_embeddings_input_dim=2816,
    )


def vae() -> torch.nn.Module:
    """The VAE of Stable Diffusion XL."""
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        block_out_channels=(128, 256, 512, 512),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        layers_per_block=2,
    )


@pytest.mark.parametrize(("build", "parameters"), [(unet, 2_567_463_684), (vae, 83_653_863)])
# diffusers warns about itself when it is imported.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_the_names_that_diffusers_writes_tell_what_the_modules_do(build: Any, parameters: int) -> None:
    with torch.device("meta"):
        model = build()
    tensors = model.state_dict()
    assert sum(tensor.numel() for tensor in tensors.values()) == parameters
    kinds = {name: by_class(model, name) for name in tensors}
    assert set(kinds.values()) >= {"attention", "norm", "other"}
    assert wrong(kinds.items()) == set()


TOLD: dict[Kind, str] = {
    # Where a module or a model is called so that it seems to be something else, where a word means one thing in one
    # module and another in the next, where no module tells, and names of other libraries.
    "attention": """
        roberta_prelayernorm.encoder.layer.0.attention.self.query.weight vision_model.head.attention.in_proj_weight
        transformer.attentions.0.out_lin.weight rwkv.blocks.0.attention.key.weight moe.layers.0.self_attn.q_proj.weight
        encoder.x_layers.0.lang_self_att.output.dense.weight model.layers.0.self_attn.gate_proj.weight
        blocks.0.query.weight blocks.0.o_proj.weight blocks.0.qkv.weight transformer/h_0/attn/c_proj/kernel
        blocks.0.attn.qkv.weight base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight""",
    "mlp": """
        rembert.encoder.layer.0.output.dense.weight vision_model.head.mlp.fc1.weight
        perceiver.encoder.cross_attention.mlp.dense1.weight rwkv.blocks.0.feed_forward.key.weight
        encoder.x_layers.0.lang_output.dense.weight albert.encoder.albert_layers.0.ffn_output.weight
        layers.0.w1.weight layers.0.up_proj.weight encoder.layer.0.intermediate.conv1d.weight
        layers.0.feed_forward.w2.weight""",
    "norm": """
        bert.encoder.layer.0.attention.output.LayerNorm.weight model.layers.0.self_attn.inner_attn_ln.weight
        encoder.layer.0.layer_scale1.lambda1""",
    # Whatever their matrices are called, and what chooses among them.
    "expert": """
        transformer.blocks.0.ffn.experts.mlp.w1 model.layers.0.block_sparse_moe.gate.weight
        model.layers.3.mlp.gate.weight model.layers.1.mlp.shared_experts.down_proj.weight
        encoder.block.1.layer.1.mlp.router.classifier.weight model.layers.0.moe.output_linear.weight
        model.layers.0.self_attention.experts.input_linear.weight backbone.layers.1.mixer.gate.weight""",
    "embedding": "head.weight shared.weight",
    "other": "bert.pooler.dense.weight model.shared.weight",
}


def test_the_innermost_part_that_tells_decides() -> None:
    wanted = [(kind, name) for kind, names in TOLD.items() for name in names.split()]
    assert [(kind_of(name), name) for _, name in wanted] == wanted
