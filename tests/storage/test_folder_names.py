"""What has a name that a file of the result is to have, or would be loaded in its place, and is not ours."""

from pathlib import Path

import pytest

from sharding import job
from sharding.core.errors import DestinationError
from sharding.core.events import Verified
from sharding.formats.names import STAGING_FOLDER
from tests.folders import finish
from tests.storage.publications import shown, stable, write_pipeline


def run(source: Path, out: Path, moment: str, put: Path, *, as_folder: bool = False, overwrite: bool = False) -> None:
    """Run a job; put a file, or a folder with one in it, to a place before it begins or before it publishes."""

    def do() -> None:
        (put if as_folder else put.parent).mkdir(parents=True, exist_ok=True)
        (put / "inside" if as_folder else put).write_bytes(b"mine")

    if moment == "before":
        do()
    for event in job.shard(str(source), str(out), "500B", overwrite=overwrite):
        if moment == "meanwhile" and isinstance(event, Verified):
            do()


RIVALS = (
    "unet/diffusion_pytorch_model.safetensors",
    "unet/diffusion_pytorch_model-00001-of-00009.safetensors",
    "unet/diffusion_pytorch_model.safetensors.index.fp16.json",
    "text_encoder/model.safetensors.index.json",
    "text_encoder/model-00002-of-00002.safetensors",
    "text_encoder/config.json",  # a file beside the weights
    "model_index.json",
    "modules.json",
)
"""Files in the folder of a copy of a pipeline that would be replaced, or loaded instead."""
HARMLESS = (
    "model.safetensors.index.json",  # of no component
    "model.safetensors",
    "text_encoder/pytorch_model.bin",  # what is loaded only where there are no safetensors
    "unet/lora.safetensors",
    "unet/model.bin.index.json",
    "unet/notes.txt",
    "sub/modules.json",
    "vae/model.safetensors",
    "vae/model.safetensors.index.json",
)


@pytest.mark.parametrize("name", RIVALS)
def test_what_would_be_loaded_instead_is_looked_for_in_the_folder_of_every_component(tmp_path: Path, name: str) -> None:
    source, out = write_pipeline(tmp_path / "in"), tmp_path / "out"
    with pytest.raises(DestinationError, match=f"files that this tool did not write: {name}") as refusal:
        run(source, out, "meanwhile", out / name)
    assert "--overwrite" in refusal.value.hint
    assert shown(out) == {name: b"mine"}


def test_what_nothing_loads_instead_stays_beside_a_pipeline(tmp_path: Path) -> None:
    source, out = write_pipeline(tmp_path / "in"), tmp_path / "out"
    finish(job.shard(str(source), str(tmp_path / "whole"), "500B"))
    for name in HARMLESS[1:]:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(b"mine")
    (out / STAGING_FOLDER).mkdir()  # as after a job that was killed as it began
    run(source, out, "meanwhile", out / HARMLESS[0])
    assert stable(out) == stable(tmp_path / "whole") | dict.fromkeys(HARMLESS, b"mine")


@pytest.mark.parametrize("name", ["config.json", "model-00001-of-00002.safetensors", "sub/tokenizer.json"])
@pytest.mark.parametrize("moment", ["before", "meanwhile"])
def test_a_folder_named_like_a_file_stays_whoever_overwrites(source: Path, out: Path, name: str, moment: str) -> None:
    finish(job.shard(str(source), str(out), "1GB"))
    if (out / name).exists():
        (out / name).unlink()
    before = shown(out)
    with pytest.raises(DestinationError, match=f"{name} in .* is a folder, but the copy has a file with that name"):
        run(source, out, moment, out / name, as_folder=True, overwrite=True)
    assert shown(out) == {**before, f"{name}/inside": b"mine"}


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("name", ["config.json", "sub/tokenizer.json", "model-00001-of-00002.safetensors"])
def test_a_link_of_the_name_of_a_file_is_replaced_itself_or_not_at_all(
    source: Path, out: Path, tmp_path: Path, name: str, there: bool
) -> None:
    if there:
        (tmp_path / "victim").write_bytes(b"theirs")
    (out / name).parent.mkdir(parents=True)
    (out / name).symlink_to(tmp_path / "victim")
    (out / STAGING_FOLDER).mkdir()  # as after a job that was killed as it began
    with pytest.raises(DestinationError, match=name):
        finish(job.shard(str(source), str(out), "500B"))
    assert (out / name).is_symlink()
    finish(job.shard(str(source), str(out), "500B", overwrite=True))
    finish(job.shard(str(source), str(tmp_path / "whole"), "500B"))
    assert stable(out) == stable(tmp_path / "whole") and not (out / name).is_symlink()
    assert (tmp_path / "victim").exists() == there
    assert not there or (tmp_path / "victim").read_bytes() == b"theirs"
