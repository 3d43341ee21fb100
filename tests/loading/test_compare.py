"""The verdict on a comparison is right, names the cause, and says when nothing was measured."""

import json
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
from safetensors.numpy import save_file

from sharding import job
from sharding.checkpoint.loadable import loadable_files
from sharding.core.errors import ShardingError
from sharding.loading.probe import child as loading
from sharding.storage.folder_source import open_folder
from tests import models
from tests.folders import reshard
from tests.lora import configured

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pair")
    reshard(models.save("llama", folder / "original", "10GB", layers=3), folder / "sharded", "30kB")
    return folder / "original", folder / "sharded"


def test_a_limit_that_nothing_loads_under_is_an_answer(run: Run, pair: tuple[Path, Path]) -> None:
    done = run("compare", *pair, "--memory-limit", "80MB", "--rounds", 1, "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["verdict"]["kind"] == "not-loaded"


@pytest.mark.usefixtures("warm_processes")
def test_custom_code_gets_a_prediction_plainly_marked(run: Run, pair: tuple[Path, Path], tmp_path: Path) -> None:
    folders = [copytree(folder, tmp_path / folder.name) for folder in pair]
    for folder in folders:
        configured("config.json", model_type="mine", auto_map={"AutoModel": "mine.Mine"})(folder)
    done = run("compare", *folders, "--json")
    said = json.loads(done.stdout)
    assert (said["measured"], said["original"]) == (False, None)
    assert "code from its repo" in said["reason_not_measured"]
    assert said["verdict"]["sentence"].startswith("Predicted, not measured")


def named(folder: Path, size: str = "100kB") -> Path:
    """Save a model whose configuration names its weights, beside others that have the usual name."""
    models.save("llama", folder, size, layers=3)
    usual = folder / ("model.safetensors.index.json" if size == "20kB" else "model.safetensors")
    weights = usual.rename(folder / usual.name.replace("model", "consolidated"))
    configured("config.json", transformers_weights=weights.name)(folder)
    save_file({"other": np.ones(3)}, folder / "model.safetensors")
    return folder


@pytest.mark.thorough
def test_compare_prints_one_object_with_measured_figures_of_both_also_of_weights_that_the_configuration_names(
    run: Run, tmp_path: Path
) -> None:
    original, sharded, picture = named(tmp_path / "in", "20kB"), tmp_path / "out", tmp_path / "picture.svg"
    report = reshard(original, sharded, "30kB")
    assert "transformers_weights" not in (sharded / "config.json").read_text()
    done = run("compare", original, sharded, "--rounds", 1, "--json", "--picture", picture)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["measured"] is True
    assert said["verdict"]["kind"] == "no-difference"
    assert said["original"]["logits_sha256"] == said["sharded"]["logits_sha256"] != ""
    assert said["original"]["weight_bytes"] == sum(path.stat().st_size for path in original.glob("model-*"))
    assert said["original"]["files"] > said["sharded"]["files"] == len(report.plan.shards) > 1
    assert len(said["original"]["curve"]) > 2  # a load of this model takes some hundredths of a second
    assert said["original"]["peak_anon_bytes"]["median"] > 50_000_000
    assert "Memory while loading" in ET.fromstring(picture.read_text())[0].text  # type: ignore[operator]
    assert "warm-up" in done.stderr  # a person who waits sees each load


@pytest.mark.parametrize("size", ["20kB", "100kB"])
def test_a_probe_loads_the_files_that_the_configuration_names_or_says_that_its_method_cannot(
    size: str, tmp_path: Path
) -> None:
    folder = named(tmp_path / "in", size)
    weights = sorted(folder.glob("model-*")) or [folder / "consolidated.safetensors"]
    assert loading.weight_files(folder, "from_pretrained") == weights
    taken = [file.path for file in loadable_files(open_folder(str(folder)))]
    assert [path for path in taken if path.endswith(".safetensors")] == [path.name for path in weights]
    for method in ("load_checkpoint_and_dispatch", "load_sharded_checkpoint", "torch_load"):
        with pytest.raises(loading.Unsupported, match="names consolidated.* this method knows only the usual names"):
            loading.weight_files(folder, method)


def test_comparing_is_refused_before_a_byte_moves_where_the_configuration_names_weights_that_are_not_there(
    tmp_path: Path,
) -> None:
    folder = models.save("llama", tmp_path / "original", layers=3)
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    configured("config.json", transformers_weights="absent.safetensors")(folder)
    with pytest.raises(ShardingError) as refusal:
        list(job.shard(str(folder), str(tmp_path / "out"), "20kB", compare_rounds=1))
    expected = "config.json sets transformers_weights to 'absent.safetensors'"
    assert refusal.value.message.startswith(expected) and refusal.value.hint
    assert not (tmp_path / "out").exists()


def test_a_missing_side_and_a_bad_limit_are_refused_in_plain_words(run: Run, pair: tuple[Path, Path]) -> None:
    assert run("compare", pair[0], "./nowhere").returncode == 3
    assert run("compare", *pair, "--memory-limit", "plenty").returncode == 2
