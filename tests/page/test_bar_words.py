"""What the bar says becomes of the bytes and of the files."""

import pytest

from sharding.core.options import Options
from sharding.core.values import Component, Content, FileEntry
from sharding.desk.forecast import Forecast
from sharding.page.panels import summary_panel
from sharding.planning.plan import plan_shards
from tests.report.results import SOURCE
from tests.tensors import stored_tensor

FORECAST = Forecast(150, 300, 10**8, 0, "As measured.")


@pytest.mark.parametrize(
    ("today", "after", "size", "said"),
    [
        ([6000], [3000], 2000, "6.0 → 3.0 kB, 1 → 2 files"),
        ([3000, 3000], [3000, 3000], 9000, "6.0 kB, 2 → 1 file"),
        ([900], [1800], 2000, "900 B → 1.8 kB, 1 file"),
        ([1800], [900], 2000, "1.8 kB → 900 B, 1 file"),
        ([10] * 1200, [10] * 1200, 9, "12.0 kB, 1,200 files"),
    ],
)
def test_sizes_and_files_are_told_once_where_they_stay(
    today: list[int], after: list[int], size: int, said: str
) -> None:
    files = [FileEntry(f"{number}.safetensors", held) for number, held in enumerate(today)]
    tensors = [stored_tensor(f"w{n}", "U8", (file.bytes,), file.path, 0, file.bytes) for n, file in enumerate(files)]
    source = Content(SOURCE, tuple(tensors), (Component(),), tuple(files), (), ())
    halves = [held // 2 for held in after for _ in range(2)] if len(after) == 1 else after
    made = [stored_tensor(f"w{n}", "U8", (held,), "f", 0, held) for n, held in enumerate(halves)]
    html = summary_panel(source, plan_shards(made, Options(size)), FORECAST)
    assert f"<b>{said}</b>" in html
