"""What a copy is said to need where it fits is what a load of it really takes on this machine's processor."""

import math
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from sharding.checkpoint.read import read_checkpoint
from sharding.loading.measure import Load, predict, predict_load
from sharding.planning.devices import needed
from sharding.storage.folder_source import open_folder
from tests import quantized
from tests.kinds import libraries

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is told apart in /proc"),
]
WIDE = {
    "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 16, "num_key_value_heads": 4,
    "head_dim": 128, "vocab_size": 4000,
}  # fmt: skip
"""Matrices so large that the system takes back their memory: a small one that is freed may stay with the process."""
FILES = "100MB"
elsewhere = libraries.elsewhere
LIBRARIES = predict({}, 0, None).peak_anon_bytes
NF4 = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}


def save(kind: str, folder: Path, elsewhere: ProcessPoolExecutor) -> Path:
    """Save a model whose files have 150 to 300 MB."""
    if kind == "fp8":
        return quantized.save_fp8("qwen3", folder, **WIDE, num_hidden_layers=4)
    config = AutoConfig.for_model("qwen3", **WIDE, num_hidden_layers=4 if kind == "nf4" else 2, pad_token_id=0)
    dtype = torch.float16 if kind == "fp16" else torch.bfloat16
    plain = folder if kind != "nf4" else folder / "plain"
    AutoModelForCausalLM.from_config(config, dtype=dtype).save_pretrained(plain, max_shard_size=FILES)
    if kind == "nf4":
        elsewhere.submit(quantize, str(plain), str(folder / "nf4")).result()
        return folder / "nf4"
    return folder


def quantize(plain: str, out: str) -> None:
    from transformers import BitsAndBytesConfig

    how = BitsAndBytesConfig(**NF4)
    model = AutoModelForCausalLM.from_pretrained(plain, quantization_config=how, device_map={"": "cpu"})
    model.save_pretrained(out)


def watched(folder: str, with_mapping: bool) -> dict[str, Any]:
    """What a load costs in a fork of this process, which has imported all libraries."""
    import bitsandbytes  # noqa: F401 - else its import would count as part of the load

    from sharding.loading.probe import __main__ as probe
    from sharding.loading.probe import child

    child.import_libraries()
    return probe.watch(Path(folder), asdict(Load(with_mapping=with_mapping, cold=False)), import_seconds=0.0)


@pytest.mark.parametrize(
    ("kind", "with_mapping"), [("bf16", True), ("bf16", False), ("fp16", True), ("fp8", True), ("nf4", True)]
)
def test_what_is_needed_is_what_a_load_holds_and_covers_its_peak(
    kind: str, with_mapping: bool, tmp_path: Path, elsewhere: ProcessPoolExecutor, record_property: Any
) -> None:
    """What is read of a mapped file and no longer used is not needed: the system can drop it.

    On some processors, bitsandbytes packs its weights anew when it first computes, and then uses no mapped ones.
    """
    folder = save(kind, tmp_path, elsewhere)
    source = open_folder(str(folder))
    content = read_checkpoint(source)
    need = needed(content)
    said = elsewhere.submit(watched, str(folder), with_mapping).result()
    assert said["outcome"] == "loaded", said["message"]
    taken, loading = (
        max(moment[1] for moment in said["curve"] if moment[0] <= until) - said["base_anon_bytes"]
        for until in (math.inf, said["seconds"]["load"])
    )
    in_use = said["mapped_bytes"]
    if kind == "nf4":
        in_use = sum(tensor.bytes for tensor in content.tensors if tensor.dtype == "BF16")
    peak, covered = max(loading + said["mapped_bytes"], taken + in_use), need.weights + max(need.loading, need.context)
    predicted = predict_load(source, content.weight_files, Load(with_mapping=with_mapping))
    for name, value in {"need": need, "covered": covered, "held": said["loaded_bytes"], "peak": peak}.items():
        record_property(name, str(value))
    record_property("taken", str(taken))
    record_property("predicted", str(predicted))
    assert need.weights == pytest.approx(said["loaded_bytes"], rel=0.1)
    assert peak <= covered
    if kind != "nf4":  # its kernels for processors make a second set of weights
        assert taken == pytest.approx(predicted.peak_anon_bytes - LIBRARIES, rel=0.4, abs=60_000_000)
