"""Another model's copy is replaced only where somebody said so, in words; the same model's as ever."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from sharding import job
from sharding.cli.commands import app
from sharding.core.errors import ReplaceRefused
from sharding.core.options import Request
from tests.conftest import listing, random_tensors, write_checkpoint
from tests.folders import arrays, finish, same
from tests.hubs import TOKEN, download, files_of, push, shard
from tests.inhouse import InHouse, hub_in_house
from tests.storage.publications import write_pipeline


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InHouse]:
    with hub_in_house(tmp_path_factory.mktemp("hub")) as hub:
        for name, seed in (("one", 1), ("other", 2)):
            folder = tmp_path_factory.mktemp("in") / name
            push(hub, write_checkpoint(folder, {"model.safetensors": random_tensors(seed)}, False), f"alice/{name}")
        yield hub


@pytest.fixture
def models(tmp_path: Path) -> tuple[str, str]:
    return tuple(  # type: ignore[return-value]
        str(write_checkpoint(tmp_path / name, {"model.safetensors": random_tensors(seed)}, False))
        for name, seed in (("one", 1), ("other", 2))
    )


def test_in_a_folder_another_models_copy_stays_until_it_may_go(models: tuple[str, str], tmp_path: Path) -> None:
    one, other = models
    out = tmp_path / "out"
    finish(job.shard(one, str(out), "60kB"))
    before = listing(out)
    with pytest.raises(
        ReplaceRefused, match=r"out holds a copy of the folder one\. A copy of the folder other would replace it"
    ) as refusal:
        finish(job.shard(other, str(out), "60kB"))
    assert "--overwrite" in refusal.value.hint
    assert listing(out) == before
    finish(job.shard(other, str(out), "60kB", overwrite=True))
    assert same(arrays(out), random_tensors(2))


def test_with_other_choices_the_same_model_replaces_its_copy(
    models: tuple[str, str], tmp_path: Path, hub: InHouse
) -> None:
    finish(job.shard(models[0], str(tmp_path / "out"), "60kB"))
    finish(job.shard(models[0], str(tmp_path / "out"), "1GB"))
    assert same(arrays(tmp_path / "out"), random_tensors(1))
    shard(hub, "alice/one", "alice/again", "60kB")
    shard(hub, "alice/one", "alice/again", "1GB")
    assert "model.safetensors" in files_of(hub, "alice/again")


def test_in_a_repo_another_models_copy_stays_until_it_may_go(hub: InHouse, tmp_path: Path) -> None:
    shard(hub, "alice/one", "alice/copy")
    before = hub.api().model_info("alice/copy").sha
    asks = {"endpoint": hub.address, "token": TOKEN}
    hub.log.clear()
    for ask in (
        lambda: finish(job.shard("alice/other", "alice/copy", "60kB", **asks)),  # type: ignore[arg-type]
        lambda: job.check(Request("alice/other", "alice/copy"), **asks),  # type: ignore[arg-type]
    ):
        with pytest.raises(ReplaceRefused, match=r"alice/copy holds a copy of alice/one\. A copy of alice/other") as no:
            ask()
        assert no.value.there == "alice/one"
    assert not hub.asked("^(POST|PUT|DELETE) .*(commit|branch|create|delete|settings)")
    assert hub.api().model_info("alice/copy").sha == before
    job.check(Request("alice/other", "alice/copy", overwrite=True), **asks)  # type: ignore[arg-type]
    shard(hub, "alice/other", "alice/copy", overwrite=True)
    assert same(arrays(download(hub, "alice/copy", tmp_path / "down")), random_tensors(2))


def test_a_copy_of_a_folder_with_the_name_of_a_repo_is_no_copy_of_that_repo(hub: InHouse, tmp_path: Path) -> None:
    shard(hub, "alice/one", "alice/of-folder")
    place = tmp_path / "copy"
    report = json.loads((download(hub, "alice/of-folder", place) / "sharding_report.json").read_text())
    report["source"]["kind"] = "folder"
    (place / "sharding_report.json").write_text(json.dumps(report))
    hub.put("alice/of-folder", "sharding_report.json", place / "sharding_report.json")
    with pytest.raises(
        ReplaceRefused, match=r"alice/of-folder holds a copy of the folder alice/one\. A copy of alice/one"
    ):
        shard(hub, "alice/one", "alice/of-folder")
    with pytest.raises(ReplaceRefused, match="holds a copy of the folder alice/one"):
        shard(hub, "alice/one", str(place))


def test_the_command_says_overwrite(models: tuple[str, str], tmp_path: Path) -> None:
    def command(*words: str) -> Result:
        return CliRunner().invoke(app, ["shard", *words, "-s", "60kB"])

    out = str(tmp_path / "out")
    assert command(models[0], out).exit_code == 0
    refused = command(models[1], out)
    assert refused.exit_code == 3
    assert "holds a copy of the folder one" in " ".join(refused.stderr.split())
    assert command(models[1], out, "--overwrite").exit_code == 0


RIVALS = (
    *(
        "unet/diffusion_pytorch_model.safetensors.index.json",
        "unet/diffusion_pytorch_model.safetensors.index.fp16.json",
    ),
    *("unet/diffusion_pytorch_model-00001-of-00003.safetensors", "text_encoder/model.safetensors.index.json"),
    *("text_encoder/model-00002-of-00002.safetensors", "modules.json"),
)


def test_overwriting_a_pipeline_takes_away_what_would_be_loaded_instead(tmp_path: Path) -> None:
    source, out = write_pipeline(tmp_path / "in"), tmp_path / "out"
    for path in RIVALS:
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        (out / path).write_bytes(b"theirs")
    finish(job.shard(str(source), str(out), "1GB", overwrite=True))
    assert not [path for path in RIVALS if (out / path).exists()]
    assert job.inspect(str(out)).total_bytes == job.inspect(str(source)).total_bytes
