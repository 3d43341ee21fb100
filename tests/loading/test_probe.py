"""A probe tells the truth about what a load costs, and every method computes the same."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from sharding.loading.measure import Load, predict, probes
from sharding.loading.probe import child as loading
from tests import folders, models
from tests.conftest import environment
from tests.folders import compared
from tests.lora import pickled_base

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
Measured = Callable[..., dict[str, Any]]
HAS_PROC = Path("/proc/self/status").exists()
NEVER = 10**12
"""A limit in bytes that no test reaches."""


def can_make_cgroups() -> bool:
    try:
        from sharding.loading.probe.__main__ import memory_cap

        with memory_cap(NEVER, "cgroup"):
            return True
    except OSError:
        return False


def ask(folder: Path, limit_by: str | None = None, **how: Any) -> dict[str, Any]:
    """Run a probe; return what it prints."""
    asked = json.dumps(asdict(Load(**{"cold": False, **how})) | {"limit_by": limit_by})
    command = [sys.executable, "-m", "sharding.loading.probe", str(folder), asked]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=300)
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bf16 Llama of 270 MB in one file: its weights are as heavy as the libraries."""
    return finish(tmp_path_factory.mktemp("big") / "original", torch.bfloat16, num_hidden_layers=11)


@pytest.fixture(scope="module")
def measured(big: Path) -> Callable[..., dict[str, Any]]:
    """What a probe of `big` prints, asked once for the same options."""
    return cache(partial(ask, big))


def finish(folder: Path, dtype: torch.dtype, **more: Any) -> Path:
    """Save a Llama whose weights are quick to make: any numbers will do."""
    config = LlamaConfig(
        vocab_size=4000, hidden_size=1024, intermediate_size=2816, num_attention_heads=8, pad_token_id=0, **more
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config).to(dtype)
    model = model.to_empty(device="cpu")
    for tensor in model.parameters():
        tensor.data.fill_(0.01)
    model.tie_weights()
    model.save_pretrained(folder, max_shard_size="50GB")
    return folder


def reshard(source: Path, out: Path, size: str) -> Path:
    folders.reshard(source, out, size)
    return out


def in_process(folder: Path, method: str, **options: Any) -> dict[str, Any]:
    """Run one method in this process: what it finds is the same, only what it costs is not."""
    said: dict[str, Any] = {}
    loading.load_and_run(folder, asdict(Load(method, **options)), said.update)  # type: ignore[arg-type]
    return said


SAFE_METHODS = [
    ("from_pretrained", {}),
    ("from_pretrained", {"with_mapping": False}),
    ("from_pretrained", {"dtype": "bfloat16"}),
    ("offload", {"max_memory_bytes": 40_000}),
    ("load_checkpoint_and_dispatch", {}),
    ("load_sharded_checkpoint", {}),
]


@pytest.mark.parametrize(
    "name", ["llama-tied", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("gpt2", "t5", "mixtral"))]
)
def test_every_method_computes_the_same_logits_from_original_and_copy(name: str, tmp_path: Path) -> None:
    original = models.save(name, tmp_path / "original", max_shard_size="40kB", layers=3)
    sharded = reshard(original, tmp_path / "sharded", "25kB")
    digests, refused = set(), set()
    for folder in (original, sharded):
        for method, options in SAFE_METHODS:
            try:
                digests.add(in_process(folder, method, **options)["logits_sha256"])
            except loading.Unsupported:
                refused.add(method)
    assert len(digests) == 1
    # These two apply none of transformers' renaming and fusing.
    without_conversion = {"load_checkpoint_and_dispatch", "load_sharded_checkpoint"}
    assert refused == (without_conversion if name in models.FUSED_OR_RENAMED else set())


def test_a_bin_file_gives_the_same_logits_by_torch_load(tmp_path: Path) -> None:
    original = models.save("llama", tmp_path / "original", "10GB", layers=1)
    digest = in_process(original, "from_pretrained")["logits_sha256"]
    pickled_base(original)
    assert in_process(original, "torch_load")["logits_sha256"] == digest
    assert in_process(original, "torch_load", with_mapping=False)["logits_sha256"] == digest
    said = in_process(original, "from_pretrained")
    assert (said["logits_sha256"], said["format"]) == (digest, "bin")


def test_a_load_casts_only_if_weights_are_stored_in_another_dtype(tmp_path: Path) -> None:
    original = models.save("llama", tmp_path / "original", "10GB", layers=1)
    file = original / "model.safetensors"
    tensors = load_file(file)
    save_file(tensors | {"counter": torch.arange(3)}, file, metadata={"format": "pt"})
    assert not in_process(original, "from_pretrained", dtype="bfloat16")["is_cast"], "an integer is never cast"
    norm = {"model.norm.weight": tensors["model.norm.weight"].to(torch.float16)}
    save_file(tensors | norm, file, metadata={"format": "pt"})
    assert in_process(original, "from_pretrained", dtype="bfloat16")["is_cast"]
    assert not in_process(original, "from_pretrained")["is_cast"], "no dtype was asked for"


def test_one_flipped_bit_changes_the_logits_and_is_named_by_verify(tmp_path: Path) -> None:
    original = models.save("llama", tmp_path / "original", layers=3)
    sharded = reshard(original, tmp_path / "sharded", "30kB")
    victim = "model.layers.2.self_attn.q_proj.weight"
    file = sharded / json.loads((sharded / "model.safetensors.index.json").read_text())["weight_map"][victim]
    tensors = load_file(file)
    tensors[victim].view(torch.int16)[0, 0] ^= 1 << 13
    save_file(tensors, file, metadata={"format": "pt"})
    digests = [in_process(folder, "from_pretrained")["logits_sha256"] for folder in (original, sharded)]
    assert digests[0] != digests[1]
    assert [mismatch.tensor for mismatch in compared(original, sharded).mismatches] == [victim]


@pytest.mark.thorough
@pytest.mark.skipif(not HAS_PROC, reason="the kernel's own figures are in /proc")
def test_the_figures_agree_with_the_kernels(measured: Measured) -> None:
    said = measured(dtype="float32", memory_limit_bytes=NEVER)
    assert said["outcome"] == "loaded"
    highest = max(said["curve"], key=lambda sample: sample[3])
    # The kernel's own: what comes and goes between two samples is in it.
    assert highest[3] <= said["peak_total_bytes"] <= 2 * highest[3]
    assert highest[3] >= said["peak_anon_bytes"] == max(sample[1] for sample in said["curve"])
    assert said["is_cast"] and not said["mapped_bytes"]
    assert said["peak_anon_bytes"] > said["base_anon_bytes"] + 2 * said["weight_bytes"]
    if can_make_cgroups():
        assert said["memory_limited_by"] == "memory cgroup"
        assert said["peak_anon_bytes"] == pytest.approx(said["cgroup_peak_anon_bytes"], rel=0.03)


@pytest.mark.thorough
@pytest.mark.skipif(not can_make_cgroups(), reason="a memory cgroup cannot be made here")
def test_a_cast_fits_into_little_more_than_its_reported_peak_and_into_no_less(measured: Measured) -> None:
    peak = measured(dtype="float32")["peak_anon_bytes"]
    below, above = (measured(dtype="float32", memory_limit_bytes=int(peak * share)) for share in (0.9, 1.15))
    assert below["outcome"] == "out-of-memory"
    assert above["outcome"] == "loaded"


@pytest.mark.usefixtures("warm_processes")
def test_without_a_cgroup_the_limit_is_on_private_mappings_and_says_so(measured: Measured) -> None:
    said = measured("rlimit", with_mapping=False, memory_limit_bytes=500_000_000)
    assert said["memory_limited_by"] == "RLIMIT_DATA"
    assert said["outcome"] == "out-of-memory"


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere each load has a process that starts anew")
@pytest.mark.parametrize("options", [{}, {"dtype": "float32"}, {"with_mapping": False}])
def test_a_fork_of_a_warm_process_says_what_a_process_that_starts_anew_says(options: dict[str, Any], big: Path) -> None:
    load = Load(**options)
    (fresh,) = probes([big], load)
    _, fork = probes([big, big], load)
    same = ("outcome", "loaded_bytes", "mapped_bytes", "stored_dtypes", "logits_sha256", "tokens", "is_cast", "cache")
    assert [getattr(fork, name) for name in same] == [getattr(fresh, name) for name in same]
    for name in ("base_anon_bytes", "peak_anon_bytes"):
        assert getattr(fork, name) == pytest.approx(getattr(fresh, name), rel=0.05), name
    # Mapped files of the libraries count only once a fork reads in them: tens of megabytes, whatever the model.
    assert 0 <= fresh.peak_file_bytes - fork.peak_file_bytes < 100_000_000
    assert fork.seconds["start"] < fresh.seconds["start"] + fresh.seconds["import"]
    assert fork.curve[0].anon_bytes == pytest.approx(fresh.curve[0].anon_bytes, rel=0.1), "both begin with the load"


def test_a_load_that_is_given_up_leaves_no_process(tmp_path: Path) -> None:
    def running() -> set[psutil.Process]:
        return set(psutil.Process().children(recursive=True))

    folder, others = models.save("llama", tmp_path / "in", layers=1), running()
    costs = probes([folder] * 50, Load())
    next(costs)
    assert (started := running() - others)
    costs.close()
    assert not started & running()


@pytest.mark.thorough
@pytest.mark.skipif(not HAS_PROC, reason="mappings are in /proc")
def test_mapped_weights_cost_no_anonymous_memory_and_unmapped_ones_do(measured: Measured, big: Path) -> None:
    mapped, unmapped = measured(), measured(with_mapping=False)
    assert mapped["mapped_bytes"] == mapped["loaded_bytes"]
    assert mapped["peak_anon_bytes"] < mapped["base_anon_bytes"] + 0.2 * mapped["weight_bytes"]
    assert mapped["peak_file_bytes"] > mapped["weight_bytes"]
    assert unmapped["mapped_bytes"] == 0
    # The weights, and the one file that passed through memory whole. A busy machine can miss a short peak: it is sampled.
    tries = chain([unmapped], (ask(big, with_mapping=False) for _ in range(2)))
    assert any(said["peak_anon_bytes"] - said["base_anon_bytes"] > 1.8 * said["weight_bytes"] for said in tries)
    assert mapped["logits_sha256"] == unmapped["logits_sha256"]


@pytest.mark.thorough
@pytest.mark.skipif(not HAS_PROC, reason="memory is told apart in /proc")
@pytest.mark.parametrize("how", [{}, {"dtype": "float32"}, {"with_mapping": False}])
def test_the_predicted_memory_is_near_the_measured(how: dict[str, Any], measured: Measured, big: Path) -> None:
    size = (big / "model.safetensors").stat().st_size
    expected = predict({"BF16": size}, size, how.get("dtype"), with_mapping=how.get("with_mapping", True))
    said = measured(**how)
    assert said["peak_anon_bytes"] == pytest.approx(expected.peak_anon_bytes, rel=0.1)
    assert said["peak_file_bytes"] == pytest.approx(expected.peak_file_bytes, rel=0.2)


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="no posix_fadvise")
def test_a_cold_load_reads_the_weights_from_the_disk_and_a_warm_one_does_not(measured: Measured) -> None:
    cold = measured(cold=True)
    warm = measured()  # the cold one has read it
    assert cold["cache"] == "cold"
    assert cold["disk_bytes_read"] > 0.9 * cold["weight_bytes"]
    assert warm["cache"] == "warm"
    assert warm["disk_bytes_read"] < 0.1 * warm["weight_bytes"]


@pytest.mark.thorough
@pytest.mark.skipif(not can_make_cgroups(), reason="a memory cgroup cannot be made here")
def test_text_comes_through_disk_offload_under_a_cap_smaller_than_the_model(tmp_path: Path) -> None:
    original = finish(tmp_path / "original", torch.float32, num_hidden_layers=14)
    sharded = reshard(original, tmp_path / "sharded", "100MB")
    limit = int(0.8 * sum(file.stat().st_size for file in sharded.glob("*.safetensors")))
    (plain,) = probes([sharded], Load("load_checkpoint_and_dispatch"))
    (capped,) = probes([sharded], Load("offload", memory_limit_bytes=limit, max_memory_bytes=200_000_000))
    assert (plain.outcome, capped.outcome) == ("loaded", "loaded")
    assert len(plain.tokens) >= 4
    assert capped.tokens == plain.tokens
    assert capped.logits_sha256 == plain.logits_sha256


@pytest.mark.usefixtures("warm_processes")
def test_custom_code_is_never_run(tmp_path: Path) -> None:
    folder = models.save("llama", tmp_path / "custom", layers=1)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "mine", "architectures": ["Mine"]}
    config["auto_map"] = {"AutoConfig": "mine.MyConfig", "AutoModelForCausalLM": "mine.Mine"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass MyConfig: pass\nclass Mine: pass\n")
    said = ask(folder)
    assert said["outcome"] == "unsupported"
    assert "code from its repo" in said["message"]
    config["model_type"] = "llama"  # a known configuration, but a class that only the repo has
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(loading.Unsupported):
        in_process(folder, "from_pretrained")
    assert not (tmp_path / "ran").exists()


@pytest.mark.usefixtures("warm_processes")
def test_a_broken_checkpoint_is_an_outcome_not_a_crash(tmp_path: Path) -> None:
    folder = models.save("llama", tmp_path / "broken", "10GB", layers=1)
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-100])
    said = ask(folder)
    assert said["outcome"] == "failed"
    assert "SafetensorError" in said["message"]
