"""GGUF models are cut, merged and copied: in folders and between Hubs, with proof, and nothing half-made is shown."""

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from sharding import job
from sharding.core.options import Options
from tests.folders import compared, finish, reshard, staged, until_shard
from tests.ggufs import MODEL, Info, files, gguf, key, layers, model
from tests.hubs import TOKEN, download, hub_over_http, shard
from tests.inhouse import InHouse
from tests.promises import promise

ONE = "single-file"
hub = hub_over_http
_LONG = key("vocabulary", ["x" * 999] * 5000)  # of 5 MB
_SPLIT = [key("split.no", 0, 2), key("split.tensors.count", 8, 5), key("split.count", 0, 2)]


@promise("docs/formats.md#gguf")
def test_a_model_in_parts_becomes_one_file_and_the_same_parts_again(tmp_path: Path) -> None:
    source = model(tmp_path / "source")
    reshard(source, tmp_path / "parts", "10kB")
    names = list(files(tmp_path / "parts"))
    assert len(names) > 3 and sorted(names)[0] == f"small-Q4_K_M-00001-of-{len(names):05d}.gguf"
    reshard(tmp_path / "parts", tmp_path / "merged", ONE)
    assert files(tmp_path / "merged") == {"small-Q4_K_M.gguf": gguf(layers(), [*MODEL, *_SPLIT])}
    reshard(tmp_path / "merged", tmp_path / "again", "10kB")
    assert files(tmp_path / "again") == files(tmp_path / "parts")
    reshard(tmp_path / "parts", tmp_path / "fewer", "25kB")
    reshard(tmp_path / "merged", tmp_path / "fewer too", "25kB")
    assert files(tmp_path / "fewer") == files(tmp_path / "fewer too") != files(tmp_path / "parts")
    assert (tmp_path / "fewer/LICENSE").read_text() == "MIT"


@pytest.mark.parametrize(
    "form", [{"version": 2}, {"filler": 7}, {"keys": [*MODEL, *_SPLIT]}, {"keys": [*MODEL, _LONG]}]
)
def test_one_file_that_stays_one_keeps_every_byte(tmp_path: Path, form: dict[str, object]) -> None:
    source = model(tmp_path / "source", **form)
    reshard(source, tmp_path / "copy", "1GB")
    assert files(tmp_path / "copy") == files(source)
    path = next(source.glob("*.gguf"))
    path.write_bytes(path.read_bytes()[: -(-20 % 32)])  # without the padding at its end
    reshard(source, tmp_path / "shorter", ONE)
    assert files(tmp_path / "shorter") == files(source)


@pytest.mark.parametrize("alignment", [8, 64, 256])
def test_another_alignment_holds_in_every_file(tmp_path: Path, alignment: int) -> None:
    keys = [*MODEL, key("general.alignment", alignment)]
    source = model(tmp_path / "source", keys=keys, alignment=alignment)
    report = reshard(source, tmp_path / "parts", "10kB")
    assert "unlike-gguf-split" in {finding.code for finding in report.plan.findings}
    reshard(tmp_path / "parts", tmp_path / "merged", ONE)
    assert files(tmp_path / "merged") == {
        "small-Q4_K_M.gguf": gguf(layers(), [*keys, *_SPLIT], alignment=alignment),
    }


def test_dimensions_and_texts_that_gguf_split_loses_are_kept(tmp_path: Path) -> None:
    odd = [Info("w", (5, 1)), Info("scalar", ()), Info("none", (0, 3)), Info("v", (2,))]
    words = (b"words", 8, b"\3\0\0\0\0\0\0\0a\0b")
    source = model(tmp_path / "source")
    (source / "small-Q4_K_M.gguf").write_bytes(gguf(odd, [words]))
    report = reshard(source, tmp_path / "parts", "1B")
    (finding,) = [one for one in report.plan.findings if one.code == "unlike-gguf-split"]
    assert "NUL" in finding.message and "dimensions" in finding.message
    reshard(tmp_path / "parts", tmp_path / "merged", ONE)
    merged = [key("split.no", 0, 2), key("split.tensors.count", 4, 5), key("split.count", 0, 2)]
    assert files(tmp_path / "merged") == {"small-Q4_K_M.gguf": gguf(odd, [words, *merged])}


def test_a_glob_takes_several_models_in_one_job(tmp_path: Path) -> None:
    source = model(model(tmp_path / "source", "q/m-Q8_0"), "m-Q4_0")
    report = reshard(source, tmp_path / "out", "25kB", variant="*Q*")
    assert {name.partition("-0")[0] for name in files(tmp_path / "out")} == {"q/m-Q8_0", "m-Q4_0"}
    assert len(report.plan.weight_map) == 2 * len(layers())
    assert compared(source, tmp_path / "out", variant="*Q*").identical


def test_verify_compares_tensors_and_all_keys_but_those_that_number_files(tmp_path: Path) -> None:
    source = model(tmp_path / "source")
    reshard(source, tmp_path / "parts", "10kB")

    def mismatches(copy: Path) -> set[str]:
        return {mismatch.tensor for mismatch in compared(source, copy).mismatches}

    assert not mismatches(tmp_path / "parts")
    other = [MODEL[0], key("n", 8), key("new", 1)]
    assert mismatches(model(tmp_path / "other", keys=other)) == {"n", "new", "tokenizer.ggml.tokens"}


@promise("docs/formats.md#gguf")
def test_from_hub_to_hub_nothing_touches_the_disk_and_the_sources_hashes_are_met(hub: InHouse, tmp_path: Path) -> None:
    reshard(model(tmp_path / "source", "q/small-Q4_K_M"), tmp_path / "parts", "10kB")
    report = shard(hub, in_lfs(hub, tmp_path / "parts", "alice/parts"), "alice/merged", ONE)
    assert report.resources.disk_bytes_written == 0 and report.verification.identical
    assert report.verification.evidence.rebuilt == len(files(tmp_path / "parts")) > 1
    copy = download(hub, "alice/merged", tmp_path / "merged")
    assert files(copy) == {"q/small-Q4_K_M.gguf": gguf(layers(), [*MODEL, *_SPLIT])}
    card = (copy / "README.md").read_text()
    assert "ollama pull hf.co/alice/merged:Q4_K_M" in card and "llama-server -hf alice/merged:Q4_K_M" in card
    assert shard(hub, "alice/merged", "alice/again", "10kB").verification.evidence.rebuilt == 1
    assert "ollama pull" not in (download(hub, "alice/again", tmp_path / "again") / "README.md").read_text()
    assert compared("alice/parts", "alice/merged", endpoint=hub.address, token=TOKEN).identical


def in_lfs(hub: InHouse, folder: Path, name: str) -> str:
    """Put a model on the Hub as their repos are: even a small file is in LFS."""
    rule = b"*.gguf filter=lfs diff=lfs merge=lfs -text\n"
    hub.api().create_repo(name)
    hub.api().upload_file(path_or_fileobj=rule, path_in_repo=".gitattributes", repo_id=name)
    hub.api().upload_folder(repo_id=name, folder_path=folder)
    return name


def test_what_lies_between_tensors_is_no_reason_to_doubt_a_file(hub: InHouse, tmp_path: Path) -> None:
    source = in_lfs(hub, model(tmp_path / "source", filler=9), "alice/garbage")
    report = shard(hub, source, "alice/garbage-parts", "10kB")
    assert report.verification.identical and report.verification.evidence.rebuilt == 1
    assert files(download(hub, "alice/garbage-parts", tmp_path / "parts")) == _cut(model(tmp_path / "sound"), tmp_path)


def _cut(source: Path, folder: Path) -> dict[str, bytes]:
    reshard(source, folder / "cut", "10kB")
    return files(folder / "cut")


@promise("docs/formats.md#gguf")
def test_a_job_that_is_interrupted_goes_on_and_shows_no_file_before(tmp_path: Path) -> None:
    source, out = model(tmp_path / "source"), tmp_path / "out"
    until_shard(job.shard(str(source), str(out), "10kB"), 2, stop=True)
    assert not files(out)
    assert job.discard(str(out)).found and not any(out.iterdir())
    until_shard(job.shard(str(source), str(out), "10kB"), 2, stop=True)
    report = finish(job.shard(str(source), str(out), "10kB"))
    assert report.verification.evidence.kept and files(out) == _cut(source, tmp_path)
    assert not staged(out).exists()


def test_inspect_and_plan_speak_to_programs(tmp_path: Path, run: Callable[..., CompletedProcess[str]]) -> None:
    source = model(model(tmp_path / "source", "m-Q4_0"), "m-Q8_0")
    reshard(source, tmp_path / "out", "10kB", variant="Q4_0")
    (of_parts,) = json.loads(run("inspect", tmp_path / "out", "--json").stdout)["models"]
    assert of_parts["name"] == "m-Q4_0" and len(of_parts["files"]) > 1 and of_parts["tensors"] == len(layers())
    assert of_parts["dtypes"] == {"Q8_0": 8160, "Q4_K": 38880, "F32": 20}
    assert [one["variant"] for one in json.loads(run("inspect", source, "--json").stdout)["models"]] == ["Q4_0", "Q8_0"]
    refused = run("shard", source, tmp_path / "no", "--json")
    assert refused.returncode == 3 and "Q8_0, Q4_0" in json.loads(refused.stdout)["error"]["hint"]
    _, plan = job.plan(str(source), Options("10kB", variant="Q8_0", format="gguf"))
    assert [shard.file for shard in plan.shards][-1].startswith("m-Q8_0-")
