"""How large a shard may be: exactly as much as was said, 5 GB where nothing was, or whatever one file takes."""

import json
from pathlib import Path

import pytest

from sharding import job
from sharding.core.options import SINGLE_FILE
from tests.commands import invoke
from tests.conftest import listing
from tests.folders import reshard, weights
from tests.storage.publications import write_pipeline


def test_where_no_size_is_given_it_is_five_gigabytes(checkpoint: Path, tmp_path: Path) -> None:
    for command in (["plan", str(checkpoint)], ["shard", str(checkpoint), str(tmp_path / "out")]):
        said = json.loads(invoke(*command, "--json").stdout)
        assert said.get("plan", said)["max_shard_bytes"] == 5_000_000_000
    assert job.plan(str(checkpoint))[1].options.max_shard_bytes == 5_000_000_000


def test_of_a_pipeline_a_single_file_is_one_of_each_component(tmp_path: Path) -> None:
    source = write_pipeline(tmp_path / "in")
    reshard(source, tmp_path / "small", "200B")
    report = reshard(tmp_path / "small", tmp_path / "out", SINGLE_FILE)  # type: ignore[arg-type]
    one = {"text_encoder/model.safetensors", "unet/diffusion_pytorch_model.safetensors"}
    assert weights(tmp_path / "out").keys() == one
    assert {shard.file for shard in report.plan.shards} == one
    assert len(weights(tmp_path / "small")) == 5
    assert job.inspect(str(tmp_path / "out")).total_bytes == job.inspect(str(source)).total_bytes


@pytest.mark.parametrize("more", ["-s 1GB", "--max-shard-size 5GB", "--strategy blocks", "--strategy pp:2"])
def test_a_single_file_with_a_size_or_a_strategy_is_wrong_usage(more: str, checkpoint: Path, tmp_path: Path) -> None:
    before, out = listing(tmp_path), tmp_path / "out"
    done = invoke("shard", checkpoint, out, "--single-file", *more.split(), "--json")
    assert (done.exit_code, json.loads(done.stdout)["error"]["kind"]) == (2, "UsageError")
    assert listing(tmp_path) == before
    assert invoke("shard", checkpoint, out, "--single-file", "--strategy", "size").exit_code == 0
    assert weights(out).keys() == {"model.safetensors"} and "in one file." in (out / "README.md").read_text()
