"""The verdict on a comparison is right, names the cause, and says when nothing was measured."""

import json
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from sharding import job
from sharding.core.errors import ShardingError, SourceError
from sharding.loading.chart import Curve, draw_curves
from sharding.loading.costs import LoadCost, Moment
from sharding.loading.local_copy import loadable_files
from sharding.loading.measure import Load, probe, thin
from sharding.loading.predict import predict
from sharding.loading.probe import child as loading
from sharding.loading.verdict import judge
from sharding.report.schema import Report
from sharding.storage.folder_source import open_folder
from tests import models

Run = Callable[..., subprocess.CompletedProcess[str]]
GB = 1_000_000_000
BASE = LoadCost(
    outcome="loaded", message="", method="from_pretrained", dtype_asked=None, memory_limited_by=None, cache="cold",
    seconds={"load": 2.0, "forward": 1.0}, peak_anon_bytes=GB // 4, peak_file_bytes=2 * GB, peak_total_bytes=3 * GB,
    curve=(), format="safetensors", files=8, weight_bytes=2 * GB, largest_file_bytes=GB // 5, loaded_bytes=2 * GB,
    mapped_bytes=2 * GB, stored_dtypes={"float16": 2 * GB}, logits_sha256="0" * 64,
)  # fmt: skip
CAST = replace(
    BASE, is_cast=True, stored_dtypes={"bfloat16": 2 * GB}, peak_anon_bytes=2 * GB, mapped_bytes=0,
    seconds={"load": 9.0, "forward": 1.0}, dtype_asked="float16",
)  # fmt: skip
UNMAPPED = replace(BASE, mapped_bytes=0, peak_anon_bytes=int(2.4 * GB))


def test_the_same_dtype_resharded_makes_no_meaningful_difference() -> None:
    one_file = replace(BASE, files=1, largest_file_bytes=2 * GB, seconds={"load": 2.2, "forward": 1.1})
    verdict = judge([one_file] * 3, [BASE] * 3)
    assert (verdict.kind, verdict.cause) == ("no-difference", None)
    assert "No meaningful difference" in verdict.sentence


def test_a_copy_stored_as_it_is_loaded_beats_a_cast_and_the_dtype_is_named() -> None:
    verdict = judge([CAST] * 3, [replace(BASE, dtype_asked="float16")] * 3)
    assert (verdict.kind, verdict.cause) == ("gain", "dtype")
    assert "not of the shards" in verdict.sentence
    assert "float16" in verdict.sentence and "bfloat16" in verdict.sentence
    assert judge([BASE] * 3, [CAST] * 3).kind == "loss"


def test_two_casts_make_no_difference_and_the_hint_says_what_would() -> None:
    verdict = judge([CAST] * 3, [CAST] * 3)
    assert verdict.kind == "no-difference"
    assert "Both are cast from bfloat16 to float16" in verdict.sentence


def test_without_mapping_smaller_files_are_a_gain_and_the_file_size_is_named() -> None:
    one_file = replace(UNMAPPED, largest_file_bytes=2 * GB, peak_anon_bytes=4 * GB)
    verdict = judge([one_file] * 3, [UNMAPPED] * 3)
    assert (verdict.kind, verdict.cause) == ("gain", "file-size")
    assert "memory mapping is off" in verdict.sentence


def test_another_format_is_named() -> None:
    pickled = replace(BASE, format="bin", mapped_bytes=0, peak_anon_bytes=3 * GB)
    assert judge([pickled] * 3, [BASE] * 3).cause == "format"


def test_time_alone_without_a_cause_in_the_files_is_no_difference() -> None:
    slow = replace(BASE, seconds={"load": 20.0, "forward": 1.0})
    assert judge([slow] * 3, [BASE] * 3).kind == "no-difference"


def test_times_whose_spreads_overlap_are_no_difference() -> None:
    runs = [replace(BASE, format="bin", seconds={"load": seconds}) for seconds in (2.0, 9.0, 9.5)]
    assert judge(runs, [BASE] * 3).kind == "no-difference"


def test_what_loads_under_a_limit_where_the_original_does_not_is_a_gain_with_its_cause() -> None:
    killed = replace(CAST, outcome="out-of-memory", message="Killed.", memory_limited_by="memory cgroup")
    verdict = judge([killed], [replace(BASE, memory_limited_by="memory cgroup")])
    assert (verdict.kind, verdict.cause) == ("gain", "dtype")
    assert "under the limit (memory cgroup)" in verdict.sentence
    assert judge([killed], [killed]).kind == "not-loaded"
    assert judge([BASE], [killed]).kind == "loss"


def test_where_a_method_cannot_load_the_original_its_reason_is_the_verdict() -> None:
    unsupported = replace(BASE, outcome="unsupported", message="It has other names.", format="", files=0)
    verdict = judge([unsupported], [BASE])
    assert (verdict.kind, verdict.cause) == ("gain", None)
    assert verdict.sentence == "The sharded copy loads, the original does not: It has other names."


def test_different_logits_are_never_called_a_gain() -> None:
    assert judge([CAST] * 3, [replace(BASE, logits_sha256="1" * 64)] * 3).kind == "outputs-differ"


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=1000), st.integers(1, 200))
def test_a_thinned_curve_keeps_its_peak_and_its_order(sizes: list[int], most: int) -> None:
    curve = [Moment(float(number), size, 0, size) for number, size in enumerate(sizes)]
    kept = thin(curve, most)
    assert len(kept) <= max(most, 1)
    assert max(moment.anon_bytes for moment in kept) == max(sizes)
    assert list(kept) == sorted(kept, key=lambda moment: moment.seconds)


@given(st.lists(st.tuples(st.floats(0, 1e5), st.integers(0, 10**13)), max_size=50), st.text(max_size=20))
def test_every_picture_is_well_formed_and_stays_inside_its_frame(points: list[tuple[float, int]], title: str) -> None:
    title = "".join(char for char in title if char.isprintable())
    curve = Curve(title, tuple(Moment(seconds, size, 0, size) for seconds, size in sorted(points)))
    root = ET.fromstring(draw_curves(title, [curve, curve]))
    for path in root.iter("{http://www.w3.org/2000/svg}path"):
        numbers = [float(number) for number in path.attrib["d"].translate(str.maketrans("MLZ,", "    ")).split()]
        assert all(0 <= x <= 760 for x in numbers[::2]) and all(0 <= y <= 380 for y in numbers[1::2])


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pair")
    models.save("llama", folder / "original", "10GB")
    for _ in job.shard(str(folder / "original"), str(folder / "sharded"), "100kB"):
        pass
    return folder / "original", folder / "sharded"


def test_compare_prints_one_object_with_measured_figures_of_both(run: Run, pair: tuple[Path, Path]) -> None:
    picture = pair[0].parent / "picture.svg"
    done = run("compare", *pair, "--rounds", 1, "--json", "--picture", picture)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["measured"] is True
    assert said["verdict"]["kind"] == "no-difference"
    assert said["original"]["logits_sha256"] == said["sharded"]["logits_sha256"] != ""
    assert (said["original"]["files"], said["sharded"]["files"] > 1) == (1, True)
    assert len(said["original"]["curve"]) > 20
    assert said["original"]["peak_anon_bytes"]["median"] > 50_000_000
    assert "Memory while loading" in ET.fromstring(picture.read_text())[0].text  # type: ignore[operator]
    assert "warm-up" in done.stderr  # a person who waits sees each load


def test_a_limit_that_nothing_loads_under_is_an_answer(run: Run, pair: tuple[Path, Path]) -> None:
    done = run("compare", *pair, "--memory-limit", "80MB", "--rounds", 1, "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["verdict"]["kind"] == "not-loaded"


def test_custom_code_gets_a_prediction_plainly_marked(run: Run, pair: tuple[Path, Path], tmp_path: Path) -> None:
    for folder in pair:
        place = tmp_path / folder.name
        place.mkdir()
        for file in folder.iterdir():
            (place / file.name).symlink_to(file)
        config = json.loads((folder / "config.json").read_text())
        (place / "config.json").unlink()
        config |= {"model_type": "mine", "auto_map": {"AutoModel": "mine.Mine"}}
        (place / "config.json").write_text(json.dumps(config))
    done = run("compare", tmp_path / "original", tmp_path / "sharded", "--json")
    said = json.loads(done.stdout)
    assert (said["measured"], said["original"]) == (False, None)
    assert "code from its repo" in said["reason_not_measured"]
    assert said["verdict"]["sentence"].startswith("Predicted, not measured")


def named(folder: Path, size: str = "100kB") -> Path:
    """Save a model whose configuration names its weights, beside others that have the usual name."""
    models.save("llama", folder, size, layers=3)
    usual = folder / ("model.safetensors.index.json" if size == "20kB" else "model.safetensors")
    weights = usual.rename(folder / usual.name.replace("model", "consolidated"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "transformers_weights": weights.name}))
    save_file({"other": np.ones(3)}, folder / "model.safetensors")
    return folder


@pytest.mark.thorough
def test_weights_that_the_configuration_names_are_loaded_and_compared_while_they_are_sharded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_here(*_: object) -> None:
        raise SourceError("It has tests of its own.", "")

    monkeypatch.setattr("sharding.loading.compare.run_classic", not_here)
    source = named(tmp_path / "in", "20kB")
    *_, report = job.shard(str(source), str(tmp_path / "out"), "30kB", compare_rounds=1)
    assert isinstance(report, Report) and report.comparison
    original, sharded = report.comparison.original, report.comparison.sharded
    assert original and sharded
    assert (original.outcome, sharded.outcome) == ("loaded", "loaded")
    assert original.weight_bytes == sum(path.stat().st_size for path in source.glob("model-*"))
    assert original.logits_sha256 == sharded.logits_sha256 != ""
    assert original.files > sharded.files == len(report.plan.shards) > 1
    assert "transformers_weights" not in (tmp_path / "out/config.json").read_text()


@pytest.mark.parametrize("size", ["20kB", "100kB"])
def test_a_probe_loads_the_files_that_the_configuration_names_or_says_that_its_method_cannot(
    size: str, tmp_path: Path
) -> None:
    folder = named(tmp_path / "in", size)
    weights = sorted(folder.glob("model-*")) or [folder / "consolidated.safetensors"]
    assert loading.weight_files(folder, "from_pretrained") == weights
    taken = [file.path for file in loadable_files(open_folder(str(folder)))]
    assert [path for path in taken if path.endswith(".safetensors")] == [path.name for path in weights]
    for method in ("load_checkpoint_and_dispatch", "load_sharded_checkpoint", "torch_load"):
        with pytest.raises(loading.Unsupported, match="names consolidated.* and this method knows the usual names"):
            loading.weight_files(folder, method)


@pytest.mark.parametrize("entry", [{}, {"transformers_weights": "absent.safetensors"}])
def test_comparing_is_refused_before_a_byte_moves_where_transformers_finds_no_weights(
    entry: dict[str, str], tmp_path: Path
) -> None:
    folder = models.save("llama", tmp_path / "original", layers=3)
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **entry}))
    with pytest.raises(ShardingError) as refusal:
        list(job.shard(str(folder), str(tmp_path / "out"), "20kB", compare_rounds=1))
    expected = "config.json names 'absent.safetensors'" if entry else "weights.safetensors: transformers does not look"
    assert refusal.value.message.startswith(expected) and refusal.value.hint
    assert not (tmp_path / "out").exists()


def test_a_missing_side_and_a_bad_limit_are_refused_in_plain_words(run: Run, pair: tuple[Path, Path]) -> None:
    assert run("compare", pair[0], "./nowhere").returncode == 3
    assert run("compare", *pair, "--memory-limit", "plenty").returncode == 2


@pytest.fixture(scope="module")
def heavy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose weights are as heavy as the libraries."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(hidden_size=1024, intermediate_size=2816, num_hidden_layers=6, num_attention_heads=8)
    config.vocab_size, config.pad_token_id = 30_000, None
    folder = tmp_path_factory.mktemp("heavy") / "model"
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is told apart in /proc")
@pytest.mark.parametrize(
    ("dtype", "with_mapping"),
    [
        (None, True),
        pytest.param("float32", True, marks=pytest.mark.thorough),
        pytest.param(None, False, marks=pytest.mark.thorough),
    ],
)
def test_the_predicted_memory_is_near_the_measured(dtype: str | None, with_mapping: bool, heavy: Path) -> None:
    size = (heavy / "model.safetensors").stat().st_size
    expected = predict({"BF16": size}, size, dtype, with_mapping=with_mapping)
    found = probe(heavy, Load(dtype=dtype, with_mapping=with_mapping))
    assert found.peak_anon_bytes == pytest.approx(expected.peak_anon_bytes, rel=0.1)
    assert found.peak_file_bytes == pytest.approx(expected.peak_file_bytes, rel=0.2)
