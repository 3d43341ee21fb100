"""Pipelines and their variants are cut folder by folder, resumed, and drawn with: what comes out is what was there."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import load_file

from sharding import job
from sharding.core.errors import SourceError, UsageError
from sharding.report.schema import Report, parse_report
from tests import models, pipelines
from tests.conftest import listing
from tests.folders import in_folders, kept, reshard, said, until_shard
from tests.hubs import TOKEN, download, push
from tests.inhouse import InHouse
from tests.lora import each_one

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
SIZE = "50kB"
PLAIN = {"model.safetensors": {"w": np.zeros(3, np.float32)}}


@pytest.fixture(scope="module")
def variants(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.save_variants(tmp_path_factory.mktemp("variants"))


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pipelines.save(tmp_path_factory.mktemp("pipeline") / "tiny")


@pytest.fixture(scope="module")
def drawn(pipeline: Path) -> np.ndarray:
    """What it draws."""
    image: np.ndarray = pipelines.image(pipeline)
    return image


@pytest.fixture
def source(pipeline: Path, tmp_path: Path) -> Path:
    """A copy of it to change."""
    return Path(shutil.copytree(pipeline, tmp_path / "in"))


def test_every_component_of_a_pipeline_is_cut_in_its_folder_and_the_result_draws_the_same(
    pipeline: Path, drawn: np.ndarray, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    report = reshard(pipeline, out)
    assert in_folders(out) == in_folders(pipeline)
    found = listing(out)
    for index in (f"{part}/diffusion_pytorch_model.safetensors.index.json" for part in ("unet", "vae")):
        document = json.loads(found[index])
        stored = load_file(pipeline / index.removesuffix(".index.json"))
        assert document["weight_map"].keys() == stored.keys()
        assert document["metadata"] == {
            "total_parameters": sum(tensor.numel() for tensor in stored.values()),
            "total_size": sum(tensor.nbytes for tensor in stored.values()),
        }
    assert "text_encoder/model.safetensors" in found  # small enough for one file, so it has no index
    assert "text_encoder/model.safetensors.index.json" not in found
    beside = {name for name in listing(pipeline) if not name.endswith(".safetensors")}
    assert all(found[name] == (pipeline / name).read_bytes() for name in beside)
    assert np.array_equal(pipelines.image(out), drawn)
    assert set(report.files) == set(found)
    read = parse_report(found["sharding_report.json"])
    assert (read.source.library, read.source.architecture) == ("diffusers", "StableDiffusionPipeline")
    assert "DiffusionPipeline.from_pretrained('./out')" in found["README.md"].decode()
    assert not list(job.verify(str(pipeline), str(out), quick=False))[-1].verification.mismatches  # type: ignore[union-attr]


def test_a_pipeline_takes_the_variant_where_a_component_has_it(source: Path, tmp_path: Path) -> None:
    plain, half = (f"diffusion_pytorch_model{end}.safetensors" for end in ("", ".fp16"))
    shutil.copyfile(source / "unet" / plain, source / "unet" / half)
    each_one(lambda name, tensor: tensor.half(), half)(source / "unet")
    assert "unet/diffusion_pytorch_model.safetensors.index.json" in {*reshard(source, tmp_path / "plain").files}
    assert job.inspect(str(source)).other_variants == ("fp16",)
    files = reshard(source, tmp_path / "out", variant="fp16").files
    assert "unet/diffusion_pytorch_model.safetensors.index.fp16.json" in files
    assert "vae/diffusion_pytorch_model.safetensors.index.json" in files
    shutil.copytree(tmp_path / "out", tmp_path / "copy")
    assert np.array_equal(pipelines.image(tmp_path / "copy", "fp16"), pipelines.image(source, "fp16"))


def test_what_a_pipeline_does_not_name_is_left_out(source: Path) -> None:
    save_file(PLAIN["model.safetensors"], source / "v1-5-pruned.safetensors")
    (source / "safety_checker").mkdir()
    save_file(PLAIN["model.safetensors"], source / "safety_checker/model.safetensors")
    assert "safety_checker/model.safetensors, v1-5-pruned.safetensors" in said(source)["left-out"]


@pytest.mark.parametrize("name", ["vae.bin", "model.onnx"])
def test_a_component_whose_weights_cannot_be_streamed_is_refused_by_name(name: str, source: Path) -> None:
    (source / "vae/diffusion_pytorch_model.safetensors").rename(source / "vae" / name)
    says = f"vae/ of the pipeline has no weights that can be streamed, only vae/{name}"
    with pytest.raises(SourceError, match=says) as refusal:
        job.inspect(str(source))
    assert "save_pretrained" in refusal.value.hint


BASES = {"unet": "diffusion_pytorch_model", "vae": "diffusion_pytorch_model", "text_encoder": "model"}
"""The components of the pipeline, and what their weights are called."""


def pickled(folder: Path, *components: str, variant: str = "", parts: int = 1) -> None:
    """Write the weights of `components` as torch did before safetensors, in so many `parts`, in their place."""
    for component in components:
        (file,) = (folder / component).glob("*.safetensors")
        state = load_file(file)
        file.unlink()
        base = {"model": "pytorch_model"}.get(BASES[component], BASES[component])
        weight_map = {}
        for number in range(parts):
            suffix = f"-{number + 1:05d}-of-{parts:05d}" if parts > 1 else ""
            name = f"{base}{variant and f'.{variant}'}{suffix}.bin"
            part = {key: tensor for index, (key, tensor) in enumerate(state.items()) if index % parts == number}
            torch.save(part, folder / component / name)
            weight_map |= dict.fromkeys(part, name)
        if parts > 1:
            index = folder / component / f"{base}.bin.index{variant and f'.{variant}'}.json"
            index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


@pytest.mark.parametrize(("variant", "parts"), [("", 3), ("fp16", 2)])
def test_pickled_components_become_safetensors_by_the_name_that_diffusers_loads(
    variant: str, parts: int, pipeline: Path, source: Path, drawn: np.ndarray, tmp_path: Path
) -> None:
    pickled(source, "unet", "text_encoder", variant=variant, parts=parts)
    report = reshard(source, tmp_path / "out", variant=variant)
    assert in_folders(tmp_path / "out") == in_folders(pipeline)
    found = listing(tmp_path / "out")
    part = f".{variant}" if variant else ""
    assert f"unet/diffusion_pytorch_model.safetensors.index{part}.json" in found
    assert f"text_encoder/model{part}.safetensors" in found
    assert not [name for name in found if ".bin" in name]
    assert np.array_equal(pipelines.image(tmp_path / "out", variant or None), drawn)
    assert "pickled" in {finding.code for finding in report.plan.findings}
    assert report.source.variant == variant


def test_plain_pickled_weights_come_before_a_variant_and_after_safetensors(pipeline: Path, source: Path) -> None:
    """As in diffusers, which looks for another variant only where that is asked for."""
    pickled(source, "vae")
    shutil.copy(
        pipeline / "vae/diffusion_pytorch_model.safetensors", source / "vae/diffusion_pytorch_model.fp16.safetensors"
    )
    pickled(source, "unet", variant="fp16")
    shutil.copy(pipeline / "unet/diffusion_pytorch_model.safetensors", source / "unet")
    taken = [file.path for file in job.inspect(str(source)).weight_files]
    plain = ["vae/diffusion_pytorch_model.bin", "unet/diffusion_pytorch_model.safetensors"]
    assert set(plain) < set(taken) and len(taken) == 3
    taken = [file.path for file in job.inspect(str(source), variant="fp16").weight_files]
    halves = ["vae/diffusion_pytorch_model.fp16.safetensors", "unet/diffusion_pytorch_model.fp16.bin"]
    assert set(halves) < set(taken) and len(taken) == 3
    assert "fp16" in said(source)["variants"]


def test_a_model_of_diffusers_alone_keeps_its_name_also_where_it_was_pickled(source: Path, tmp_path: Path) -> None:
    from diffusers import UNet2DConditionModel

    theirs = UNet2DConditionModel.from_pretrained(source / "unet").state_dict()
    for out in (tmp_path / "plain", tmp_path / "pickled"):
        reshard(source / "unet", out)
        assert (out / "diffusion_pytorch_model.safetensors.index.json").exists()
        ours = UNet2DConditionModel.from_pretrained(out).state_dict()
        assert all(torch.equal(tensor, ours[name]) for name, tensor in theirs.items())
        if out.name == "plain":
            pickled(source, "unet")


def test_names_that_share_a_tensor_are_all_written_where_nothing_ties_them_again(
    pipeline: Path, source: Path, tmp_path: Path
) -> None:
    """Diffusers ties nothing after loading, a text encoder not these: what is missing would be left without weights."""
    pickled(source, "vae", "text_encoder")
    for file in (source / "vae/diffusion_pytorch_model.bin", source / "text_encoder/pytorch_model.bin"):
        state = torch.load(file)
        first = next(iter(state))
        torch.save({**state, "again": state[first]}, file)
    reshard(source, tmp_path / "out")
    written = in_folders(tmp_path / "out")
    first = next(iter(load_file(pipeline / "vae/diffusion_pytorch_model.safetensors")))
    assert written["vae/again"] == written[f"vae/{first}"]
    assert "text_encoder/again" in written
    assert "tied" not in said(source)


def test_discard_and_another_result_leave_no_file_of_a_pipeline_behind(
    pipeline: Path, source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    until_shard(job.shard(str(pipeline), str(out), SIZE), 3, stop=True)
    assert job.discard(str(out)).found and not listing(out)
    reshard(pipeline, out)
    reshard(pipeline, out, "1GB")
    assert in_folders(out) == in_folders(pipeline)
    assert not [name for name in listing(out) if "-of-" in name or ".index." in name]
    reshard(pipeline, source, overwrite=True)
    assert not (source / "unet/diffusion_pytorch_model.safetensors").exists()
    assert in_folders(source) == in_folders(pipeline)


def test_a_pickled_pipeline_goes_from_hub_to_hub_and_is_resumed_there(
    pipeline: Path, source: Path, drawn: np.ndarray, hub: InHouse, name: str, tmp_path: Path
) -> None:
    pickled(source, *BASES)
    push(hub, source, f"{name}-source")
    at = {"endpoint": hub.address, "token": TOKEN}
    until_shard(job.shard(f"{name}-source", name, SIZE, **at), 3, stop=True)  # type: ignore[arg-type]
    *events, report = job.shard(f"{name}-source", name, SIZE, **at)  # type: ignore[arg-type]
    assert isinstance(report, Report) and report.verification.identical
    assert kept(events)
    down = download(hub, name, tmp_path / "down")
    assert in_folders(down) == in_folders(pipeline)
    assert np.array_equal(pipelines.image(down), drawn)


def test_comparing_is_refused_for_what_transformers_does_not_load(
    pipeline: Path, variants: Path, tmp_path: Path
) -> None:
    for source, options in ((pipeline, {}), (variants, {"variant": "fp16"})):
        with pytest.raises(UsageError, match="A comparison cannot load"):
            reshard(source, tmp_path / "out", compare_rounds=1, **options)
        assert not (tmp_path / "out").exists()
