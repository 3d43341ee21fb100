"""Each rank of a pipeline of transformers loads its own part, and all of them compute what one process does."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.distributed.pipeline_parallel import PipelineStage

from sharding import job
from sharding.core.errors import SourceError, UsageError
from sharding.core.options import Options
from sharding.demo import samples
from sharding.report.schema import parse_report
from tests import models, quantized
from tests.conftest import ROOT, environment
from tests.folders import bits, reshard
from tests.folders import tensors as load_all
from tests.hubs import TOKEN, download, push, shard
from tests.inhouse import InHouse
from tests.scenarios import pp_cases
from tests.scenarios.pp_cases import Case

Llama = Callable[..., Path]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Llama:
    """Save a llama of so many layers, once for all tests, which only read it."""

    @cache
    def llama(layers: int, tied: bool = False, **other: int) -> Path:
        return pp_cases.save(Case("llama", 2, layers, tied), tmp_path_factory.mktemp("llama") / "source", **other)

    return llama


def planned(source: Path, strategy: str, size: str = "60kB", **more: Any) -> Any:
    return job.plan(str(source), Options(size, strategy=strategy, **more))[1]


@pytest.mark.thorough
@pytest.mark.usefixtures("warm_processes")
def test_every_class_computes_the_same_on_every_number_of_ranks(tmp_path: Path) -> None:
    # At once: a group of processes for each number of ranks. All cases, some hundred, are in bench/RESULTS.md.
    pp_cases.run(pp_cases.all_cases()[::5], tmp_path)


def test_layers_are_where_transformers_cuts_them(llama: Llama) -> None:
    """Fails when another transformers cuts elsewhere: then docs, cards and what is cut already speak of an older one."""
    layers = {ranks: planned(llama(7), f"pp:{ranks}").pipeline.layers for ranks in (2, 3, 4)}
    assert layers == {2: ((0, 3), (3, 7)), 3: ((0, 2), (2, 4), (4, 7)), 4: ((0, 1), (1, 2), (2, 3), (3, 7))}


@pytest.mark.parametrize("tied", [False, True])
def test_a_rank_moves_what_it_loads_and_no_more_cast_as_the_whole_is(tied: bool, llama: Llama, tmp_path: Path) -> None:
    source = llama(5, tied, intermediate_size=2000)
    whole = job.inspect(str(source))
    reshard(source, tmp_path / "whole", "900kB", dtype="bf16")
    parts = []
    for rank in range(2):
        report = reshard(source, tmp_path / f"{rank}", "900kB", strategy="pp:2", dtype="bf16", rank=rank)
        parts.append(load_all(tmp_path / f"{rank}"))
        assert report.resources.bytes_read / 2 < 0.7 * whole.total_bytes  # once to be cast, once to be proved
        assert report.plan.rank == rank and report.source.total_bytes == whole.total_bytes
        assert f"for rank {rank} of 2 (layers " in (tmp_path / f"{rank}" / "README.md").read_text()
    assert parts[0].keys() & parts[1].keys() == ({"model.embed_tokens.weight"} if tied else set())
    every = load_all(tmp_path / "whole")
    assert (parts[0] | parts[1]).keys() == every.keys() == {tensor.name for tensor in whole.tensors}
    assert all(torch.equal(tensor, every[name]) for part in parts for name, tensor in part.items())


QUANTIZED = ["qwen3_moe", "deepseek_v3", "gpt_oss", *sorted(quantized.BESIDE.keys() - {"awq"})]
"""Names of scales differ; those of awq are among those of gptq."""
LAYERS = 3


def save_quantized(kind: str, folder: Path) -> Path:
    """Save a quantized model of few layers: of a class in FP8 or MXFP4, or a mixture of experts by a method."""
    if kind in quantized.BESIDE:
        return quantized.save_beside(kind, "qwen3_moe", folder, num_hidden_layers=LAYERS)
    if kind == "gpt_oss":
        return quantized.save_mxfp4(folder, num_hidden_layers=LAYERS, layer_types=["full_attention"] * LAYERS)
    # No multiple of 128: then transformers itself quantizes nothing again.
    return quantized.save_fp8(kind, folder, num_hidden_layers=LAYERS, intermediate_size=392)


def rank_by_transformers(name: str, ranks: int, layers: int) -> int | None:
    stage = PipelineStage.__new__(PipelineStage)  # its constructor wants the processes themselves
    stage.pp_size = ranks
    rank: int | None = stage.find_rank_for_key(name, layers, "model")
    return rank


@pytest.mark.parametrize("kind", QUANTIZED)
def test_a_rank_holds_the_scales_of_its_own_weights(kind: str, tmp_path: Path) -> None:
    source = save_quantized(kind, tmp_path / "source")
    stored = {tensor.name for tensor in job.inspect(str(source)).tensors}
    plan = planned(source, "pp:3")
    tensors_of = {one.file: {tensor.name for tensor in one.tensors} for one in plan.shards}
    for rank, stage in enumerate(plan.stages):
        wanted = {name for name in stored if rank_by_transformers(name, 3, LAYERS) == rank}
        assert wanted and not stage.also_needs
        assert set().union(*(tensors_of[file] for file in stage.files)) == wanted
        part = planned(source, "pp:3", rank=rank)
        assert {tensor.name for one in part.shards for tensor in one.tensors} == wanted


def test_what_belongs_to_no_weight_that_the_class_knows_goes_to_every_rank(tmp_path: Path) -> None:
    source = quantized.save_fp8("qwen3", tmp_path / "source", num_hidden_layers=5)
    others = {"model.layers.5.eh_proj.weight": torch.zeros(2, 2).to(torch.float8_e4m3fn)}
    others |= {"model.layers.5.eh_proj.weight_scale_inv": torch.ones(1, 1), "extra_head.weight": torch.ones(2)}
    save_file({**load_file(source / "model.safetensors"), **others}, source / "model.safetensors", {"format": "pt"})
    _, last = planned(source, "pp:2").stages
    assert {needed.tensor for needed in last.also_needs} == {*others}
    for rank in range(2):
        part = planned(source, "pp:2", rank=rank)
        assert {*others} <= {tensor.name for one in part.shards for tensor in one.tensors}


def test_dequantized_weights_of_ranks_are_those_of_the_ordinary_model(tmp_path: Path) -> None:
    source = save_quantized("deepseek_v3", tmp_path / "source")
    quantized.build("deepseek_v3", tmp_path / "ordinary", num_hidden_layers=LAYERS, intermediate_size=392)
    plans = [planned(source, "pp:2", dequantize=True), planned(tmp_path / "ordinary", "pp:2")]
    assert plans[0].weight_map == plans[1].weight_map
    files, ordinary = ([(stage.blocks, stage.others, stage.files) for stage in plan.stages] for plan in plans)
    assert files == ordinary


def test_the_result_for_all_ranks_has_an_index_for_each(llama: Llama, tmp_path: Path) -> None:
    report = reshard(llama(7, True), tmp_path / "cut", "60kB", strategy="pp:3")
    files = []
    for rank, stage in enumerate(report.plan.stages):
        index = json.loads((tmp_path / f"cut/model.safetensors.index.rank{rank}-of-3.json").read_text())
        files.append(set(index["weight_map"].values()))
        assert files[-1] == {*stage.files, *(tied.file for tied in stage.also_needs)}
    assert len(files[0] & files[2]) == 1 and not files[0] & files[1]  # the embeddings, in a file of their own
    assert [len(stage.blocks) for stage in report.plan.stages] == [2, 2, 3]
    again = job.inspect(str(tmp_path / "cut"))
    assert not again.other_variants and not any("rank" in file.path for file in again.side_files)
    assert parse_report((tmp_path / "cut/sharding_report.json").read_bytes()) == report


def test_names_without_the_prefix_of_the_base_model_are_understood(llama: Llama, tmp_path: Path) -> None:
    stored = {name.removeprefix("model."): tensor for name, tensor in load_all(llama(5, True)).items()}
    save_file(stored, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_bytes((llama(5, True) / "config.json").read_bytes())
    first, last = planned(tmp_path, "pp:2").stages
    assert (first.blocks, last.blocks) == (("layers.0", "layers.1"), ("layers.2", "layers.3", "layers.4"))
    needed = [(needed.tensor, needed.used_as) for needed in last.also_needs]
    assert needed == [("embed_tokens.weight", ("lm_head.weight",))]


@pytest.mark.thorough
@pytest.mark.usefixtures("warm_processes")
def test_ranks_of_fp8_and_those_that_load_from_a_hub_compute_what_one_process_does(
    hub: InHouse, llama: Llama, tmp_path: Path
) -> None:
    fp8 = quantized.save_fp8("qwen3", tmp_path / "fp8", num_hidden_layers=5)
    case, source = Case("llama", 2, 5, tied=True), llama(5, True)
    push(hub, source, "alice/five")
    login = {"endpoint": hub.address, "token": TOKEN}
    shard(hub, "alice/five", "alice/five-cut", Options("60kB", strategy="pp:2"))
    wanted = [
        pp_cases.cut(Case("qwen3", 2, 5), str(fp8), tmp_path / "of fp8"),
        pp_cases.cut(Case("qwen3", 2, 5, whole=True), str(fp8), tmp_path / "all of fp8"),
        pp_cases.cut(case, "alice/five", tmp_path / "parts", **login),
        {"places": ["alice/five-cut"] * 2, "variant": "rank{rank}-of-2"},
    ]
    env = {"HF_ENDPOINT": hub.address, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path / "home")}
    env["PYTHONPATH"] = str(ROOT)  # no fork: of the Hub the client is told as it is imported
    (of_fp8,), (plain,) = pp_cases.computed(0, [{"places": [str(place)]} for place in (fp8, source)])
    for one, ranks in zip((of_fp8, of_fp8, plain, plain), pp_cases.computed(2, wanted, **env), strict=True):
        pp_cases.check(one, ranks)


@pytest.mark.thorough
def test_the_script_of_the_card_computes_and_refuses_other_cuts(hub: InHouse, tmp_path: Path) -> None:
    source = samples.build_mistral(tmp_path / "source")
    push(hub, source, "alice/mistral")
    shard(hub, "alice/mistral", "alice/cut", Options("20MB", strategy="pp:2"))
    card = (download(hub, "alice/cut", tmp_path / "cut") / "README.md").read_text()
    (script,) = (block for block in re.findall(r"```python\n(.*?)```", card, re.DOTALL) if "pp_size" in block)
    assert "torchrun --nnodes 2" in card
    tokenizer = AutoTokenizer.from_pretrained(source)
    inputs = tokenizer("Hello", return_tensors="pt")
    (tokens,) = AutoModelForCausalLM.from_pretrained(source).generate(**inputs, max_new_tokens=20, do_sample=False)
    alone = tokenizer.decode(tokens)
    env = environment() | {"HF_ENDPOINT": hub.address, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path / "home")}
    (tmp_path / "pipeline.py").write_text(script)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "pipeline.py"]
    given: dict[str, Any] = {"cwd": tmp_path, "env": env | {"OMP_NUM_THREADS": "1"}, "timeout": 300}
    done = subprocess.run(launch, capture_output=True, text=True, **given)
    # Two processes write into one pipe: a line of one may end behind that of the other.
    assert done.stdout.replace("\n", "") == 2 * alone.replace("\n", ""), done.stderr[-3000:]
    (command,) = re.findall(r"^hf (download .*)$", card, re.MULTILINE)
    home = {"HF_HOME": str(tmp_path / "first"), "HF_XET_LOG_DEST": os.devnull}
    hf = [str(Path(sys.executable).with_name("hf")), *shlex.split(command)]
    subprocess.run(hf, env=env | home, check=True, capture_output=True, timeout=120)
    first = {path.name for path in (tmp_path / "first").rglob("*") if path.is_symlink() or path.is_file()}
    weights = {path.name for path in (tmp_path / "cut").glob("*.safetensors")}
    report = parse_report((tmp_path / "cut/sharding_report.json").read_bytes())
    assert first & weights == set(report.plan.stages[0].files)
    assert {"config.json", "tokenizer.json"} <= first
    moved = script.replace("(0, 5)", "(0, 4)")
    assert moved != script
    with pytest.raises(SystemExit, match="This version cuts elsewhere"):
        exec(moved, {})


@pytest.mark.thorough
@pytest.mark.usefixtures("warm_processes")
def test_two_processes_of_the_demo_agree_with_one(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sharding.demo.pipeline"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=600)
    assert not done.returncode and done.stdout.endswith("They agree.\n"), done.stdout + done.stderr


@pytest.mark.parametrize("name", ["gpt2", "t5", "bert", "gpt-neox"])
def test_what_transformers_cannot_cut_is_refused_by_name(name: str, tmp_path: Path) -> None:
    source = models.save(name, tmp_path / "source", layers=1)
    with pytest.raises(SourceError, match=models.class_of(name).__name__) as error:
        planned(source, "pp:2")
    assert "blocks" in error.value.hint


def test_more_ranks_than_layers_are_refused(llama: Llama) -> None:
    with pytest.raises(UsageError, match="8 ranks need at least as many layers, but this LlamaForCausalLM has 7"):
        planned(llama(7), "pp:8")


def loaded(folder: Path) -> dict[str, Any]:
    return {name: bits(weight) for name, weight in AutoModelForCausalLM.from_pretrained(folder).state_dict().items()}


@pytest.mark.parametrize("tied", [False, True])
def test_without_a_variant_a_repo_cut_for_a_pipeline_loads_like_any_other(
    tied: bool, llama: Llama, tmp_path: Path
) -> None:
    report = reshard(llama(5, tied), tmp_path / "cut", "60kB", strategy="pp:2")
    assert report.plan.stages and len(report.shards) > 2
    assert loaded(tmp_path / "cut") == loaded(llama(5, tied))


@pytest.mark.parametrize(("ranks", "layers", "tied"), [(3, 7, True), (2, 5, False)])
def test_who_loads_the_layers_of_a_rank_by_the_index_needs_its_files_and_those_outside_of_layers_only(
    ranks: int, layers: int, tied: bool, llama: Llama
) -> None:
    # As mlx-lm does it: the files in which its layers lie, and those with what every rank keeps.
    plan = planned(llama(layers, tied), f"pp:{ranks}", "40kB")
    of_layers: dict[int, set[str]] = {}
    for name, file in plan.weight_map.items():
        match = re.search(r"layers\.(\d+)\.", name)
        of_layers.setdefault(int(match[1]) if match else -1, set()).add(file)
    kept = of_layers.pop(-1)
    assert set(of_layers) == set(range(layers))
    for start, end in plan.pipeline.layers:
        own = set().union(*(of_layers[layer] for layer in range(start, end)))
        others = set().union(*(files for layer, files in of_layers.items() if not start <= layer < end))
        assert not own & others, "no file has layers of two ranks"
        assert others - kept, "and most of those of the others are not needed"
    assert len(kept) <= 3, "embeddings, norm and head are in a file each at most"
