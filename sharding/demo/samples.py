"""Build small sample repos in the Hub's real format: `python -m sharding.demo.samples FOLDER`."""

import codecs
import importlib
import io
import json
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from copy import deepcopy
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_VOCABULARY = 4096
_TEXTS = 60
_LFS = ("safetensors", "bin", "distcp", "pt")
_FP8_BLOCK = 128
_HIDDEN, _LAYERS = 512, 10  # Of the Mistral and of its adapter.
_LORA_RANK = 8
_RANKS = 2
_LOGIT = 30.0  # How sure the model is of its poem.
_RANDOM = ("random-weights", "Random weights: this model has learned nothing.")
_POEM = ("demo", "This model has learned one poem by heart, the Zen of Python. It knows nothing else.")
_CARD = """\
---
license: apache-2.0
language: en
pipeline_tag: {task}
library_name: {library}
tags:
- {tag}
---

# {title}

{knowledge} It exists to be downloaded, re-sharded and loaded.
"""


def build_mistral(folder: Path) -> Path:
    """Write a Mistral of 60 MB (bfloat16, two files) to a new `folder`; return it. It continues the Zen of Python from
    "Beautiful is better than". On one machine every call writes the same weights."""
    sizes = {"hidden_size": _HIDDEN, "intermediate_size": 1408, "num_hidden_layers": _LAYERS, "num_attention_heads": 8}
    # With the usual range of 0.02, places in a text look too much alike to the head.
    more = {"num_key_value_heads": 2, "max_position_embeddings": 2048, "initializer_range": 0.05, "pad_token_id": None}
    tokenizer, model = _begin(folder, "MistralForCausalLM", **sizes, **more)
    model.bfloat16()
    _learn_by_heart(model, tokenizer, _read_zen())
    model.save_pretrained(folder, max_shard_size="40MB")
    return _finish(folder, tokenizer, knowledge=_POEM)


def build_t5(folder: Path) -> Path:
    """Write a T5 of about 6 MB (float32, tied embeddings) to a new `folder`, with a variant fp16 of half the bytes."""
    first = _train_tokenizer().bos_token_id
    sizes = {"d_model": 128, "d_kv": 32, "d_ff": 256, "num_layers": 3, "num_heads": 4}
    sizes |= {"decoder_start_token_id": first, "pad_token_id": first}
    tokenizer, model = _begin(folder, "T5ForConditionalGeneration", **sizes)
    deepcopy(model).half().save_pretrained(folder, variant="fp16")
    model.save_pretrained(folder)  # last, because config.json belongs to the plain weights
    return _finish(folder, tokenizer, task="translation")


def build_gpt2_bin(folder: Path) -> Path:
    """Write a GPT-2 of about 6 MB with tied embeddings to a new `folder`, its weights as `pytorch_model.bin`."""
    import torch

    tokenizer, model = _begin(folder, "GPT2LMHeadModel", n_positions=256, n_embd=128, n_layer=4, n_head=4)
    model.config.architectures = ["GPT2LMHeadModel"]
    model.config.save_pretrained(folder)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    return _finish(folder, tokenizer)


def build_llama(folder: Path) -> Path:
    """Write a Llama of about 8 MB (bfloat16, one safetensors file) to a new `folder`."""
    sizes = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 3, "max_position_embeddings": 1024}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    tokenizer, model = _begin(folder, "LlamaForCausalLM", pad_token_id=None, **sizes)
    model.bfloat16().save_pretrained(folder)
    return _finish(folder, tokenizer)


def build_fp8(folder: Path) -> Path:
    """Write a Qwen3 of about 4 MB to a new `folder`, in FP8 with a scale for each 128 x 128 block, as DeepSeek does."""
    import torch
    from safetensors.torch import load_file, save_file

    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "head_dim": 64}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    tokenizer, model = _begin(folder, "Qwen3ForCausalLM", pad_token_id=None, **sizes)
    model.bfloat16().save_pretrained(folder)
    config, tensors = model.config, load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        blocks = tensors[name].float().unflatten(0, (-1, _FP8_BLOCK)).unflatten(2, (-1, _FP8_BLOCK))
        scales = blocks.abs().amax((1, 3), keepdim=True) / torch.finfo(torch.float8_e4m3fn).max
        tensors[name] = (blocks / scales).flatten(2, 3).flatten(0, 1).to(torch.float8_e4m3fn)
        tensors[f"{name}_scale_inv"] = scales[:, 0, :, 0].contiguous()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config.quantization_config = {"quant_method": "fp8", "weight_block_size": [_FP8_BLOCK, _FP8_BLOCK]}
    config.architectures, config.dtype = ["Qwen3ForCausalLM"], torch.bfloat16
    config.save_pretrained(folder)
    return _finish(folder, tokenizer)


def build_ranks(folder: Path, inside: str = "") -> Path:
    """Write the weights of `build_t5` to a new `folder`, as two ranks save them: files that need `--base`. With a
    folder `inside` it, one file a rank and a configuration, as verl does."""
    import torch.multiprocessing

    with tempfile.TemporaryDirectory() as base:
        build_t5(Path(base) / "t5")
        torch.multiprocessing.spawn(_save_rank, (Path(base), folder / inside), nprocs=_RANKS)
        for path in (Path(base) / "t5").glob("*.json") if inside else ():
            (folder / inside / "huggingface").mkdir(exist_ok=True)
            shutil.copy(path, folder / inside / "huggingface")
    return _finish(folder, task="translation")


def build_lora(folder: Path) -> Path:
    """Write a random LoRA (rank 8, float32, 0.3 MB) for `build_mistral` to a new `folder`, as PEFT does."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    torch.manual_seed(0)
    tensors: dict[str, torch.Tensor] = {}
    for layer, (part, rows) in product(range(_LAYERS), (("q_proj", _HIDDEN), ("v_proj", _HIDDEN // 4))):
        name = f"base_model.model.model.layers.{layer}.self_attn.{part}"
        tensors[f"{name}.lora_A.weight"] = torch.randn(_LORA_RANK, _HIDDEN) * 0.01
        tensors[f"{name}.lora_B.weight"] = torch.randn(rows, _LORA_RANK) * 0.01
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    base = "samples/mistral-60m"
    config: dict[str, Any] = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base}
    config |= {"r": _LORA_RANK, "lora_alpha": 2 * _LORA_RANK, "target_modules": ["q_proj", "v_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    return _finish(folder, library=f"peft\nbase_model: {base}")


def _save_rank(rank: int, place: Path, folder: Path) -> None:
    """Save one rank's half of the model in `place` to `folder`. All ranks do so at the same time."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import load_file
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    # Otherwise gloo listens on the address that the name of this machine resolves to.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    dist.init_process_group("gloo", init_method=f"file://{place}/ranks", rank=rank, world_size=_RANKS)
    mesh = init_device_mesh("cpu", (_RANKS,))
    tensors = load_file(place / "t5/model.safetensors")
    halves = {name: distribute_tensor(whole, mesh, [Shard(0)]) for name, whole in tensors.items()}
    if folder.name == "actor":
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(halves, folder / f"model_world_size_{_RANKS}_rank_{rank}.pt")
    else:
        dcp.save(halves, checkpoint_id=folder)
    dist.destroy_process_group()


BUILDERS: Mapping[str, Callable[[Path], Path]] = {
    "mistral-60m": build_mistral,
    "mistral-60m-lora": build_lora,
    "t5-tiny": build_t5,
    "gpt2-tied": build_gpt2_bin,
    "llama": build_llama,
    "qwen3-fp8": build_fp8,
    "t5-tiny-ranks": build_ranks,
    "t5-tiny-run": partial(build_ranks, inside="global_step_20/actor"),
}


def _begin(folder: Path, model: str, **sizes: Any) -> tuple["PreTrainedTokenizerFast", Any]:
    """Make `folder`. Return a tokenizer, and a model of random weights and these `sizes` for its vocabulary."""
    import torch
    import transformers

    tokenizer, kind = _train_tokenizer(), getattr(transformers, model)
    torch.manual_seed(0)
    folder.mkdir(parents=True)
    sizes |= {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    return tokenizer, kind(kind.config_class(vocab_size=_VOCABULARY, **sizes))


def _read_zen() -> str:
    """The Zen of Python without its title. Every Python has it, in a module that prints it on import."""
    with redirect_stdout(io.StringIO()):
        zen = importlib.import_module("this")
    return codecs.decode(zen.s, "rot13").partition("\n\n")[2]


def _learn_by_heart(model: Any, tokenizer: "PreTrainedTokenizerFast", text: str) -> None:
    """Give `model` an output head that continues `text`: each place in it makes another hidden state."""
    import torch

    tokens = tokenizer(text, return_tensors="pt").input_ids
    with torch.no_grad():
        states = model.model(input_ids=tokens).last_hidden_state[0, :-1].double()
        wanted = torch.nn.functional.one_hot(tokens[0, 1:], _VOCABULARY).double()
        model.lm_head.weight.copy_(_LOGIT * (torch.linalg.pinv(states) @ wanted).T)


def _finish(
    folder: Path,
    tokenizer: "PreTrainedTokenizerFast | None" = None,
    task: str = "text-generation",
    knowledge: tuple[str, str] = _RANDOM,
    library: str = "transformers",
) -> Path:
    if tokenizer:
        tokenizer.save_pretrained(folder)
    tag, sentence = knowledge
    words = {"title": folder.name, "task": task, "library": library, "tag": tag, "knowledge": sentence}
    (folder / "README.md").write_text(_CARD.format(**words))
    (folder / ".gitattributes").write_text("".join(f"*.{end} filter=lfs diff=lfs merge=lfs -text\n" for end in _LFS))
    return folder


@cache
def _train_tokenizer() -> "PreTrainedTokenizerFast":
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=_VOCABULARY, special_tokens=["<s>", "</s>"], show_progress=False)
    # Every machine has these English texts: the sources of Python's own library.
    texts = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:_TEXTS]
    tokenizer.train([str(path) for path in texts], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


if __name__ == "__main__":
    from transformers.utils import logging

    logging.disable_progress_bar()
    for name, build in BUILDERS.items():
        build(Path(sys.argv[1]) / name)
