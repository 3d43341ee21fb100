"""A download that broke is never called identical."""

from pathlib import Path

import pytest

from sharding import job
from sharding.core.errors import SourceError
from sharding.core.events import Verified
from tests.folders import finish, in_cache
from tests.lora import Case, save_adapter, save_base


def spoiled(snapshot: Path) -> Path:
    """Turn one bit of a weight file around, which the Hub's client does not notice."""
    blob = next(iter(snapshot.glob("*.safetensors"))).resolve()
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(data)
    return snapshot


@pytest.mark.parametrize("dtype", ["keep", "fp32"])
def test_a_file_of_the_hubs_cache_must_have_the_bytes_that_its_name_states(
    dtype: str, checkpoint: Path, tmp_path: Path
) -> None:
    snapshot = in_cache(checkpoint, tmp_path / "cache")
    options = job.Options("20kB", dtype=dtype)  # type: ignore[arg-type]
    assert finish(job.shard(str(snapshot), str(tmp_path / "whole"), options)).verification.identical
    report = finish(job.shard(str(spoiled(snapshot)), str(tmp_path / "out"), options))
    assert not report.verification.identical
    assert not list(tmp_path.glob("out/*.safetensors"))
    *_, last = job.verify(str(snapshot), str(tmp_path / "whole"), dtype=dtype)  # type: ignore[arg-type]
    assert isinstance(last, Verified) and not last.verification.identical


def test_an_adapter_in_the_cache_must_have_the_bytes_that_its_name_states(tmp_path: Path) -> None:
    base = save_base(Case(), tmp_path / "base")
    snapshot = in_cache(save_adapter(Case(), base, tmp_path / "adapter"), tmp_path / "cache")
    options = job.Options("1MB", adapter=str(snapshot))
    assert finish(job.shard(str(base), str(tmp_path / "whole"), options)).verification.identical
    spoiled(snapshot)
    report = finish(job.shard(str(base), str(tmp_path / "out"), options))
    assert not report.verification.identical and not list(tmp_path.glob("out/*.safetensors"))


@pytest.mark.parametrize("ending", [".aria2", ".ARIA2", ".crdownload", ".incomplete", ".!qB", ".part"])
def test_an_unfinished_download_is_refused_by_name(ending: str, checkpoint: Path, tmp_path: Path) -> None:
    file = next(iter(sorted(checkpoint.glob("*.safetensors"))))
    (checkpoint / (file.name + ending)).write_bytes(b"")
    with pytest.raises(SourceError, match=f"The download of {file.name} is not finished"):
        finish(job.shard(str(checkpoint), str(tmp_path / "out"), "20kB"))
