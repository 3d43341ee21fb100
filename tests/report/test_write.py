"""What is written beside the shards says the terms of the source, and the dtype that every part of it has now."""

import json
from pathlib import Path

import pytest
import yaml

from sharding import job
from sharding.core.options import Options
from tests.conftest import random_tensors, write_checkpoint
from tests.hubs import download, new_hub, push, shard
from tests.inhouse import InHouse
from tests.storage.publications import write_pipeline

hub = new_hub


def sharded(hub: InHouse, folder: Path, licence: str, private: bool | None = None) -> str:
    """The card of a copy of a model of this licence: of a repo if it is said whether that is private, else a folder.

    The Hub takes no metadata from what is private.
    """
    write_checkpoint(folder, {"model.safetensors": random_tensors(3)}, index=False)
    (folder / "README.md").write_text(f"---\nlicense: {licence}\nlanguage: en\n---\nThe model.\n")
    source = str(folder) if private is None else push(hub, folder, "alice/source", private=private)
    with hub.failing(*(["status:400@POST /api/validate-yaml#1"] if private else [])):
        shard(hub, source, "alice/copy", "40kB")
    return (download(hub, "alice/copy", folder.parent / "down") / "README.md").read_text()


@pytest.mark.parametrize("private", [True, False])
def test_the_terms_of_a_private_source_are_said_also_where_the_hub_does_not_take_its_metadata(
    hub: InHouse, tmp_path: Path, private: bool
) -> None:
    card = sharded(hub, tmp_path / "in", "mit", private)
    assert (f"The terms on [its page]({hub.address}/alice/source) hold" in card) is private
    metadata = yaml.safe_load(card.split("---")[1])
    assert metadata["base_model"] == "alice/source"
    assert (metadata.get("license"), metadata.get("language")) == ((None, None) if private else ("mit", "en"))
    assert ("does not accept the metadata" in card and "license: mit" in card) is private
    assert card.count("The model.") == 1


def test_metadata_that_a_hub_does_not_take_stands_in_the_text(hub: InHouse, tmp_path: Path) -> None:
    card = sharded(hub, tmp_path / "in", "made-up-by-me")
    assert "license" not in yaml.safe_load(card.split("---")[1])
    assert "license: made-up-by-me" in card and "The model." in card


def test_the_configuration_of_every_component_says_the_new_dtype(tmp_path: Path) -> None:
    folder = write_pipeline(tmp_path / "in")
    parts = ("text_encoder", "unet")
    for part in (*parts, "scheduler"):
        (folder / part).mkdir(exist_ok=True)
        said = {"torch_dtype": "float32", "name": part, "inner": {"dtype": "float32"}}
        (folder / part / "config.json").write_text(json.dumps(said))
    (folder / "config.json").write_text('{"torch_dtype": "float32"}')
    written = job.plan(str(folder), Options(dtype="fp16"))[1].written
    assert {path: json.loads(text) for path, text in written.items()} == {
        f"{part}/config.json": {"torch_dtype": "float16", "name": part, "inner": {"dtype": "float16"}} for part in parts
    }
    for text in written.values():
        assert text.startswith(b"{\n  ") and text.endswith(b"}\n") and not text.endswith(b"\n\n")
    assert job.plan(str(folder))[1].written == {}
