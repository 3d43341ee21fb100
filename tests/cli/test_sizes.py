"""How large a shard may be: exactly as much as was said, 5 GB where nothing was, or whatever one file takes."""

import json
from pathlib import Path

import pytest

from sharding import job
from sharding.core.options import SINGLE_FILE, Options
from sharding.planning.plan import plan_shards
from tests.commands import invoke
from tests.conftest import listing
from tests.folders import reshard, weights
from tests.planning.tensors import tensor
from tests.storage.publications import write_pipeline


@pytest.mark.parametrize(
    ("size", "limit"),
    [
        *((1000, 1000), ("1000", 1000), ("1kB", 1000), ("1KiB", 1024), ("1.5MB", 1_500_000), ("1MiB", 1 << 20)),
        *(("2GB", 2_000_000_000), ("1GiB", 1 << 30), ("1TB", 10**12)),
    ],
)
def test_a_shard_holds_what_was_said_to_the_byte_and_not_one_more(size: str | int, limit: int) -> None:
    exact = plan_shards([tensor("a", limit - 1), tensor("b", 1)], Options(size))
    assert [shard.bytes for shard in exact.shards] == [limit] and not exact.findings
    more = plan_shards([tensor("a", limit - 1), tensor("b", 2)], Options(size))
    assert [shard.bytes for shard in more.shards] == [limit - 1, 2] and not more.findings
    assert [found.code for found in plan_shards([tensor("a", limit + 1)], Options(size)).findings] == [
        "oversized-tensor"
    ]


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


@pytest.mark.parametrize("command", ["plan", "shard"])
@pytest.mark.parametrize(
    "more",
    [["-s", "1GB"], ["--max-shard-size", "5GB"], *(["--strategy", name] for name in ("blocks", "pp:2"))],
    ids=" ".join,
)
def test_a_single_file_with_a_size_or_a_strategy_is_wrong_usage(
    command: str, more: list[str], checkpoint: Path, tmp_path: Path
) -> None:
    before = listing(tmp_path)
    where = [str(checkpoint)] + [str(tmp_path / "out")] * (command == "shard")
    done = invoke(command, *where, "--single-file", *more, "--json")
    assert (done.exit_code, json.loads(done.stdout)["error"]["kind"]) == (2, "UsageError")
    assert listing(tmp_path) == before
    assert invoke(command, *where, "--single-file", "--strategy", "size").exit_code == 0
