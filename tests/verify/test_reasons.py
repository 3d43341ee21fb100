"""What speaks against a result is said: the tensors that are missing, and how many reasons more there are."""

from dataclasses import replace
from pathlib import Path

from sharding import job
from sharding.core.values import FileEntry
from sharding.report.schema import Report
from sharding.verify.trust import judge


def test_tensors_of_the_source_may_be_missing_only_from_the_classic_engine(checkpoint: Path, tmp_path: Path) -> None:
    *_, report = job.shard(str(checkpoint), str(tmp_path / "out"), "60kB")
    assert isinstance(report, Report)
    files = [FileEntry(shard.file, shard.bytes, sha256=shard.sha256) for shard in report.shards]
    copy, original = job.inspect(str(tmp_path / "out")), job.inspect(str(checkpoint))
    empty = original.tensors[0]._replace(name="hidden", shape=(0,), end_byte=original.tensors[0].start_byte)
    more = replace(original, tensors=(*original.tensors, empty))
    missing = "Tensors of the source are missing: hidden."
    assert missing in judge(report, files, copy, more).reasons
    assert missing not in judge(replace(report, engine="classic"), files, copy, more).reasons


def test_five_reasons_are_given_and_the_others_counted(checkpoint: Path, tmp_path: Path) -> None:
    *_, report = job.shard(str(checkpoint), str(tmp_path / "out"), "20kB")
    assert isinstance(report, Report)
    copy = job.inspect(str(tmp_path / "out"))
    found = judge(report, (), copy, None)
    assert len(report.shards) > 6
    assert found.reasons[:5] == tuple(f"{shard.file} is not in the repo." for shard in report.shards[:5])
    assert found.reasons[5:] == (f"and {len(report.shards) - 5} more",)
    five = [FileEntry(shard.file, shard.bytes, sha256=shard.sha256) for shard in report.shards[5:]]
    assert len(judge(report, five, copy, None).reasons) == 5
