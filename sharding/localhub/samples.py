"""Build small repos in the Hub's real format: random weights, a tokenizer trained on the spot, a model card."""

import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_VOCABULARY = 4096
_TEXTS = 60
_CARD = """\
---
license: apache-2.0
language: en
pipeline_tag: text-generation
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

    tokenizer = _train_tokenizer()
    config = MistralConfig(
        vocab_size=_VOCABULARY,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=10,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=None,
    )
    torch.manual_seed(0)
    folder.mkdir(parents=True)
    MistralForCausalLM(config).to(torch.bfloat16).save_pretrained(folder, max_shard_size="40MB")
    tokenizer.save_pretrained(folder)
    (folder / "README.md").write_text(_CARD.format(title=folder.name))
    (folder / ".gitattributes").write_text("*.safetensors filter=lfs diff=lfs merge=lfs -text\n")
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
