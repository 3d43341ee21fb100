"""Which loads a comparison makes, in what turns and processes, and which of them its figures are of."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import pytest

from sharding import job
from sharding.core.environment import child_variables
from sharding.core.errors import DestinationError, SourceError
from sharding.core.events import Progress, Published, Verified
from sharding.core.options import Options
from sharding.job import Event
from sharding.loading.costs import Compared, Comparison, LoadCost, Moment, Probed, middle_run
from sharding.loading.measure import Load
from sharding.report.comparison import draw_memory
from sharding.report.schema import Report
from tests import models, quantized
from tests.conftest import in_two_files, listing, options_of
from tests.folders import write_ranks
from tests.hubs import TOKEN, push
from tests.inhouse import hub_in_house
from tests.lora import Case, save_both

MB = 1_000_000
LOADED = {
    "outcome": "loaded", "message": "", "method": "from_pretrained", "dtype_asked": None, "memory_limited_by": None,
    "cache": "cold", "seconds": {"load": 1.0, "forward": 1.0}, "peak_file_bytes": 0, "peak_total_bytes": 0, "curve": (),
    "format": "safetensors", "logits_sha256": "0" * 64, "mapped_bytes": 0, "loaded_bytes": 9, "tokens": (1, 2),
}  # fmt: skip


class Probes:
    """Processes that load nothing and say what a load would: each the memory that is next in `peaks`."""

    def __init__(self) -> None:
        self.peaks: Iterator[int] = iter(range(100 * MB, 10**12, 100 * MB))
        self.answers: Iterator[dict[str, Any]] = iter(lambda: {}, None)
        self.loaded: list[str] = []
        self.folders: list[Path] = []
        self.configs: dict[str, str] = {}

    def load(self, folders: Sequence[Path], load: Load) -> Iterator[LoadCost]:
        for folder in folders:
            assert next(folder.glob("*.safetensors")).stat().st_size  # what is to be loaded is there
            self.loaded.append(folder.name)
            self.folders.append(folder)
            self.configs[folder.name] = (folder / "config.json").read_text()
            yield LoadCost(**LOADED | {"peak_anon_bytes": next(self.peaks)} | next(self.answers))


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> Probes:
    probes = Probes()
    monkeypatch.setattr("sharding.loading.measure.probes", probes.load)
    return probes


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    return str(in_two_files(tmp_path / "one")), str(in_two_files(tmp_path / "other"))


def last(events: Iterator[Event] | list[Event]) -> Any:
    *_, end = events
    return end


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_both_are_loaded_in_turn_each_time_in_a_process_of_its_own_and_the_warm_up_does_not_count(
    rounds: int, pair: tuple[str, str], probes: Probes
) -> None:
    events = list(job.compare(*pair, rounds=rounds))
    turns = ["original", "sharded", "sharded", "original"] * 2
    assert probes.loaded == turns[: 2 * (rounds + 1)]
    assert [event.side for event in events if isinstance(event, Probed)] == probes.loaded
    assert [event.round for event in events if isinstance(event, Probed)] == sorted(list(range(rounds + 1)) * 2)
    found = last(events).comparison
    peaks = {"original": [1, 4, 5, 8], "sharded": [2, 3, 6, 7]}
    for side, costs in (("original", found.original), ("sharded", found.sharded)):
        assert [cost.peak_anon_bytes // (100 * MB) for cost in costs] == peaks[side][1 : rounds + 1]


def test_no_figure_of_the_warm_up_is_in_the_verdict(pair: tuple[str, str], probes: Probes) -> None:
    probes.peaks = iter([9000 * MB, 100 * MB, *[500 * MB] * 4])
    found = last(job.compare(*pair, rounds=2)).comparison
    assert (found.verdict.kind, len(found.original), len(found.sharded)) == ("no-difference", 2, 2)
    assert "500.0 MB" in found.verdict.sentence
    probes.peaks = iter([100 * MB, 100 * MB, 500 * MB, 900 * MB])
    found = last(job.compare(*pair, rounds=1)).comparison
    assert (found.verdict.kind, found.original[0].peak_anon_bytes) == ("gain", 900 * MB)


@pytest.mark.parametrize("broken", [0, 1])
def test_a_load_that_fails_ends_the_turns_once_both_had_theirs(
    broken: int, pair: tuple[str, str], probes: Probes
) -> None:
    failed = {"outcome": "out-of-memory", "message": "It was killed."}
    probes.answers = iter([failed if number == broken else {} for number in range(4)])
    found = last(job.compare(*pair, rounds=3)).comparison
    assert probes.loaded == ["original", "sharded"]
    assert (found.verdict.kind, len(found.original), len(found.sharded)) == (["gain", "loss"][broken], 1, 1)


def test_repos_are_downloaded_into_a_folder_that_goes_again(
    tmp_path: Path, probes: Probes, nothing_stays_on_this_disk: None
) -> None:
    with hub_in_house(tmp_path / "hub") as hub:
        push(hub, in_two_files(tmp_path / "in"), "alice/one")
        events = job.compare("alice/one", str(tmp_path / "in"), rounds=1, endpoint=hub.address, token=TOKEN)
        fetched = [*takewhile(lambda event: isinstance(event, Progress), events)]
        assert isinstance(fetched[-1], Progress) and fetched[-1].bytes_done == fetched[-1].bytes_total > 0
        folder = probes.folders[0]
        assert listing(folder) == listing(tmp_path / "in")
        assert isinstance(last(events), Compared) and not folder.exists()
        events = job.compare("alice/one", "alice/one", rounds=1, endpoint=hub.address, token=TOKEN)
        next(events)
        events.close()  # whoever does not wait for the end, or for the download


def test_memory_over_time_is_drawn_where_it_is_asked_for(pair: tuple[str, str], probes: Probes, tmp_path: Path) -> None:
    """Of each side the run whose time is the middle one."""
    spread = [(9.0, 900), (1.0, 100), (3.0, 300), (2.0, 200), (2.5, 250), (3.5, 350), (1.5, 150), (2.2, 220)]
    said = [{"seconds": {"load": time}, "curve": (Moment(time, peak * MB, 0, peak * MB),)} for time, peak in spread]
    probes.answers = iter([*said, *[{}] * 4])
    found = last(job.compare(*pair, rounds=3, picture=str(tmp_path / "memory.svg"))).comparison
    drawn = draw_memory(*(middle_run(costs).curve for costs in (found.original, found.sharded)))
    assert (tmp_path / "memory.svg").read_text() == drawn
    assert [middle_run(costs).curve[0].anon_bytes // MB for costs in (found.original, found.sharded)] == [220, 300]
    with pytest.raises(DestinationError, match="cannot be written"):
        list(job.compare(*pair, rounds=1, picture=str(tmp_path / "no/such/folder.svg")))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["memory.svg", "one", "other"]


def test_where_both_do_not_fit_into_memory_a_prediction_is_made_and_marked(
    pair: tuple[str, str], probes: Probes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharding.loading.compare.free_memory_bytes", lambda: 1 * MB)
    found = last(job.compare(*pair, rounds=1, picture=str(tmp_path / "memory.svg"))).comparison
    assert probes.loaded == [] and not found.is_measured and not (tmp_path / "memory.svg").exists()
    reason = found.reason_not_measured
    assert reason.startswith("Loading needs about") and "only 1.0 MB are free" in reason
    assert found.verdict.sentence.startswith("Predicted, not measured: ")
    assert all(side.peak_anon_bytes > 0 for side in found.predicted.values())
    limited = job.how_to_load(memory_limit="4GB")  # whether it loads under that is what is asked
    assert last(job.compare(*pair, load=limited, rounds=1)).comparison.is_measured


@pytest.fixture
def no_classic(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_here(*_: object) -> None:
        raise SourceError("It has tests of its own.", "")

    monkeypatch.setattr("sharding.loading.compare.run_classic", not_here)


@pytest.mark.usefixtures("no_classic")
def test_a_job_that_compares_publishes_only_after_the_loads_and_shows_them(tmp_path: Path, probes: Probes) -> None:
    probes.peaks = iter([500 * MB, 100 * MB, 100 * MB, 900 * MB])
    source, out = models.save("llama", tmp_path / "in", layers=1), tmp_path / "out"
    kinds = []
    for event in job.shard(str(source), str(out), "20kB", compare_rounds=1):
        kinds.append(type(event))
        assert isinstance(event, Published | Report) == (out / "model.safetensors.index.json").exists()
    order = [kind for kind in kinds if kind in (Verified, Probed, Compared, Published, Report)]
    assert order == [Verified, *[Probed] * 4, Compared, Published, Report]
    assert isinstance(event, Report) and event.comparison and event.comparison.verdict.kind == "gain"
    card = " ".join((out / "README.md").read_text().split())
    assert event.comparison.verdict.sentence in card and "100.0 MB" in card and "900.0 MB" in card
    assert (out / "sharding_comparison.svg").exists()


def compared(source: Path, out: Path, probes: Probes, **choices: Any) -> Comparison:
    """What a job with a comparison finds if no two loads compute the same."""
    probes.answers = ({"logits_sha256": f"{number:064}"} for number in count())
    options, more = options_of("1GB", choices)
    report = list(job.shard(str(source), str(out), options, compare_rounds=1, **more))
    found = next(event.comparison for event in report if isinstance(event, Compared))
    assert json.loads((out / "sharding_report.json").read_text())["comparison"]["verdict"]["kind"] == found.verdict.kind
    return found


@pytest.mark.usefixtures("no_classic")
def test_outputs_decide_for_a_copy_and_a_cast_and_not_where_other_numbers_are_meant(
    tmp_path: Path, probes: Probes
) -> None:
    """The usual way of making the copy is run only where it would be the same way for all."""
    plain = models.save("llama", tmp_path / "plain", layers=1)
    base, adapter = save_both(Case(), tmp_path / "lora")
    packed = quantized.save_fp8("qwen3", tmp_path / "fp8")
    same = [compared(plain, tmp_path / dtype, probes, dtype=dtype) for dtype in ("keep", "bf16")]
    assert [(found.verdict.kind, found.classic is None) for found in same] == [("outputs-differ", False)] * 2
    merged = compared(base, tmp_path / "merged", probes, adapter=str(adapter))
    dequantized = compared(packed, tmp_path / "dequantized", probes, dequantize=True)
    assert "quantization_config" in probes.configs["original"]
    assert "quantization_config" not in probes.configs["sharded"]
    for found in (merged, dequantized):
        assert found.verdict.kind not in ("outputs-differ", "copy-alone", "not-loaded")
        assert (len(found.original), len(found.sharded), found.classic) == (1, 1, None)
        assert found.predicted.keys() == {"original", "sharded"}
    assert found.predicted["original"].peak_anon_bytes > found.predicted["sharded"].peak_anon_bytes, "it is dequantized"


@pytest.mark.parametrize("is_predicted", [False, True])
def test_where_the_original_cannot_be_loaded_the_copy_is_alone_and_why_is_said(
    is_predicted: bool, tmp_path: Path, probes: Probes, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_predicted:
        monkeypatch.setattr("sharding.loading.compare.free_memory_bytes", lambda: MB)
    base, run = in_two_files(tmp_path / "base"), write_ranks(tmp_path / "run")
    (base / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "of": "the base"}')
    named = models.save("llama", tmp_path / "named", layers=1)
    (named / "model.safetensors").rename(named / "weights.safetensors")
    reasons = {
        run: "It is in the pieces of a training run.",
        named: "transformers does not find weights named weights.safetensors.",
    }
    for source, reason in reasons.items():
        found = compared(
            source, tmp_path / f"{source.name}-out", probes, **{"base": str(base)} if source == run else {}
        )
        assert (found.verdict.kind, found.verdict.cause, found.original) == ("copy-alone", None, ())
        assert reason in found.verdict.sentence and (found.classic, found.predicted.keys()) == (None, {"sharded"})
        assert found.verdict.sentence.startswith("Predicted, not measured: ") == is_predicted
        assert found.is_measured != is_predicted == bool(found.reason_not_measured)
        if source == run and not is_predicted:
            assert json.loads(probes.configs["sharded"])["of"] == "the base", "a run saves none of its own"
    assert probes.loaded == [] if is_predicted else ["sharded"] * 4


class NotStarted(Exception):
    """A process was to be started, and was not."""


@pytest.mark.own_process
@pytest.mark.parametrize(
    "ask",
    [
        lambda source, out: job.plan(source, Options(order="transformers")),
        lambda source, out: job.devices(source, "cpu=1GB"),
        lambda source, out: list(job.compare(source, source)),
        lambda source, out: list(job.shard(source, out, engine="classic")),
        lambda source, out: list(job.shard(source, out, Options(strategy="pp:2"))),
    ],
    ids=["plan", "devices", "compare", "classic", "shard"],
)
def test_every_process_that_loads_a_model_has_no_login_no_network_and_no_gpu(
    ask: Callable[[str, str], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = models.save("llama", tmp_path / "in", layers=1)
    given: dict[str, str] = {}

    class Popen(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, command: list[str], *_: object, env: dict[str, str] | None = None, **__: object) -> None:
            self._child_created = False
            assert command[:3] == [sys.executable, "-P", "-m"]  # nothing of the current folder is imported
            given.update(os.environ if env is None else env)
            raise NotStarted

    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("subprocess.Popen", Popen)
    with pytest.raises(NotStarted):
        ask(str(source), str(tmp_path / "out"))
    assert given == child_variables()  # what that is, tests/core/test_inheritance.py says
    assert "HF_TOKEN" not in given and not (tmp_path / "out").exists()
