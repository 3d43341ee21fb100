"""Device plans keep blocks whole and budgets respected, and are accelerate's own; and where a copy fits."""

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import infer_auto_device_map, init_empty_weights
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedModel

from sharding import job
from sharding.checkpoint.read import read_checkpoint
from sharding.core.errors import SourceError, UsageError
from sharding.core.options import Options
from sharding.core.origin import Place
from sharding.model_class.architecture import ARCHITECTURE, Architecture
from sharding.model_class.meta_model import describe
from sharding.planning.devices import (
    CONTEXT_TOKENS,
    PRESETS,
    DevicePlan,
    Need,
    context_bytes,
    needed,
    parse_budgets,
    plan_devices,
    where_it_fits,
)
from sharding.planning.plan import planned
from sharding.planning.steps import NO_CLASS
from sharding.storage.folder_source import open_folder
from tests import models, quantized
from tests.conftest import environment

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
Run = Callable[..., subprocess.CompletedProcess[str]]
SHARES: list[dict[str, float]] = [
    {"cuda:0": 1.5, "cpu": 1.0},
    {"cuda:0": 0.5, "cuda:1": 0.5, "cpu": 1.0},
    {"cuda:0": 0.4, "cpu": 0.5},
]


def ask(folder: Path, budgets: dict[str, int]) -> tuple[Architecture, DevicePlan]:
    config = (folder / "config.json").read_text()
    architecture = ARCHITECTURE.validate_python(describe({"config": config, "dtype": None, "budgets": budgets}))
    tensors = read_checkpoint(open_folder(str(folder))).tensors
    return architecture, plan_devices(architecture, tensors, budgets, Place("folder", str(folder)), None)


@pytest.mark.parametrize("name", models.USUALLY)
def test_blocks_stay_whole_budgets_hold_and_the_map_is_accelerates(name: str, tmp_path: Path) -> None:
    folder = models.save(name, tmp_path, "30kB")
    with init_empty_weights():
        model = models.build(name)
    model.tie_weights()
    for shares in SHARES:
        assert_as_accelerate_places(folder, model, shares)


def assert_as_accelerate_places(folder: Path, model: PreTrainedModel, shares: dict[str, float]) -> None:
    checkpoint = read_checkpoint(open_folder(str(folder)))
    budgets = {device: int(share * checkpoint.total_bytes) for device, share in shares.items()}
    architecture, plan = ask(folder, budgets)
    assert {name for weight in architecture.weights for name in weight.saved_as} == {
        tensor.name for tensor in checkpoint.tensors
    }
    if plan.fits:
        assert {file for load in plan.devices for file in load.files} == {tensor.file for tensor in checkpoint.tensors}

    def home(name: str) -> str:
        while name not in plan.device_map:
            name = name.rpartition(".")[0]
        return plan.device_map[name]

    held: dict[str, int] = {}
    for name, tensor in model.named_parameters():
        held[home(name)] = held.get(home(name), 0) + tensor.nbytes
    assert all(held.get(device, 0) <= size for device, size in budgets.items())
    assert {load.device: load.bytes for load in plan.devices if load.bytes} == held
    classes = set(model._no_split_modules or ())
    assert classes == set(plan.no_split_classes)
    for name, module in model.named_modules():
        if type(module).__name__ in classes:
            assert len({home(f"{name}.{part}") for part, _ in module.named_parameters()}) == 1
    numbered = {int(device[5:]) if device.startswith("cuda") else device: size for device, size in budgets.items()}
    theirs = infer_auto_device_map(model, max_memory=numbered, no_split_module_classes=sorted(classes))  # type: ignore[arg-type]
    assert plan.device_map == {n: f"cuda:{d}" if isinstance(d, int) else d for n, d in theirs.items()}
    assert plan.fits == ("disk" not in theirs.values())


@pytest.mark.parametrize("name", ["llama-tied", "t5"])
def test_the_snippet_loads_the_model_as_planned_and_it_computes_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = models.save(name, tmp_path / name, "30kB")
    total = read_checkpoint(open_folder(str(folder))).total_bytes
    _, plan = ask(folder, {"cpu": int(0.6 * total)})
    assert not plan.fits
    monkeypatch.chdir(tmp_path)
    space: dict[str, Any] = {}
    exec(plan.snippet, space)
    assert space["model"].hf_device_map == plan.device_map
    theirs = models.class_of(name).from_pretrained(folder)
    assert torch.equal(models.logits(space["model"].eval()), models.logits(theirs.eval()))


def test_the_command_prints_the_plan_and_a_wider_dtype_takes_as_much_more(run: Run, tmp_path: Path) -> None:
    folder = models.save("llama", tmp_path / "llama", "30kB")
    done = run("devices", folder, "--budget", "cuda:0=120kB,cpu=200kB", "--json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert {"architecture", "fits", "devices", "device_map", "snippet"} <= plan.keys()
    assert plan["no_split_classes"] == ["LlamaDecoderLayer"]
    wider = job.devices(str(folder), "cpu=1GB", dtype="fp32").devices
    assert sum(load.bytes for load in wider) == 2 * sum(load["bytes"] for load in plan["devices"])


@pytest.mark.parametrize(
    "save",
    [
        partial(quantized.save_fp8, "qwen3_moe"),
        quantized.save_mxfp4,
        *(partial(quantized.save_beside, method, "qwen3") for method in quantized.BESIDE),
    ],
)
def test_quantized_weights_take_the_room_of_their_files(save: Callable[[Path], Path], tmp_path: Path) -> None:
    folder = str(save(tmp_path / "in"))
    total = read_checkpoint(open_folder(folder)).total_bytes
    whole, less = (job.devices(folder, f"cuda:0={room}B") for room in (total, total - 1))
    assert (whole.fits, less.fits) == (True, False)
    assert sum(load.bytes for load in whole.devices) == sum(load.bytes for load in less.devices) == total


@pytest.mark.parametrize("save", [partial(quantized.save_fp8, "qwen3"), quantized.save_mxfp4])
def test_weights_that_a_processor_dequantizes_take_the_room_of_ordinary_ones_where_there_is_one(
    save: Callable[[Path], Path], tmp_path: Path
) -> None:
    folder = str(save(tmp_path / "in"))
    content = read_checkpoint(open_folder(folder))
    packed, ordinary = content.total_bytes, planned(content, Options(dequantize=True), NO_CLASS).total_bytes
    for budget, held in (("cuda:0=1GB", packed), ("cpu=1GB", ordinary), ("cuda:0=1GB,cpu=1GB", ordinary)):
        plan = job.devices(folder, budget)
        assert (plan.fits, sum(load.bytes for load in plan.devices)) == (True, held), budget
    assert not job.devices(folder, f"cpu={ordinary - 1}B").fits


def test_a_model_that_only_its_own_code_can_build_is_refused(checkpoint: Path) -> None:
    (checkpoint / "config.json").write_text('{"model_type": "mine", "auto_map": {"AutoModel": "mine.Mine"}}')
    with pytest.raises(SourceError, match="never run"):
        job.devices(str(checkpoint), "24gb")


@pytest.mark.parametrize("text", ["", "gpu=1GB", "cuda:0", "cuda:0=1GB,cuda:0=2GB", "cpu=much", "mps=1GB"])
def test_a_budget_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_budgets(text)


@given(st.dictionaries(st.sampled_from(["cuda:0", "cuda:1", "cpu"]), st.integers(1, 10**15), min_size=1))
def test_budgets_read_back_as_they_were_written(budgets: dict[str, int]) -> None:
    assert parse_budgets(",".join(f"{device}={size}B" for device, size in budgets.items())) == budgets


def test_a_plan_imports_no_torch_into_its_own_process(tmp_path: Path) -> None:
    folder = models.save("bert", tmp_path / "bert", "30kB")
    asked = {"config": (folder / "config.json").read_text(), "dtype": None, "budgets": {"cuda:0": 24 * 10**9}}
    script = (
        "import json, sys; from sharding import job; from sharding.model_class import architecture\n"
        "architecture.ask_meta_model = lambda *question: json.load(sys.stdin)\n"
        f"print(job.devices({str(folder)!r}, 'cuda:0=24GB').fits, 'torch' in sys.modules)"
    )
    command, answer = [sys.executable, "-c", script], json.dumps(describe(asked))
    done = subprocess.run(command, input=answer, capture_output=True, text=True, env=environment(), check=True)
    assert done.stdout.split() == ["True", "False"]


# --- Where a copy fits ---------------------------------------------------------------------------------------


GB = 10**9
SIZES = st.integers(1, 10**13)


def words(total: int, *stages: int) -> dict[str, str]:
    return {fit.place: fit.words for fit in where_it_fits(Need(total), stages)}


def test_a_model_of_seven_billion_parameters_fits_a_t4_but_not_the_memory_beside_it() -> None:
    assert words(14_500_000_000) == {
        "CPU memory of free Colab": "too small: holds 12.0 GB of 14.5 GB",
        "T4": "fits, 500.0 MB to spare",
        "24 GB card": "fits, 8.5 GB to spare",
        "Two T4s": "fits, 7.8 GB to spare on the fullest",
    }
    assert words(141 * GB)["T4"] == "too small: holds 15.0 GB of 141.0 GB"
    assert words(141 * GB)["Two T4s"] == "too small: holds 30.0 GB of 141.0 GB"


def test_the_machines_of_a_pipeline_hold_its_stages_and_the_fullest_decides() -> None:
    *_, last = where_it_fits(Need(40 * GB), (16 * GB, 12 * GB, 12 * GB))
    assert (last.place, last.words) == ("3 machines with a T4", "too small: holds 39.0 GB of 40.0 GB")
    assert words(28 * GB, 13 * GB, 15 * GB)["Two T4s"] == "fits, 0 B to spare on the fullest"


@pytest.mark.parametrize(("place", "preset"), [("T4", "colab-t4"), ("24 GB card", "24gb")])
def test_a_copy_fits_up_to_the_last_byte_of_the_presets_of_devices(place: str, preset: str) -> None:
    room = parse_budgets(PRESETS[preset])["cuda:0"]
    assert words(room)[place] == "fits, 0 B to spare"
    assert words(room + 1)[place].startswith("too small: holds ")


def test_what_is_needed_beside_the_weights_counts() -> None:
    """The keys and values of the context everywhere; the largest file only in the memory of a processor."""
    fits = {fit.place: fit.spare_bytes for fit in where_it_fits(Need(8 * GB, loading=3 * GB, context=GB))}
    assert (fits["CPU memory of free Colab"], fits["T4"], fits["Two T4s"]) == (1 * GB, 6 * GB, 10 * GB)


def test_weights_that_transformers_dequantizes_without_kernels_count_as_it_holds_them(tmp_path: Path) -> None:
    content = read_checkpoint(open_folder(str(quantized.save_fp8("qwen3", tmp_path / "in"))))
    need, ordinary = needed(content), planned(content, Options(dequantize=True), NO_CLASS)
    assert (need.weights, need.packed) == (ordinary.total_bytes, content.total_bytes)
    assert need.loading == content.total_bytes, "each file is held as long as something in it is"
    assert needed(content, planned(content, Options(20_000), NO_CLASS)) == need
    assert (needed(content, ordinary).weights, needed(content, ordinary).packed) == (ordinary.total_bytes, 0)
    card = {fit.place: fit.words for fit in where_it_fits(Need(26 * GB, packed=14 * GB))}["24 GB card"]
    assert card == "too small: holds 23.0 GB of 26.0 GB; with kernels for it, fits, 9.0 GB to spare"


@pytest.mark.parametrize(
    ("save", "options", "is_dequantized"),
    [
        (partial(quantized.build, "qwen3"), Options("1GB"), False),
        (partial(quantized.build, "qwen3"), Options("300kB", dtype="fp16"), False),
        (partial(quantized.build, "qwen3"), Options("300kB", dtype="fp32"), False),
        (partial(quantized.save_fp8, "qwen3"), Options("300kB"), True),
        (partial(quantized.save_fp8, "qwen3"), Options("300kB", dequantize=True), False),
        (quantized.save_mxfp4, Options("100kB"), True),
        (quantized.save_mxfp4, Options("100kB", dequantize=True), False),
        (partial(quantized.save_beside, "bitsandbytes 4-bit", "qwen3"), Options("30kB"), False),
    ],
)
def test_a_copy_needs_its_weights_as_they_are_held_its_largest_file_and_the_context_of_its_configuration(
    save: Callable[[Path], object], options: Options, is_dequantized: bool, tmp_path: Path
) -> None:
    save(tmp_path)
    content = read_checkpoint(open_folder(str(tmp_path)))
    plan, config = planned(content, options, NO_CLASS), json.loads((tmp_path / "config.json").read_text())
    ordinary = planned(content, Options(dequantize=True), NO_CLASS).total_bytes if is_dequantized else 0
    stored, need = plan.total_bytes, needed(content, plan)
    assert (need.weights, need.packed) == ((ordinary, stored) if is_dequantized else (stored, 0))
    assert need.loading == (stored if is_dequantized else max(shard.bytes for shard in plan.shards))
    heads = config["num_key_value_heads"] * config["head_dim"]
    assert need.context == 2 * config["num_hidden_layers"] * heads * 2 * CONTEXT_TOKENS
    unchanged = needed(content)
    if options == Options(options.max_shard_size):
        assert (unchanged.weights, unchanged.context, unchanged.packed) == (need.weights, need.context, need.packed)


LAYERS = {"num_hidden_layers": 3, "num_attention_heads": 8}


@pytest.mark.parametrize(
    ("config", "numbers"),
    [
        (LAYERS | {"num_key_value_heads": 2, "head_dim": 40, "hidden_size": 64}, 3 * 2 * 40),
        (LAYERS | {"num_key_value_heads": 2, "hidden_size": 64}, 3 * 2 * 8),
        (LAYERS | {"num_key_value_heads": None, "head_dim": None, "hidden_size": 64}, 3 * 64),
        ({"n_layer": 5, "n_head": 4, "n_embd": 32}, 5 * 32),
        ({"num_layers": 5, "num_heads": 4, "d_model": 32}, 5 * 32),
        ({"vision_config": {}, "text_config": LAYERS | {"hidden_size": 64}}, 3 * 64),
        ({}, 0),
        (LAYERS, 0),
        (LAYERS | {"num_attention_heads": 0, "hidden_size": 64}, 0),
        (LAYERS | {"num_hidden_layers": "many", "hidden_size": 64}, 0),
        (LAYERS | {"num_hidden_layers": -3, "hidden_size": 64}, 0),
        (LAYERS | {"head_dim": "wide"}, 0),
        ([], 0),
    ],
    ids=str,
)
def test_the_room_for_a_context_follows_from_the_configuration_or_is_none(config: object, numbers: int) -> None:
    """A key and a value of two bytes for each number, of each token."""
    assert context_bytes(json.dumps(config), 100) == 2 * 2 * 100 * numbers


@given(total=SIZES, stages=st.lists(SIZES, max_size=5))
def test_places_come_by_their_room_and_hold_no_more_than_there_is(total: int, stages: list[int]) -> None:
    fits = where_it_fits(Need(sum(stages) or total), stages)
    assert [fit.room_bytes for fit in fits[:3]] == sorted(fit.room_bytes for fit in fits[:3])
    for fit in fits:
        assert sum(fit.part_bytes) == (sum(stages) or total)
        assert fit.words.startswith("fits") == all(part <= fit.room_bytes for part in fit.part_bytes)
