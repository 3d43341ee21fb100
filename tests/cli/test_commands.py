"""The command line: what it prints where, and the status it exits with."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from tests.commands import invoke
from tests.conftest import listing, random_tensors, write_checkpoint
from tests.promises import promise


def test_plan_json_is_one_object_with_the_keys_others_depend_on(checkpoint: Path) -> None:
    done = invoke("plan", checkpoint, "--max-shard-size", "60kB", "--json")
    assert done.exit_code == 0
    plan = json.loads(done.stdout)
    assert {"shards", "weight_map", "total_bytes", "total_parameters", "findings"} <= plan.keys()
    assert [set(shard) for shard in plan["shards"]] == [{"file", "bytes", "tensors"}] * len(plan["shards"])
    assert sorted(name for shard in plan["shards"] for name in shard["tensors"]) == sorted(random_tensors())
    assert plan["total_bytes"] == sum(array.nbytes for array in random_tensors().values())


def test_shard_json_is_the_report(checkpoint: Path, tmp_path: Path) -> None:
    done = invoke("shard", checkpoint, tmp_path / "out", "--max-shard-size", "60kB", "--json")
    assert done.exit_code == 0
    printed = json.loads(done.stdout)
    assert printed == json.loads((tmp_path / "out/sharding_report.json").read_text())
    assert printed["source"]["repo_id"] == "checkpoint"
    assert printed["verification"]["identical"] is True
    assert {"peak_anon_bytes", "seconds", "bytes_read", "bytes_uploaded", "disk_bytes_written"} <= printed[
        "resources"
    ].keys()
    assert printed["resources"]["disk_bytes_written"] >= printed["plan"]["total_bytes"]
    assert (
        printed["plan"]["weight_map"]
        == json.loads((tmp_path / "out/model.safetensors.index.json").read_text())["weight_map"]
    )


def test_a_person_sees_tables_and_the_outcome(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert "14 tensors, 60,034 parameters, 240.1 kB in F16, F32, I64" in invoke("inspect", checkpoint).stdout
    assert "model-00002-of-00005.safetensors" in invoke("plan", checkpoint, "-s", "60kB").stdout
    done = invoke("shard", checkpoint, out, "-s", "60kB")
    assert "Identical: all 14 tensors" in done.stdout and "writing shards" in done.stderr
    done = invoke("verify", checkpoint, out)
    assert "Identical: all 14 tensors" in done.stdout and "verifying" in done.stderr and "verifying" not in done.stdout
    assert invoke("discard", out).stdout == "There is no unfinished job.\n"


def test_a_single_file_has_no_index_and_takes_no_size(checkpoint: Path, tmp_path: Path) -> None:
    done = invoke("shard", checkpoint, tmp_path / "out", "--single-file")
    assert done.exit_code == 0 and "1 shard, order natural" in done.stdout
    assert sorted(path.name for path in (tmp_path / "out").glob("model*")) == ["model.safetensors"]
    written = load_file(tmp_path / "out/model.safetensors")
    assert {name: array.tobytes() for name, array in written.items()} == {
        name: array.tobytes() for name, array in random_tensors().items()
    }
    assert "in one file." in (tmp_path / "out/README.md").read_text()


@promise("README.md#what-to-type")
def test_a_plan_is_drawn_where_it_is_asked_for(checkpoint: Path, tmp_path: Path) -> None:
    assert invoke("plan", checkpoint, "-s", "60kB", "--picture", tmp_path / "map.svg").exit_code == 0
    assert "checkpoint: 2 files → 5" in (tmp_path / "map.svg").read_text()
    refused = invoke("plan", checkpoint, "--picture", tmp_path / "no/such/folder.svg", "--json")
    assert refused.exit_code == 3
    assert "cannot be written" in json.loads(refused.stdout)["error"]["message"]


def test_a_hostile_file_is_refused_by_every_command_and_nothing_is_left(tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    (source / "model.safetensors").write_bytes(b"\xff" * 7 + b"\x00" + b"{" * 100)
    for words in (["inspect", source], ["plan", source], ["shard", source, out], ["verify", source, out]):
        done = invoke(*words)
        assert done.exit_code == 3 and "Traceback" not in done.stderr
        assert set(listing(tmp_path)) == {"in/model.safetensors"}


HOSTILE = "w\x1b[31m\x7f\x9b\u200b\u202e\u2066\U000e0041é"


@promise("docs/security.md#send-commands-to-your-terminal-in")
def test_what_is_printed_for_programs_holds_no_character_that_a_terminal_obeys(tmp_path: Path) -> None:
    source = tmp_path / "gpt2"
    write_checkpoint(source, {"model.safetensors": {HOSTILE: np.ones(9, np.float32)}}, index=False)
    out, other = tmp_path / "out", tmp_path / "other"
    write_checkpoint(other, {"model.safetensors": {"x": np.ones(9, np.float32)}}, index=False)
    for words, status in (
        (["inspect", source], 0),
        (["plan", source], 0),
        (["shard", source, out], 0),
        (["verify", source, out], 0),
        (["verify", source, other], 1),
        (["inspect", f"{tmp_path}/no{HOSTILE}"], 3),
        (["discard", out], 0),
    ):
        done = invoke(*words, "--json")
        assert done.exit_code == status, done.stderr
        assert done.stdout.rstrip("\n").isprintable() and done.stdout.isascii()
        document = json.loads(done.stdout)
        if words[0] == "plan":
            assert [*document["weight_map"]] == [HOSTILE]
        people = invoke(*words, *["--overwrite"] * (words[0] == "shard")).output
        assert people.replace("\n", "").isprintable(), people
    done = invoke("shard", source, out, "--overwrite", "-s", "1kB", "--events")
    assert all(line.isprintable() and line.isascii() for line in done.stdout.splitlines())


@promise("docs/security.md#make-every-byte-read-sound-like")
def test_verify_says_what_it_has_not_checked(checkpoint: Path, tmp_path: Path) -> None:
    invoke("shard", checkpoint, tmp_path / "out")
    done = invoke("verify", checkpoint, tmp_path / "out")
    files = "other files (they may hold weights too)"
    assert f"Not checked: code, configuration, tokenizer, {files} and the figures of a report" in done.stdout
    unchecked = json.loads(invoke("verify", checkpoint, tmp_path / "out", "--json").stdout)["unchecked"]
    assert unchecked[:3] == ["code", "configuration", "tokenizer"]


def test_a_folder_with_the_name_of_a_repo_is_called_a_folder(checkpoint: Path) -> None:
    folder = checkpoint.rename(checkpoint.parent / "gpt2")
    done = invoke("inspect", folder)
    assert done.stdout.startswith("the folder gpt2: ")
    assert json.loads(invoke("inspect", folder, "--json").stdout)["kind"] == "folder"
