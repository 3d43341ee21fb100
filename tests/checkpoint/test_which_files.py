"""Who loads a repo, and which of its files: the first sign that applies decides, and what is left out is named."""

import shutil
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel

from sharding import job
from sharding.core.errors import SourceError
from sharding.core.values import Component, Library
from sharding.formats.index import index_path
from sharding.report.snippets import loading_code
from tests import models
from tests.checkpoint.repos import modules, ones, pipeline, repo
from tests.conftest import in_two_files, listing, write_checkpoint
from tests.folders import reshard, said
from tests.kinds import sentences
from tests.promises import promise


def test_the_first_sign_that_applies_decides_who_loads_a_repo(tmp_path: Path) -> None:
    marks = {
        **pipeline(text=("transformers", "T")),
        **modules({"": "Transformer"}),
        "meta.json": {"spacy_version": ">=3"},
        "config.json": {"pretrained_cfg": {}, "_class_name": "U"},
        "open_clip_config.json": {},
        "README.md": "---\ntags: [pytorch_model_hub_mixin]\n---\n",
    }
    text = {"text/model.safetensors": ones("w"), "text/config.json": {}}
    repo(tmp_path, {"model.safetensors": ones("a", "b"), **text, **marks})
    found = []
    for mark in marks:
        found.append(job.inspect(str(tmp_path)).library)
        if mark == "config.json":
            repo(tmp_path, {mark: {"_class_name": "U"}})
        else:
            (tmp_path / mark).unlink()
    found.append(job.inspect(str(tmp_path)).library)
    for config in ({"model_type": "llama"}, {"architectures": ["X"]}, {}):
        repo(tmp_path, {"config.json": config})
        found.append(job.inspect(str(tmp_path)).library)
    assert found == [
        *("diffusers", "sentence-transformers", "spacy", "timm", "open_clip", "pytorch_model_hub_mixin"),
        *("diffusers", "transformers", "transformers", "unknown"),
    ]


OF_TIMM = {"architecture": "resnet18", "pretrained_cfg": {"num_classes": 9}}


@pytest.mark.parametrize(
    ("more", "library"),
    [
        ({}, "timm"),
        ({"model_type": "resnet"}, "timm"),
        ({"architectures": "ResNet"}, "timm"),
        ({"architectures": ["TimmWrapperModel"]}, "transformers"),
        ({"transformers_version": "5.0"}, "transformers"),
        ({"auto_map": {}}, "transformers"),
        ({"pretrained_cfg": "resnet18"}, "unknown"),
    ],
    ids=str,
)
def test_a_model_of_timm_is_one_file_unless_transformers_has_written_its_configuration(
    more: dict[str, Any], library: str, tmp_path: Path
) -> None:
    source = repo(tmp_path / "in", {"model.safetensors": ones("a", "b", "c"), "config.json": OF_TIMM | more})
    report = reshard(source, tmp_path / "out", "4kB")
    assert job.inspect(str(source)).library == library
    assert len(report.plan.shards) == (1 if library == "timm" else 3)
    assert ("one-file-loader" in said(source)) == (library == "timm")
    assert ("no-known-loader" in said(source)) == (library == "unknown")


LORA = ("unet.lora_A.weight", "unet.lora_B.weight", "unet.lora_A.alpha")


@pytest.mark.parametrize("name", ["style.safetensors", "model.safetensors"])
@pytest.mark.parametrize(("names", "is_adapter"), [(LORA, True), ((*LORA, "unet.weight"), False), (("w", "v"), False)])
def test_what_nothing_says_the_loader_of_is_one_file_where_all_of_it_is_an_adapter(
    names: tuple[str, ...], is_adapter: bool, name: str, tmp_path: Path
) -> None:
    report = reshard(repo(tmp_path / "in", {name: ones(*names)}), tmp_path / "out", "4kB")
    assert [shard.file for shard in report.plan.shards] == (
        [name] if is_adapter else [f"model-{n:05d}-of-{len(names):05d}.safetensors" for n in range(1, len(names) + 1)]
    )
    assert {"no-known-loader", "kept-whole"} & said(tmp_path / "in").keys() == (
        {"no-known-loader", "kept-whole"} if is_adapter else {"no-known-loader"}
    )


@pytest.mark.parametrize("variant", ["", "fp16"])
@pytest.mark.parametrize(("base", "takes_index"), [("diffusion_pytorch_model", True), ("model", False)])
def test_of_one_file_and_an_index_the_library_takes_its_own_of_every_variant(
    base: str, takes_index: bool, variant: str, tmp_path: Path
) -> None:
    """diffusers follows the index of what has its name; the one file comes first everywhere else."""
    dot = f".{variant}" if variant else ""
    single, index = f"{base}{dot}.safetensors", f"{base}.safetensors.index{dot}.json"
    shards = [f"{base}{dot}-{n:05d}-of-00002.safetensors" for n in (1, 2)]
    weights = {single: ones("a"), shards[0]: ones("a"), shards[1]: ones("b")}
    config = {"_class_name": "U", "_diffusers_version": "0.42"} if takes_index else {"architectures": ["X"]}
    document = {"metadata": {}, "weight_map": {"a": shards[0], "b": shards[1]}}
    repo(tmp_path, {**weights, index: document, "config.json": config})
    found = job.inspect(str(tmp_path), variant=variant)
    assert [file.path for file in found.weight_files] == (shards if takes_index else [single])
    told = said(tmp_path, variant)
    used, other = (index, single) if takes_index else (single, "an index or shards")
    assert told["several-checkpoints"].startswith(f"{used} stands beside {other}. It is the one used")
    left_out = " ".join(finding.message for finding in found.findings if finding.code == "left-out")
    assert all(path in left_out for path in ([single] if takes_index else [index, *shards]))


@promise("docs/formats.md#what-a-repo-may-hold")
def test_an_index_of_a_rank_is_no_variant(tmp_path: Path) -> None:
    """A copy that was cut for a pipeline has one for every rank; transformers asks for them by `variant=`."""
    source = in_two_files(tmp_path / "in")
    whole = (source / "model.safetensors.index.json").read_text()
    for rank in (0, 1):
        repo(source, {index_path(Component(variant=name).of_rank(rank, 2)): whole for name in ("", "fp16")})
    found = job.inspect(str(source))
    assert found.other_variants == () and said(source).keys() == {"left-out"}
    assert all(f"rank{rank}-of-2" in said(source)["left-out"] for rank in (0, 1))
    reshard(source, tmp_path / "out")
    assert not [path for path in listing(tmp_path / "out") if "rank" in path]


@pytest.mark.parametrize("name", ["Readme.MD", "CONFIG.json"])
def test_what_differs_only_in_case_from_a_file_that_is_written_anew_is_left_out(name: str, tmp_path: Path) -> None:
    source = in_two_files(tmp_path / "in")
    repo(source, {"README.md": "The card.", name: "{}", f"sub/{name}": "{}"})
    reshard(source, tmp_path / "out")
    assert f"Left out: {name} (differs only in case" in said(source)["left-out"]
    assert {"README.md", "config.json", f"sub/{name}"} <= listing(tmp_path / "out").keys()
    assert name not in listing(tmp_path / "out")
    shutil.rmtree(tmp_path / "out")
    (source / "README.md").unlink()
    reshard(source, tmp_path / "out")
    assert name not in listing(tmp_path / "out")


pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
PLAIN = {"model.safetensors": ones("w")}


@pytest.mark.parametrize("is_old", [False, True])
def test_a_sentence_transformer_is_loaded_as_before_also_from_a_folder_of_the_old_kind(
    is_old: bool, tmp_path: Path
) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    sentences.write(source)
    if is_old:
        (source / "0_Transformer").mkdir()
        torch.save(load_file(source / "model.safetensors"), source / "0_Transformer/pytorch_model.bin")
        (source / "model.safetensors").unlink()
        (source / "config.json").rename(source / "0_Transformer/config.json")
        repo(source, modules({"0_Transformer": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense"}))
    reshard(source, out)
    place = "0_Transformer" if is_old else ""
    one, other = (AutoModel.from_pretrained(folder / place) for folder in (source, out))
    assert torch.equal(models.logits(one), models.logits(other))
    assert (out / place / "model.safetensors.index.json").exists()
    assert {"modules.json", "1_Pooling/config.json", "2_Dense/config.json"} <= listing(out).keys()
    assert f"SentenceTransformer({f'./{out.name}'!r})" in (out / "README.md").read_text()


WRONG = ["", "[]", "3", "null", '{"unet": 1}', "[[]]", '[{"path": 3}]', '{"architectures": [3]}', "[" * 100_000]


@pytest.mark.parametrize("name", ["model_index.json", "modules.json", "config.json"])
def test_a_description_that_is_none_does_not_hurt(tmp_path: Path, name: str) -> None:
    folder = write_checkpoint(tmp_path / "in", PLAIN, index=False)
    for text in WRONG:
        (folder / name).write_text(text)
        found = job.inspect(str(folder))
        assert [tensor.name for tensor in found.tensors] == ["w"]
        assert found.architecture == (None if name == "config.json" else "LlamaForCausalLM")


def test_a_pipeline_that_names_folders_outside_has_no_weights(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "secret", PLAIN, index=False)
    names = dict.fromkeys(("../secret", "/etc", ""), ("diffusers", "M"))
    with pytest.raises(SourceError):
        job.inspect(str(repo(tmp_path / "in", {**PLAIN, **pipeline(**names)})))


def test_a_modular_pipeline_is_refused_with_a_hint_that_works(tmp_path: Path) -> None:
    weights = {"transformer/diffusion_pytorch_model.safetensors": ones("w")}
    parts = {"_class_name": "FluxModularPipeline", "transformer": [None, None, {"repo": "a/b"}]}
    config = {"transformer/config.json": {"_class_name": "FluxTransformer2DModel"}}
    repo(tmp_path / "in", {**weights, **config, "modular_model_index.json": parts})
    refused = "folders that no configuration names: transformer/diffusion_pytorch_model.safetensors"
    with pytest.raises(SourceError, match=refused) as refusal:
        job.inspect(str(tmp_path / "in"))
    assert "SOURCE/transformer" in refusal.value.hint
    reshard(tmp_path / "in/transformer", tmp_path / "out")
    assert "diffusion_pytorch_model.safetensors" in listing(tmp_path / "out")


@pytest.mark.parametrize("library", get_args(Library))
def test_the_code_to_load_with_is_python_whatever_the_place_is_called(library: Library) -> None:
    for place in ("a/b'", "./a'", "./it's\\n"):
        compile(loading_code(place, library, "LlamaForCausalLM", "fp'16", place), "card", "exec")
