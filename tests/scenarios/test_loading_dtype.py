"""A copy loads in the dtype of its original, also where nothing but the order of the tensors decides (transformers #34919)."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from tests.folders import reshard

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}


def save_mixed(folder: Path, wide: str, *, shards: str = "1GB", pickled: bool = False) -> Path:
    """Save a model of bfloat16 without a dtype in its configuration. The weights with `wide` in their names are fp32."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=96, num_key_value_heads=2, **SMALL)).to(torch.bfloat16)
    model.save_pretrained(folder, max_shard_size=shards)
    for file in folder.glob("*.safetensors"):
        tensors = {name: each.float() if wide in name else each for name, each in load_file(file).items()}
        if pickled:
            torch.save(tensors, folder / "pytorch_model.bin")
            file.unlink()
        else:
            save_file(tensors, file, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    del config["dtype"]
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("wide", ["lm_head", "norm", "embed_tokens", "layers.0"])
@pytest.mark.parametrize("form", ["one file", "shards", "pickle", "index"])
def test_a_copy_loads_in_the_dtype_of_its_original(form: str, wide: str, tmp_path: Path) -> None:
    of_several = form in ("shards", "index")
    source = save_mixed(tmp_path / "in", wide, shards="9kB" if of_several else "1GB", pickled=form == "pickle")
    if form == "index":
        index = source / "model.safetensors.index.json"
        document = json.loads(index.read_text())
        document["metadata"]["dtype"] = "float16"
        index.write_text(json.dumps(document))
    theirs = AutoModelForCausalLM.from_pretrained(source)
    for size in ("9kB", "single-file"):
        out = tmp_path / size
        report = reshard(source, out, size)
        ours = AutoModelForCausalLM.from_pretrained(out)
        assert ours.dtype == theirs.dtype
        assert all(torch.equal(one, other) for one, other in zip(ours.parameters(), theirs.parameters(), strict=True))
        is_written = "dtype" in json.loads((out / "config.json").read_text())
        assert is_written == ("dtype-written" in {finding.code for finding in report.plan.findings})
