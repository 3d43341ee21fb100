"""The verdict on a comparison is right, and names the cause."""

from dataclasses import replace

import pytest

from sharding.loading.costs import LoadCost, Prediction, Verdict
from sharding.loading.verdict import judge as judge_runs
from sharding.loading.verdict import judge_predicted

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
ASKED = replace(BASE, dtype_asked="float16")
IN_ONE_FILE = replace(UNMAPPED, largest_file_bytes=2 * GB, peak_anon_bytes=4 * GB)
KILLED = replace(CAST, outcome="out-of-memory", message="Killed.", memory_limited_by="memory cgroup")
UNSUPPORTED = replace(BASE, outcome="unsupported", message="It has other names.", format="", files=0)


def judge(original: LoadCost, copy: LoadCost) -> Verdict:
    return judge_runs([original] * 3, [copy] * 3)


VERDICTS = {
    "the same dtype": (
        replace(BASE, files=1, largest_file_bytes=2 * GB, seconds={"load": 2.2, "forward": 1.1}), BASE,
        "no-difference", None, ["No meaningful difference"],
    ),
    "a copy stored as it is loaded beats a cast": (
        CAST, ASKED, "gain", "dtype",
        ["the dtype on the disk, not the shard size", "The original is cast from bfloat16 to float16",
         "The copy is stored in float16 and needs no cast."],
    ),
    "a copy that is cast": (
        ASKED, CAST, "loss", "dtype",
        ["The copy is cast from bfloat16 to float16", "The original is stored in float16 and needs no cast."],
    ),
    "a copy in one file": (
        UNMAPPED, IN_ONE_FILE, "loss", "file-size",
        ["The largest file has 2.0 GB in the copy and 200.0 MB in the original."],
    ),
    "smaller files without mapping": (IN_ONE_FILE, UNMAPPED, "gain", "file-size", ["memory mapping is off"]),
    "a copy that is not mapped": (BASE, UNMAPPED, "loss", "memory-mapping", []),
    "another format": (
        replace(BASE, format="bin", mapped_bytes=0, peak_anon_bytes=3 * GB), BASE, "gain", "format", []
    ),
    "two casts, and what would make a difference": (
        CAST, CAST, "no-difference", None,
        ["Each of the two is cast from bfloat16 to float16 while loading.",
         "Weights stored in float16 need no cast."],
    ),
    "time alone without a cause in the files": (
        replace(BASE, seconds={"load": 20.0, "forward": 1.0}), BASE,
        "no-difference", None, ["which nothing in the checkpoints explains"],
    ),
    "the same": (BASE, BASE, "no-difference", None, ["which is normal variation"]),
    "what loads under a limit where the original does not": (
        KILLED, replace(BASE, memory_limited_by="memory cgroup"), "gain", "dtype", ["under the limit (memory cgroup)"]
    ),
    "what cannot load the original": (
        UNSUPPORTED, BASE, "gain", None, ["The sharded copy loads, but the original does not: It has other names."]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", VERDICTS)
def test_the_cause_of_what_is_dear_is_named_on_its_side(name: str) -> None:
    original, copy, kind, cause, sentences = VERDICTS[name]
    verdict = judge(original, copy)
    assert (verdict.kind, verdict.cause) == (kind, cause)
    assert [sentence for sentence in sentences if sentence not in verdict.sentence] == []


def test_what_is_better_in_one_and_worse_in_another_is_mixed_and_what_does_not_load_is_no_gain() -> None:
    quick = replace(CAST, seconds={"load": 0.5, "forward": 0.2})
    assert judge(ASKED, quick).kind == judge(quick, ASKED).kind == "mixed"
    assert judge(KILLED, KILLED).kind == "not-loaded"
    assert judge(BASE, KILLED).kind == judge(BASE, CAST).kind == "loss"
    assert judge(CAST, replace(BASE, logits_sha256="1" * 64)).kind == "outputs-differ"


def test_other_outputs_are_no_fault_where_they_are_meant_and_the_costs_are_judged_as_ever() -> None:
    other = replace(BASE, logits_sha256="1" * 64)
    assert judge_runs([CAST], [other], computes_the_same=False) == judge_runs([CAST], [BASE])
    assert judge_runs([KILLED], [other], computes_the_same=False).cause == "dtype"


def test_a_copy_alone_is_told_with_its_own_figures_and_why_it_is_alone() -> None:
    why = "It is in the pieces of a training run."
    verdict = judge_runs([], [BASE, replace(BASE, peak_anon_bytes=GB), replace(BASE, peak_anon_bytes=GB // 2)], why)
    assert (verdict.kind, verdict.cause) == ("copy-alone", None)
    assert f"{why} The copy needs 500.0 MB of anonymous memory, and 3.0 s to load and compute." in verdict.sentence
    broken = judge_runs([], [BASE, replace(UNSUPPORTED, message="It has holes.")], why)
    assert (broken.kind, broken.sentence) == ("not-loaded", "The copy does not load: It has holes.")
    predicted = judge_predicted({"sharded": Prediction(2 * GB, GB)}, why)
    assert (predicted.kind, predicted.sentence.startswith("Predicted, not measured: ")) == ("copy-alone", True)
    assert "2.0 GB of anonymous memory" in predicted.sentence and predicted.sentence.endswith(why)


def test_a_difference_of_a_tenth_of_the_memory_counts_and_a_smaller_one_does_not() -> None:
    def kinds(of: int, *shares: float) -> list[str]:
        original = replace(UNMAPPED, peak_anon_bytes=of)
        return [judge(original, replace(BASE, peak_anon_bytes=int(share * of))).kind for share in shares]

    assert kinds(2 * GB, 0.89, 0.91, 1.0, 1.1, 1.12) == ["gain", *["no-difference"] * 3, "loss"]
    # Of so little a tenth is nothing.
    assert kinds(100_000_000, 0.67, 0.69, 1.31, 1.33) == ["gain", *["no-difference"] * 2, "loss"]


def test_only_weights_in_another_dtype_than_the_wanted_one_are_said_to_be_cast() -> None:
    """Most of these weights are in float16 already: nothing is cast from float16 to float16."""
    some = replace(CAST, stored_dtypes={"float16": 2 * GB, "float32": GB // 10, "I64": 4096})
    cast = "is cast from float32 to float16 while loading"
    assert f"100.0 MB of each of the two {cast}." in judge(some, some).sentence
    assert f"100.0 MB of the original {cast}" in judge(some, ASKED).sentence


def test_two_casts_from_different_dtypes_are_both_named() -> None:
    wide = replace(CAST, stored_dtypes={"float32": 4 * GB, "float64": GB})
    cast = "The original is cast from float32 and float64 to float16 and the copy is cast from bfloat16 to float16"
    assert f"{cast} while loading." in judge(wide, CAST).sentence
    unknown = replace(CAST, stored_dtypes=None)
    assert "is cast from an unknown dtype to float16" in judge(unknown, unknown).sentence


def test_times_whose_spreads_overlap_are_no_difference() -> None:
    runs = [replace(BASE, format="bin", seconds={"load": seconds}) for seconds in (2.0, 9.0, 9.5)]
    verdict = judge_runs(runs, [BASE] * 3)
    assert verdict.kind == "no-difference"
    assert "the runs vary more than that: 2.0 to 9.5 s and 3.0 to 3.0 s" in verdict.sentence
    assert "normal" not in verdict.sentence
