"""Build small repos in the Hub's real format: random weights, a tokenizer trained on the spot, a model card.

`python -m sharding.localhub.samples FOLDER` builds all of them.
"""

import sys
import sysconfig
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_VOCABULARY = 4096
_TEXTS = 60
_LFS = ("safetensors", "bin")
_CARD = """\
---
license: apache-2.0
language: en
pipeline_tag: {task}
library_name: transformers
tags:
- random-weights
---

# {title}

Random weights: this model has learned nothing. It exists to be downloaded, re-sharded and loaded.
"""


def build_mistral(folder: Path) -> Path:
    """Write a Mistral of about 60 MB (bfloat16, two weight files) to `folder`, which must not exist; return it.

    The same weights at every call. Takes a few seconds, and torch and transformers.
    """
    import torch
    from transformers import MistralConfig, MistralForCausalLM

    tokenizer, sizes = _begin(folder, pad_token_id=None)
    sizes |= {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 10, "max_position_embeddings": 2048}
    config = MistralConfig(num_attention_heads=8, num_key_value_heads=2, **sizes)
    MistralForCausalLM(config).to(torch.bfloat16).save_pretrained(folder, max_shard_size="40MB")
    return _finish(folder, tokenizer)


def build_t5(folder: Path) -> Path:
    """Write a T5 of about 6 MB (float32, one safetensors file; one embedding under three names) to a new `folder`.

    The same in half the bytes is its variant fp16.
    """
    from transformers import T5Config, T5ForConditionalGeneration

    tokenizer, sizes = _begin(folder, d_model=128, d_kv=32, d_ff=256, num_layers=3, num_heads=4)
    first = sizes["bos_token_id"]
    model = T5ForConditionalGeneration(T5Config(decoder_start_token_id=first, pad_token_id=first, **sizes))
    deepcopy(model).half().save_pretrained(folder, variant="fp16")
    model.save_pretrained(folder)  # last: config.json is that of the plain weights
    return _finish(folder, tokenizer, task="translation")


def build_gpt2_bin(folder: Path) -> Path:
    """Write a GPT-2 of about 6 MB with tied embeddings to a new `folder`, its weights as `pytorch_model.bin`."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    tokenizer, sizes = _begin(folder, n_positions=256, n_embd=128, n_layer=4, n_head=4)
    config = GPT2Config(architectures=["GPT2LMHeadModel"], **sizes)
    config.save_pretrained(folder)
    torch.save(GPT2LMHeadModel(config).state_dict(), folder / "pytorch_model.bin")
    return _finish(folder, tokenizer)


def build_llama(folder: Path) -> Path:
    """Write a Llama of about 8 MB (bfloat16, one safetensors file) to a new `folder`."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer, sizes = _begin(folder, pad_token_id=None)
    sizes |= {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 3, "max_position_embeddings": 1024}
    config = LlamaConfig(num_attention_heads=4, num_key_value_heads=2, **sizes)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return _finish(folder, tokenizer)


BUILDERS: Mapping[str, Callable[[Path], Path]] = {
    "mistral-60m": build_mistral,
    "t5-tiny": build_t5,
    "gpt2-tied": build_gpt2_bin,
    "llama": build_llama,
}


def _begin(folder: Path, **sizes: Any) -> tuple["PreTrainedTokenizerFast", dict[str, Any]]:
    """Make `folder`; return a tokenizer, and `sizes` of a configuration with what follows from it."""
    import torch

    tokenizer = _train_tokenizer()
    torch.manual_seed(0)
    folder.mkdir(parents=True)
    sizes |= {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    return tokenizer, {"vocab_size": _VOCABULARY, **sizes}


def _finish(folder: Path, tokenizer: "PreTrainedTokenizerFast", task: str = "text-generation") -> Path:
    tokenizer.save_pretrained(folder)
    (folder / "README.md").write_text(_CARD.format(title=folder.name, task=task))
    (folder / ".gitattributes").write_text("".join(f"*.{end} filter=lfs diff=lfs merge=lfs -text\n" for end in _LFS))
    return folder


def _train_tokenizer() -> "PreTrainedTokenizerFast":
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=_VOCABULARY, special_tokens=["<s>", "</s>"], show_progress=False)
    # English at hand on every machine: the sources of Python's own library.
    texts = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:_TEXTS]
    tokenizer.train([str(path) for path in texts], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


if __name__ == "__main__":
    from transformers.utils import logging

    logging.disable_progress_bar()
    for name, build in BUILDERS.items():
        build(Path(sys.argv[1]) / name)
