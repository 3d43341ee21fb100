"""The layouts that repos have beside one model in one set of files: variants, pipelines, adapters, other names."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import save_file
from safetensors.torch import load_file
from safetensors.torch import save_file as save_torch_file
from transformers import AutoModel, AutoModelForCausalLM

from sharding import job
from sharding.core.errors import DestinationError, SourceError, UsageError, VariantMissing
from sharding.core.events import ShardFinished, Verified
from sharding.report.schema import Report, parse_report
from sharding.report.snippets import loading_code
from tests import models, pipelines
from tests.conftest import listing, options_of, random_tensors, write_checkpoint
from tests.localhub.conftest import Server

pytestmark = [
    # transformers and diffusers warn about themselves.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
SIZE = "50kB"
PLAIN = {"model.safetensors": {"w": np.zeros(3, np.float32)}}


def reshard(source: Path, out: Path, size: str = SIZE, **choices: object) -> Report:
    options, more = options_of(size, choices)
    *_, report = job.shard(str(source), str(out), options, **more)
    assert isinstance(report, Report) and report.verification.identical
    return report


def tensors(folder: Path) -> dict[str, bytes]:
    """The bytes of every tensor below `folder`, by folder and name."""
    return {
        f"{path.parent.relative_to(folder).as_posix()}/{name}": tensor.view(torch.uint8).numpy().tobytes()
        for path in sorted(folder.rglob("*.safetensors"))
        for name, tensor in load_file(path).items()
    }


def weights(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in listing(folder).items() if "safetensors" in name}


def said(folder: Path, variant: str = "") -> dict[str, str]:
    return {finding.code: finding.message for finding in job.inspect(str(folder), variant=variant).findings}


# --- Variants -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def variants(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with plain weights in float32 and a variant in float16."""
    folder = tmp_path_factory.mktemp("variants") / "llama"
    models.build("llama", torch.float32).save_pretrained(folder)
    models.build("llama", torch.float16).save_pretrained(folder, variant="fp16")
    return folder


def test_the_plain_weights_are_taken_and_the_variants_left_out_are_named(variants: Path) -> None:
    found = job.inspect(str(variants))
    assert [file.path for file in found.weight_files] == ["model.safetensors"]
    assert "fp16" in said(variants)["variants"]
    assert found.other_variants == ("fp16",)
    assert job.inspect(str(variants), variant="fp16").other_variants == ("",)


@pytest.mark.parametrize("size", [SIZE, "1GB"])
def test_a_variant_keeps_the_names_of_its_kind_byte_for_byte(variants: Path, tmp_path: Path, size: str) -> None:
    report = reshard(variants, tmp_path / "out", size, variant="fp16")
    model = AutoModelForCausalLM.from_pretrained(variants, variant="fp16")
    model.save_pretrained(tmp_path / "theirs", variant="fp16", max_shard_size=size)
    assert weights(tmp_path / "out") == weights(tmp_path / "theirs")
    assert ("model.safetensors.index.fp16.json" in weights(tmp_path / "out")) == (size == SIZE)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out", variant="fp16")
    assert torch.equal(models.logits(model), models.logits(loaded))
    assert "variant='fp16'" in (tmp_path / "out/README.md").read_text()
    (verified,) = [
        event
        for event in job.verify(str(variants), str(tmp_path / "out"), variant="fp16")
        if isinstance(event, Verified)
    ]
    assert verified.verification.identical and report.source.variant == "fp16"


def test_a_variant_that_is_all_there_is_gets_taken(variants: Path, tmp_path: Path) -> None:
    source = tmp_path / "only"
    shutil.copytree(variants, source)
    (source / "model.safetensors").unlink()
    reshard(source, tmp_path / "out")
    assert "fp16" in said(source)["variant"]
    assert [job.inspect(str(source), variant=name).other_variants for name in ("", "fp16")] == [(), ()]
    assert (tmp_path / "out/model.safetensors.index.fp16.json").exists()
    shutil.copy(source / "model.fp16.safetensors", source / "model.ema.safetensors")
    with pytest.raises(VariantMissing, match="several variants and no plain weights") as refusal:
        job.inspect(str(source))
    assert "'ema', 'fp16'" in refusal.value.hint
    assert refusal.value.there == ("ema", "fp16")


def test_a_variant_that_is_not_there_is_refused_with_those_that_are(variants: Path) -> None:
    with pytest.raises(VariantMissing, match="no variant 'bf16'") as refusal:
        job.inspect(str(variants), variant="bf16")
    assert "the plain weights, 'fp16'" in refusal.value.hint
    assert refusal.value.there == ("", "fp16")


def test_names_of_variants_as_diffusers_wrote_them_before_are_understood(tmp_path: Path) -> None:
    first, second = "model-00001-of-00002.fp16.safetensors", "model-00002-of-00002.fp16.safetensors"
    files = {first: {"a": np.zeros(3)}, second: {"b": np.ones(3)}, **PLAIN}
    folder = write_checkpoint(tmp_path / "in", files, index=False)
    assert [file.path for file in job.inspect(str(folder), variant="fp16").weight_files] == [first, second]
    index = {"metadata": {}, "weight_map": {"a": first, "b": second}}
    (folder / "model.safetensors.fp16.index.json").write_text(json.dumps(index))
    assert said(folder, "fp16").keys() == {"variant", "left-out"}
    reshard(folder, tmp_path / "out", variant="fp16", size="30B")
    assert "model.safetensors.index.fp16.json" in listing(tmp_path / "out")


# --- Pipelines ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pipelines.save(tmp_path_factory.mktemp("pipeline") / "tiny")


def test_every_component_of_a_pipeline_is_cut_in_its_folder_and_the_result_draws_the_same(
    pipeline: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    report = reshard(pipeline, out)
    assert tensors(out) == tensors(pipeline)
    found = listing(out)
    for index in (
        "unet/diffusion_pytorch_model.safetensors.index.json",
        "vae/diffusion_pytorch_model.safetensors.index.json",
    ):
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
    assert np.array_equal(pipelines.image(out), pipelines.image(pipeline))
    assert set(report.files) == set(found)
    read = parse_report(found["sharding_report.json"])
    assert (read.source.library, read.source.architecture) == ("diffusers", "StableDiffusionPipeline")
    assert "DiffusionPipeline.from_pretrained('./out')" in found["README.md"].decode()
    assert not list(job.verify(str(pipeline), str(out), quick=False))[-1].verification.mismatches  # type: ignore[union-attr]


def test_a_model_of_diffusers_alone_keeps_its_name(pipeline: Path, tmp_path: Path) -> None:
    from diffusers import UNet2DConditionModel

    reshard(pipeline / "unet", tmp_path / "out")
    assert (tmp_path / "out/diffusion_pytorch_model.safetensors.index.json").exists()
    one, other = (UNet2DConditionModel.from_pretrained(folder) for folder in (pipeline / "unet", tmp_path / "out"))
    assert all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in one.state_dict().items())


def test_a_pipeline_takes_the_variant_where_a_component_has_it(pipeline: Path, tmp_path: Path) -> None:
    source = tmp_path / "in"
    shutil.copytree(pipeline, source)
    half = {
        name: tensor.half() for name, tensor in load_file(source / "unet/diffusion_pytorch_model.safetensors").items()
    }
    save_torch_file(half, source / "unet/diffusion_pytorch_model.fp16.safetensors", metadata={"format": "pt"})
    assert "unet/diffusion_pytorch_model.safetensors.index.json" in {*reshard(source, tmp_path / "plain").files}
    assert job.inspect(str(source)).other_variants == ("fp16",)
    files = reshard(source, tmp_path / "out", variant="fp16").files
    assert "unet/diffusion_pytorch_model.safetensors.index.fp16.json" in files
    assert "vae/diffusion_pytorch_model.safetensors.index.json" in files
    shutil.copytree(tmp_path / "out", tmp_path / "copy")
    assert np.array_equal(pipelines.image(tmp_path / "copy", "fp16"), pipelines.image(source, "fp16"))


def test_what_a_pipeline_does_not_name_is_left_out(pipeline: Path, tmp_path: Path) -> None:
    source = tmp_path / "in"
    shutil.copytree(pipeline, source)
    save_file(PLAIN["model.safetensors"], source / "v1-5-pruned.safetensors")
    (source / "safety_checker").mkdir()
    save_file(PLAIN["model.safetensors"], source / "safety_checker/model.safetensors")
    assert "safety_checker/model.safetensors, v1-5-pruned.safetensors" in said(source)["left-out"]


@pytest.mark.parametrize("name", ["vae.bin", "diffusion_flax_model.msgpack", "model.onnx"])
def test_a_component_whose_weights_cannot_be_streamed_is_refused_by_name(
    name: str, pipeline: Path, tmp_path: Path
) -> None:
    source = tmp_path / "in"
    shutil.copytree(pipeline, source)
    (source / "vae/diffusion_pytorch_model.safetensors").rename(source / "vae" / name)
    with pytest.raises(SourceError, match=f"Of vae/ in the pipeline .* only vae/{name}") as refusal:
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


@pytest.mark.parametrize(("variant", "parts"), [("", 1), ("", 3), ("fp16", 1), ("fp16", 2)])
def test_pickled_components_become_safetensors_by_the_name_that_diffusers_loads(
    variant: str, parts: int, pipeline: Path, tmp_path: Path
) -> None:
    source = tmp_path / "in"
    shutil.copytree(pipeline, source)
    pickled(source, "unet", "text_encoder", variant=variant, parts=parts)
    report = reshard(source, tmp_path / "out", variant=variant)
    assert tensors(tmp_path / "out") == tensors(pipeline)
    found = listing(tmp_path / "out")
    part = f".{variant}" if variant else ""
    assert f"unet/diffusion_pytorch_model.safetensors.index{part}.json" in found
    assert f"text_encoder/model{part}.safetensors" in found
    assert not [name for name in found if ".bin" in name]
    assert np.array_equal(pipelines.image(tmp_path / "out", variant or None), pipelines.image(pipeline))
    assert "pickled" in {finding.code for finding in report.plan.findings}
    assert report.source.variant == variant


def test_plain_pickled_weights_come_before_a_variant_and_after_safetensors(pipeline: Path, tmp_path: Path) -> None:
    """As in diffusers, which looks for another variant only where that is asked for."""
    source = tmp_path / "in"
    shutil.copytree(pipeline, source)
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


def test_a_pickled_model_of_diffusers_alone_becomes_safetensors(pipeline: Path, tmp_path: Path) -> None:
    from diffusers import UNet2DConditionModel

    source = tmp_path / "in"
    shutil.copytree(pipeline, source)
    pickled(source, "unet")
    reshard(source / "unet", tmp_path / "out")
    one, other = (UNet2DConditionModel.from_pretrained(folder) for folder in (pipeline / "unet", tmp_path / "out"))
    assert all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in one.state_dict().items())


def test_a_pickled_variant_is_taken_and_keeps_the_name_of_its_kind(variants: Path, tmp_path: Path) -> None:
    source = tmp_path / "in"
    shutil.copytree(variants, source)
    torch.save(load_file(source / "model.fp16.safetensors"), source / "pytorch_model.fp16.bin")
    (source / "model.fp16.safetensors").unlink()
    reshard(source, tmp_path / "out", variant="fp16")
    one, other = (AutoModelForCausalLM.from_pretrained(folder, variant="fp16") for folder in (source, tmp_path / "out"))
    assert torch.equal(models.logits(one), models.logits(other)) and one.dtype == torch.float16


def test_names_that_share_a_tensor_are_all_written_where_diffusers_loads_them(pipeline: Path, tmp_path: Path) -> None:
    """It ties nothing after loading: a name that is missing would be left without weights."""
    source = tmp_path / "in"
    shutil.copytree(pipeline, source)
    pickled(source, "vae", "text_encoder")
    for file in (source / "vae/diffusion_pytorch_model.bin", source / "text_encoder/pytorch_model.bin"):
        state = torch.load(file)
        first = next(iter(state))
        torch.save({**state, "again": state[first]}, file)
    reshard(source, tmp_path / "out")
    written = tensors(tmp_path / "out")
    first = next(iter(load_file(pipeline / "vae/diffusion_pytorch_model.safetensors")))
    assert written["vae/again"] == written[f"vae/{first}"]
    assert "text_encoder/again" not in written
    assert "text_encoder/again" in said(source)["tied"] and "vae/again" not in said(source)["tied"]


def test_a_pickled_pipeline_goes_from_hub_to_hub(pipeline: Path, tmp_path: Path, served: Callable[..., Server]) -> None:
    source = tmp_path / "in"
    shutil.copytree(pipeline, source)
    pickled(source, "unet", "vae", "text_encoder")
    server = served()
    api = server.api()
    api.create_repo("alice/pickled")
    api.upload_folder(folder_path=source, repo_id="alice/pickled")
    *_, report = job.shard("alice/pickled", "alice/safe", SIZE, endpoint=server.address, token="hf_alice")
    assert isinstance(report, Report) and report.verification.identical
    down = Path(api.snapshot_download("alice/safe", local_dir=tmp_path / "down"))
    assert tensors(down) == tensors(pipeline)
    assert np.array_equal(pipelines.image(down), pipelines.image(pipeline))


def stop_after(events: Iterator[job.Event], shards: int) -> None:
    for event in events:
        if isinstance(event, ShardFinished) and event.number == shards:
            events.close()  # type: ignore[attr-defined]


def test_an_interrupted_pipeline_shows_nothing_and_is_resumed(pipeline: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    stop_after(job.shard(str(pipeline), str(out), SIZE), 5)
    assert all(name.endswith(".part") and "/" not in name for name in listing(out))
    events = list(job.shard(str(pipeline), str(out), SIZE))
    assert len([event for event in events if isinstance(event, ShardFinished) and event.kept]) >= 5
    assert tensors(out) == tensors(pipeline)
    assert not list(out.rglob("*.part"))


def test_discard_and_another_result_leave_no_file_of_a_pipeline_behind(pipeline: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    stop_after(job.shard(str(pipeline), str(out), SIZE), 3)
    assert job.discard(str(out)).found and not listing(out)
    reshard(pipeline, out)
    reshard(pipeline, out, "1GB")
    assert tensors(out) == tensors(pipeline)
    assert not [name for name in listing(out) if "-of-" in name or ".index." in name]
    foreign = tmp_path / "foreign"
    shutil.copytree(pipeline, foreign)
    reshard(pipeline, foreign, overwrite=True)
    assert not (foreign / "unet/diffusion_pytorch_model.safetensors").exists()
    assert tensors(foreign) == tensors(pipeline)


def test_a_pipeline_goes_from_hub_to_hub_and_is_resumed_there(
    pipeline: Path, tmp_path: Path, served: Callable[..., Server]
) -> None:
    server = served()
    api = server.api()
    api.create_repo("alice/pipeline")
    api.upload_folder(folder_path=pipeline, repo_id="alice/pipeline")
    at = {"endpoint": server.address, "token": "hf_alice"}
    stop_after(job.shard("alice/pipeline", "alice/copy", SIZE, **at), 3)  # type: ignore[arg-type]
    events = list(job.shard("alice/pipeline", "alice/copy", SIZE, **at))  # type: ignore[arg-type]
    assert [event for event in events if isinstance(event, ShardFinished) and event.kept]
    down = Path(api.snapshot_download("alice/copy", local_dir=tmp_path / "down"))
    assert tensors(down) == tensors(pipeline)
    assert np.array_equal(pipelines.image(down), pipelines.image(pipeline))


def test_the_classic_engine_takes_no_variant(variants: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="plain weights only"):
        reshard(variants, tmp_path / "out", engine="classic", variant="fp16")


def test_comparing_is_refused_for_what_transformers_does_not_load(
    pipeline: Path, variants: Path, tmp_path: Path
) -> None:
    for source, options in ((pipeline, {}), (variants, {"variant": "fp16"})):
        with pytest.raises(UsageError, match="--compare cannot load"):
            reshard(source, tmp_path / "out", compare_rounds=1, **options)
        assert not (tmp_path / "out").exists()


# --- Sentence transformers ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT with a pooling and a dense module, in the files of sentence-transformers."""
    folder = tmp_path_factory.mktemp("sentences") / "tiny"
    models.build("bert").save_pretrained(folder)
    parts = ("", "1_Pooling", "2_Dense")
    kinds = ("Transformer", "Pooling", "Dense")
    modules = [
        {"idx": n, "name": str(n), "path": part, "type": f"sentence_transformers.models.{kind}"}
        for n, (part, kind) in enumerate(zip(parts, kinds, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps({"word_embedding_dimension": 32}))
    (folder / "2_Dense").mkdir()
    (folder / "2_Dense/config.json").write_text(json.dumps({"in_features": 32, "out_features": 500}))
    dense = {"linear.weight": np.ones((500, 32), np.float32), "linear.bias": np.ones(500, np.float32)}
    save_file(dense, folder / "2_Dense/model.safetensors")
    return folder


def test_a_sentence_transformer_is_cut_but_for_the_modules_that_know_one_file(sentences: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    report = reshard(sentences, out)
    assert tensors(out) == tensors(sentences)
    assert (out / "model.safetensors.index.json").exists()
    assert (out / "2_Dense/model.safetensors").stat().st_size > 50_000
    assert "2_Dense/model" in said(sentences)["kept-whole"]
    assert {"modules.json", "1_Pooling/config.json", "2_Dense/config.json"} <= set(listing(out))
    one, other = (AutoModel.from_pretrained(folder) for folder in (sentences, out))
    assert torch.equal(models.logits(one), models.logits(other))
    assert f"SentenceTransformer({f'./{out.name}'!r})" in (out / "README.md").read_text()
    assert {finding.code for finding in report.plan.findings} == said(sentences).keys()


def test_a_pickled_module_of_a_sentence_transformer_is_copied(sentences: Path, tmp_path: Path) -> None:
    source = tmp_path / "in"
    shutil.copytree(sentences, source)
    (source / "2_Dense/model.safetensors").unlink()
    (source / "2_Dense/pytorch_model.bin").write_bytes(b"pickled")
    reshard(source, tmp_path / "out")
    assert (tmp_path / "out/2_Dense/pytorch_model.bin").read_bytes() == b"pickled"


def test_a_sentence_transformer_of_the_old_kind_has_a_folder_with_pickled_weights(
    sentences: Path, tmp_path: Path
) -> None:
    source = tmp_path / "in"
    shutil.copytree(sentences, source)
    (source / "0_Transformer").mkdir()
    torch.save(load_file(source / "model.safetensors"), source / "0_Transformer/pytorch_model.bin")
    (source / "model.safetensors").unlink()
    (source / "config.json").rename(source / "0_Transformer/config.json")
    modules = json.loads((source / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (source / "modules.json").write_text(json.dumps(modules))
    reshard(source, tmp_path / "out")
    one, other = (AutoModel.from_pretrained(folder) for folder in (sentences, tmp_path / "out/0_Transformer"))
    assert torch.equal(models.logits(one), models.logits(other))


# --- Adapters, other names, quantized weights -------------------------------------------------------------


@pytest.mark.parametrize("place", ["", "spanish/"])
def test_an_adapter_stays_one_file_and_that_is_explained(tmp_path: Path, place: str) -> None:
    folder = write_checkpoint(tmp_path / "in", {}, index=False)
    (folder / place).mkdir(exist_ok=True)
    save_file(random_tensors(), folder / f"{place}adapter_model.safetensors", metadata={"format": "pt"})
    (folder / f"{place}adapter_config.json").write_text("{}")
    report = reshard(folder, tmp_path / "out")
    assert [shard.file for shard in report.plan.shards] == [f"{place}adapter_model.safetensors"]
    assert tensors(tmp_path / "out") == tensors(folder)
    assert "adapter_model" in said(folder)["kept-whole"]
    assert "AutoPeftModel" in (tmp_path / "out/README.md").read_text()


def test_an_adapter_beside_a_model_is_copied_as_it_is(checkpoint: Path, tmp_path: Path) -> None:
    save_file({"lora": np.ones(3)}, checkpoint / "adapter_model.safetensors")
    reshard(checkpoint, tmp_path / "out")
    copied = (tmp_path / "out/adapter_model.safetensors").read_bytes()
    assert copied == (checkpoint / "adapter_model.safetensors").read_bytes()
    assert "adapter_model.safetensors" in said(checkpoint)["kept-whole"]


@pytest.mark.parametrize("size", ["100kB", "1GB"])
def test_weights_that_the_configuration_names_are_taken_and_the_result_has_the_usual_names(
    tmp_path: Path, size: str
) -> None:
    source = models.save("llama", tmp_path / "in", size)
    named = "consolidated.safetensors" + (".index.json" if size == "100kB" else "")
    (source / f"model{named.removeprefix('consolidated')}").rename(source / named)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "transformers_weights": named}))
    save_file({"other": np.ones(3)}, source / "model.safetensors")
    save_file({"other": np.ones(3)}, source / "model.fp16.safetensors")
    assert job.inspect(str(source)).other_variants == ()  # transformers loads what is named, whatever the variant
    reshard(source, tmp_path / "out")
    assert json.loads((tmp_path / "out/config.json").read_text()) == config
    one, other = (AutoModelForCausalLM.from_pretrained(folder) for folder in (source, tmp_path / "out"))
    assert torch.equal(models.logits(one), models.logits(other))


@pytest.mark.parametrize("name", ["absent.safetensors", "../secret.safetensors", "adapter_model.bin", "model.gguf"])
def test_a_configuration_that_names_no_weights_is_refused(tmp_path: Path, name: str) -> None:
    folder = write_checkpoint(tmp_path / "in", PLAIN, index=False)
    (folder / "config.json").write_text(json.dumps({"transformers_weights": name}))
    with pytest.raises(SourceError, match="transformers_weights"):
        job.inspect(str(folder))


@pytest.mark.parametrize("name", ["consolidated.safetensors", "consolidated.00.pth"])
def test_the_layout_of_mistral_alone_is_refused_with_a_pointer(tmp_path: Path, name: str) -> None:
    (tmp_path / "params.json").write_text("{}")
    save_file({"w": np.ones(3)}, tmp_path / name)
    with pytest.raises(SourceError, match="own layout") as refusal:
        job.inspect(str(tmp_path))
    assert "convert_mistral_weights_to_hf" in refusal.value.hint


def test_a_consolidated_copy_and_the_original_folder_are_left_out(checkpoint: Path) -> None:
    (checkpoint / "original").mkdir()
    for name in ("consolidated.safetensors", "original/model.safetensors"):
        save_file({"layers.0.weight": np.ones(3)}, checkpoint / name)
    (checkpoint / "params.json").write_text("{}")
    found = job.inspect(str(checkpoint))
    assert "consolidated.safetensors, original/model.safetensors" in said(checkpoint)["left-out"]
    assert len(found.tensors) == len(random_tensors())


def test_weights_in_folders_that_nothing_names_are_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "checkpoint-500", PLAIN, index=False)
    with pytest.raises(SourceError, match="folders that no configuration names: checkpoint-500/model.safetensors"):
        job.inspect(str(tmp_path))


FP8 = {"w": torch.ones(64, 8).to(torch.float8_e4m3fn), "w_scale_inv": torch.ones(1)}
QUANTIZED: dict[str, dict[str, torch.Tensor]] = {
    "gptq": {
        "q.qweight": torch.arange(512, dtype=torch.int32),
        "q.scales": torch.ones(64).half(),
        "q.g_idx": torch.arange(64),
    },
    "awq": {"q.qweight": torch.arange(512, dtype=torch.int32), "q.qzeros": torch.arange(64, dtype=torch.int32)},
    "fp8": FP8,
    "bitsandbytes": {
        "q.weight": torch.arange(200, dtype=torch.uint8).view(-1, 1),
        "q.weight.absmax": torch.ones(4),
        "q.weight.quant_state.bitsandbytes__nf4": torch.arange(90, dtype=torch.uint8),
    },
    "torchao": {"q._weight_qdata": torch.arange(-64, 64).to(torch.int8), "q._weight_scale": torch.ones(8).bfloat16()},
}


@pytest.mark.parametrize("method", QUANTIZED)
def test_a_quantized_repo_is_copied_bit_for_bit_with_the_metadata_of_every_shard(method: str, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    # As transformers 5.23 saves what torchao has quantized: what each tensor was stands in the header of every file.
    layout = {"tensor_names": json.dumps(["q.weight"]), "q.weight": json.dumps({"_type": "Int8Tensor"})}
    metadata = {"format": "pt", **(layout if method == "torchao" else {})}
    names = list(QUANTIZED[method])
    weight_map = {}
    for number, name in enumerate(names, start=1):
        file = f"model-{number:05d}-of-{len(names):05d}.safetensors"
        save_torch_file({name: QUANTIZED[method][name]}, source / file, metadata=metadata)
        weight_map[name] = file
    (source / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    config = {"quantization_config": {"quant_method": method}}
    (source / "config.json").write_text(json.dumps(config))
    for size in ("100B", "1GB"):
        out = tmp_path / size
        reshard(source, out, size)
        assert tensors(out) == tensors(source)
        assert json.loads((out / "config.json").read_text()) == config
        for path in out.glob("*.safetensors"):
            with safe_open(path, "pt") as file:
                assert file.metadata() == metadata


def test_pickled_weights_beside_safetensors_are_left_out_and_that_is_said(checkpoint: Path) -> None:
    for name in ("pytorch_model.bin", "pytorch_model.bin.index.json"):
        (checkpoint / name).write_bytes(b"x")
    found = job.inspect(str(checkpoint))
    messages = [finding.message for finding in found.findings]
    assert ["pytorch_model.bin" in message for message in messages] == [True, True]
    assert [file.path for file in found.side_files] == ["config.json"]


@pytest.mark.parametrize(("stored", "kept"), [(None, "pt"), ({"who": "me"}, "pt"), ({"format": "mlx"}, "mlx")])
def test_the_format_in_the_metadata_is_the_sources_or_pt(
    tmp_path: Path, stored: dict[str, str] | None, kept: str
) -> None:
    (tmp_path / "in").mkdir()
    save_file(random_tensors(), tmp_path / "in/model.safetensors", metadata=stored)
    reshard(tmp_path / "in", tmp_path / "out")
    for path in (tmp_path / "out").glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            assert file.metadata() == {**(stored or {}), "format": kept}


# --- All ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "[]", "3", "null", '{"unet": 1}', "[[]]", '[{"path": 3}]', "[" * 100_000])
@pytest.mark.parametrize("name", ["model_index.json", "modules.json", "config.json"])
def test_a_description_that_is_none_does_not_hurt(tmp_path: Path, name: str, text: str) -> None:
    folder = write_checkpoint(tmp_path / "in", PLAIN, index=False)
    (folder / name).write_text(text)
    assert [tensor.name for tensor in job.inspect(str(folder)).tensors] == ["w"]


def test_a_pipeline_that_names_folders_outside_has_no_weights(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "in", PLAIN, index=False)
    write_checkpoint(tmp_path / "secret", PLAIN, index=False)
    parts = {"_class_name": "P", "../secret": ["diffusers", "M"], "/etc": ["diffusers", "M"], "": ["diffusers", "M"]}
    (folder / "model_index.json").write_text(json.dumps(parts))
    with pytest.raises(SourceError):
        job.inspect(str(folder))


@pytest.mark.parametrize("library", ["transformers", "diffusers", "sentence-transformers", "peft"])
def test_the_code_to_load_with_is_python_whatever_the_names_are(library: str) -> None:
    for named in (None, "LlamaForCausalLM", "x; import os", "StableDiffusionPipeline"):
        compile(loading_code("a/b'", library, named, "fp'16"), "card", "exec")  # type: ignore[arg-type]
        assert "import os" not in loading_code("a/b", library, named)  # type: ignore[arg-type]


def test_a_destination_that_a_job_writes_to_is_not_shared_by_a_pipeline(pipeline: Path, tmp_path: Path) -> None:
    first = job.shard(str(pipeline), str(tmp_path / "out"), SIZE)
    next(event for event in first if isinstance(event, ShardFinished))
    with pytest.raises(DestinationError, match="Another job"):
        reshard(pipeline, tmp_path / "out")
    assert isinstance(list(first)[-1], Report)
