"""The verdict on a comparison is right, and names the cause."""

from dataclasses import replace

from sharding.loading.costs import LoadCost
from sharding.loading.verdict import judge

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
    assert "the dtype on the disk, not the shard size" in verdict.sentence
    assert "The original is cast from bfloat16 to float16" in verdict.sentence
    assert "The copy is stored in float16 and needs no cast." in verdict.sentence
    assert judge([BASE] * 3, [CAST] * 3).kind == "loss"


def test_a_copy_that_needs_more_is_a_loss_with_the_cause_on_its_side() -> None:
    """What makes the dear side dear is named, whichever it is."""
    asked = replace(BASE, dtype_asked="float16")
    verdict = judge([asked] * 3, [CAST] * 3)
    assert (verdict.kind, verdict.cause) == ("loss", "dtype")
    assert "The copy is cast from bfloat16 to float16" in verdict.sentence
    assert "The original is stored in float16 and needs no cast." in verdict.sentence
    one_file = replace(UNMAPPED, largest_file_bytes=2 * GB, peak_anon_bytes=4 * GB)
    verdict = judge([UNMAPPED] * 3, [one_file] * 3)
    assert (verdict.kind, verdict.cause) == ("loss", "file-size")
    assert "The largest file has 2.0 GB in the copy and 200.0 MB in the original." in verdict.sentence
    verdict = judge([BASE] * 3, [UNMAPPED] * 3)
    assert (verdict.kind, verdict.cause) == ("loss", "memory-mapping")
    quick = replace(CAST, seconds={"load": 0.5, "forward": 0.2})
    assert judge([asked] * 3, [quick] * 3).kind == judge([quick] * 3, [asked] * 3).kind == "mixed"


def test_a_difference_of_a_tenth_of_the_memory_counts_and_a_smaller_one_does_not() -> None:
    def verdict(share: float, of: int = 2 * GB) -> str:
        return judge(
            [replace(UNMAPPED, peak_anon_bytes=of)] * 3, [replace(BASE, peak_anon_bytes=int(share * of))] * 3
        ).kind

    assert [verdict(share) for share in (0.89, 0.91, 1.0, 1.1, 1.12)] == ["gain", *["no-difference"] * 3, "loss"]
    small = 100_000_000  # of which a tenth is nothing
    assert [verdict(share, small) for share in (0.67, 0.69, 1.31, 1.33)] == ["gain", *["no-difference"] * 2, "loss"]


def test_two_casts_make_no_difference_and_the_hint_says_what_would() -> None:
    verdict = judge([CAST] * 3, [CAST] * 3)
    assert verdict.kind == "no-difference"
    assert "Each of the two is cast from bfloat16 to float16 while loading." in verdict.sentence
    assert "Weights stored in float16 need no cast." in verdict.sentence


def test_only_weights_in_another_dtype_than_the_wanted_one_are_said_to_be_cast() -> None:
    """Most of these weights are in float16 already: nothing is cast from float16 to float16."""
    some = replace(CAST, stored_dtypes={"float16": 2 * GB, "float32": GB // 10, "I64": 4096})
    sentence = judge([some] * 3, [some] * 3).sentence
    assert "100.0 MB of each of the two is cast from float32 to float16 while loading." in sentence
    sentence = judge([some] * 3, [replace(BASE, dtype_asked="float16")] * 3).sentence
    assert "100.0 MB of the original is cast from float32 to float16 while loading" in sentence


def test_two_casts_from_different_dtypes_are_both_named() -> None:
    wide = replace(CAST, stored_dtypes={"float32": 4 * GB, "float64": GB})
    sentence = judge([wide] * 3, [CAST] * 3).sentence
    cast = "The original is cast from float32 and float64 to float16 and the copy is cast from bfloat16 to float16"
    assert f"{cast} while loading." in sentence
    unknown = replace(CAST, stored_dtypes=None)
    assert "is cast from an unknown dtype to float16" in judge([unknown] * 3, [unknown] * 3).sentence


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
    verdict = judge([slow] * 3, [BASE] * 3)
    assert verdict.kind == "no-difference" and "which nothing in the checkpoints explains" in verdict.sentence
    assert "which is normal variation" in judge([BASE] * 3, [BASE] * 3).sentence


def test_times_whose_spreads_overlap_are_no_difference() -> None:
    runs = [replace(BASE, format="bin", seconds={"load": seconds}) for seconds in (2.0, 9.0, 9.5)]
    verdict = judge(runs, [BASE] * 3)
    assert verdict.kind == "no-difference"
    assert "the runs vary more than that: 2.0 to 9.5 s and 3.0 to 3.0 s" in verdict.sentence
    assert "normal" not in verdict.sentence


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
    assert verdict.sentence == "The sharded copy loads, but the original does not: It has other names."


def test_different_logits_are_never_called_a_gain() -> None:
    assert judge([CAST] * 3, [replace(BASE, logits_sha256="1" * 64)] * 3).kind == "outputs-differ"
