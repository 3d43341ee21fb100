"""A variant is asked of the original only: its copy may be plain."""

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from sharding import job
from sharding.core.events import Verified
from tests.conftest import write_checkpoint


def test_a_variant_is_compared_with_plain_weights(tmp_path: Path) -> None:
    plain, half = {"w": np.ones(4, np.float32)}, {"w": np.ones(4, np.float16)}
    original = write_checkpoint(tmp_path / "original", {"model.safetensors": plain}, index=False)
    save_file(half, original / "model.fp16.safetensors", {"format": "pt"})
    copy = write_checkpoint(tmp_path / "copy", {"model.safetensors": half}, index=False)

    def identical(variant: str) -> bool:
        *_, verified = job.verify(str(original), str(copy), variant=variant)
        assert isinstance(verified, Verified)
        return verified.verification.identical

    assert identical("fp16") and not identical("")
