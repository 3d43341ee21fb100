"""A folder is read as it was when the job began."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from sharding.checkpoint.read import read_checkpoint
from sharding.core.errors import SourceError
from sharding.job import inspect
from sharding.storage.folder_source import open_folder as open_source
from tests.folders import in_cache
from tests.storage.publications import write_pipeline

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="is not there"):
        open_source(str(tmp_path / "nowhere"))


@pytest.mark.parametrize("text", ["", " ", "x" * 5000, "~nobody-of-this-name/x", "a\0b", "a\ud800"])
def test_a_path_that_can_be_none_is_refused(text: str) -> None:
    with pytest.raises(SourceError):
        open_source(text)


def test_a_file_in_place_of_a_folder_is_refused(checkpoint: Path) -> None:
    with pytest.raises(SourceError, match="is a file"):
        open_source(str(checkpoint / ONE))


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no weights"):
        inspect(str(tmp_path))


def test_a_file_that_changes_while_it_is_read_is_noticed(checkpoint: Path) -> None:
    source = open_source(str(checkpoint))
    read_checkpoint(source)
    os.utime(checkpoint / ONE, (1, 1))
    with pytest.raises(SourceError, match="changed while"):
        list(source.read(ONE, 0, 8))


def test_the_links_of_the_hub_cache_are_followed(checkpoint: Path, tmp_path: Path) -> None:
    snapshot = in_cache(checkpoint, tmp_path / "cache")
    assert inspect(str(snapshot)).total_bytes == inspect(str(checkpoint)).total_bytes


def test_a_component_that_is_a_link_to_a_folder_is_refused_by_name(tmp_path: Path) -> None:
    pipeline = write_pipeline(tmp_path / "pipeline")
    (pipeline / "unet").rename(tmp_path / "shared")
    (pipeline / "unet").symlink_to(tmp_path / "shared")
    with pytest.raises(SourceError, match="unet/ is a link to a folder"):
        inspect(str(pipeline))


@pytest.mark.parametrize("place", ["elsewhere", "inside"])
@pytest.mark.parametrize("link", ["parts", "parts/2_Dense"])
def test_a_link_to_a_folder_above_a_module_is_refused_and_one_beside_it_is_not(
    checkpoint: Path, tmp_path: Path, link: str, place: str
) -> None:
    module = checkpoint / "parts/2_Dense"
    module.mkdir(parents=True)
    save_file({"w": np.ones(3, np.float32)}, module / "model.safetensors")
    kinds = {"": "Transformer", "parts/2_Dense": "Dense"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
    (checkpoint / "modules.json").write_text(json.dumps(modules))
    there = tmp_path / "there" if place == "elsewhere" else checkpoint / "there"
    (tmp_path / "other").mkdir()
    for beside in ("parts/3_Other", "partsmore", "other"):
        (checkpoint / beside).symlink_to(tmp_path / "other")
    assert len(inspect(str(checkpoint)).components) == 2
    (checkpoint / link).rename(there)
    (checkpoint / link).symlink_to(there)
    with pytest.raises(SourceError, match=f"{link}/ is a link to a folder, which is not followed") as refusal:
        inspect(str(checkpoint))
    assert refusal.value.hint
