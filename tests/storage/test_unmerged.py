"""A commit that no branch and no tag of a repo leads to is not that repo's: anybody may have pushed it."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from sharding import job
from sharding.cli.commands import app
from tests import models
from tests.conftest import random_tensors, write_checkpoint
from tests.folders import write_ranks
from tests.hubs import TOKEN, download, propose, push, shard
from tests.inhouse import InHouse, hub_in_house
from tests.lora import Case, edited, save_adapter, save_base
from tests.promises import promise

FAMOUS = "alice/famous"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InHouse]:
    with hub_in_house(tmp_path / "hub") as hub:
        folder = write_checkpoint(tmp_path / "in", {"model.safetensors": random_tensors()}, False)
        (folder / "README.md").write_text("---\nlicense: mit\nbase_model: alice/older\n---\nThe model.\n")
        push(hub, folder, FAMOUS)
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield hub


def proposed(hub: InHouse, folder: Path) -> str:
    """Open a pull request with other weights; return its commit."""
    other = write_checkpoint(folder, {"model.safetensors": random_tensors(seed=7)}, False)
    (other / "README.md").write_text("---\nlicense: mit\nbase_model: meta/llama\nbase_model_relation: quantized\n---\n")
    return propose(hub, other, FAMOUS)


def command(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, done.stdout if "--json" in words else done.output


def findings(hub: InHouse, source: str, **more: Any) -> dict[str, str]:
    checkpoint = job.inspect(source, endpoint=hub.address, token=TOKEN, **more)
    return {finding.code: finding.message for finding in checkpoint.findings}


@pytest.mark.parametrize("named", ["commit", "short", "pull request"])
def test_a_commit_of_a_pull_request_is_named_so_by_every_command(hub: InHouse, tmp_path: Path, named: str) -> None:
    commit = proposed(hub, tmp_path / "other")
    source = f"{FAMOUS}@{ {'commit': commit, 'short': commit[:9], 'pull request': 'refs/pr/1'}[named] }"
    said = f"No known branch or tag of {FAMOUS} contains commit {commit[:12]}"
    for words in (["inspect", source], ["plan", source], ["shard", source, str(tmp_path / "out"), "-s", "60kB"]):
        status, told = command(*words)
        assert (status, said in told) == (0, True), told
    status, told = command("inspect", source, "--json")
    assert [one["level"] for one in json.loads(told)["findings"] if one["code"] == "unreached-commit"] == ["warning"]
    report = json.loads((tmp_path / "out/sharding_report.json").read_text())
    assert report["verification"]["unreached"] == [f"{FAMOUS}@{commit}"]
    assert "unreached-commit" in [one["code"] for one in report["plan"]["findings"]]
    status, told = command("verify", source, str(tmp_path / "out"))
    assert status == 0 and said in told
    status, told = command("verify", source, str(tmp_path / "out"), "--json")
    assert json.loads(told)["unreached"] == [f"{FAMOUS}@{commit}"]


@promise("docs/security.md#get-weights-of-an-unmerged-pull")
def test_its_card_says_so_and_names_no_base_model(hub: InHouse, tmp_path: Path) -> None:
    commit = proposed(hub, tmp_path / "other")
    shard(hub, f"{FAMOUS}@refs/pr/1", "alice/copy")
    card = (download(hub, "alice/copy", tmp_path / "copy") / "README.md").read_text()
    metadata = yaml.safe_load(card.split("---\n")[1])
    assert metadata["license"] == "mit" and not {"base_model", "base_model_relation"} & metadata.keys()
    assert f"No known branch or tag of {FAMOUS} contains commit {commit[:12]}" in card
    shard(hub, FAMOUS, "alice/other")
    card = (download(hub, "alice/other", tmp_path / "other-copy") / "README.md").read_text()
    assert yaml.safe_load(card.split("---\n")[1])["base_model"] == FAMOUS and "No branch" not in card


def tagged(hub: InHouse) -> str:
    hub.api().create_tag(FAMOUS, tag="v1")
    return "v1"


def branched(hub: InHouse) -> str:
    hub.api().create_branch(FAMOUS, branch="v2")
    put(hub, "one", "v2"), put(hub, "two", "v2")
    return str(hub.api().list_repo_commits(FAMOUS, revision="v2")[1].commit_id)


def put(hub: InHouse, text: str, revision: str = "main") -> str:
    upload = hub.api().upload_file
    return str(upload(path_or_fileobj=text.encode(), path_in_repo="x", repo_id=FAMOUS, revision=revision).oid)


def merged(hub: InHouse) -> str:
    first = put(hub, "one")
    put(hub, "two")
    return first


REACHED: dict[str, Callable[[InHouse], str | None]] = {
    "nothing": lambda hub: None,
    "main": lambda hub: "main",
    "a branch": lambda hub: branched(hub) and "v2",
    "a tag": tagged,
    "a ref": lambda hub: f"refs/tags/{tagged(hub)}",
    "the head of main": lambda hub: str(hub.api().model_info(FAMOUS).sha),
    "a commit before": merged,
    "a commit of a branch": branched,
}


@pytest.mark.parametrize("revision", REACHED)
def test_what_a_branch_or_a_tag_leads_to_is_the_repos_own(hub: InHouse, revision: str) -> None:
    name = REACHED[revision](hub)
    hub.log.clear()
    assert "unreached-commit" not in findings(hub, f"{FAMOUS}@{name}" if name else FAMOUS)
    assert hub.asked("/refs$") == (revision not in ("nothing", "main"))
    assert (hub.asked("/commits/") > 0) == (revision in ("a commit before", "a commit of a branch"))


@pytest.mark.parametrize("how", ["merged", "tagged"])
def test_once_it_is_merged_it_counts(hub: InHouse, tmp_path: Path, how: str) -> None:
    commit = proposed(hub, tmp_path / "other")
    assert "unreached-commit" in findings(hub, f"{FAMOUS}@{commit}")
    if how == "merged":
        hub.api().create_branch(FAMOUS, branch="taken", revision=commit)
    else:
        hub.api().create_tag(FAMOUS, tag="taken", revision=commit)
    assert "unreached-commit" not in findings(hub, f"{FAMOUS}@{commit}")


def test_a_branch_that_is_gone_leads_nowhere(hub: InHouse) -> None:
    commit = branched(hub)
    hub.api().delete_branch(FAMOUS, branch="v2")
    assert "unreached-commit" in findings(hub, f"{FAMOUS}@{commit}")


def test_beyond_the_bound_a_commit_is_not_known_to_be_reached(hub: InHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    old = merged(hub)
    monkeypatch.setattr("sharding.storage.hub.lookup.REACHED_COMMITS", 1)
    assert "contains commit" in findings(hub, f"{FAMOUS}@{old}")["unreached-commit"]


@pytest.mark.parametrize("bound", ["REACHED_COMMITS", "REACHED_REFS"])
def test_beyond_the_bound_no_further_branch_is_asked_for(
    hub: InHouse, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    commit = branched(hub)
    for n in range(5):
        hub.api().create_branch(FAMOUS, branch=f"a{n}")
    monkeypatch.setattr(f"sharding.storage.hub.lookup.{bound}", 1)
    hub.log.clear()
    assert "unreached-commit" in findings(hub, f"{FAMOUS}@{commit}")
    assert hub.asked("/commits/") <= 2


@pytest.mark.usefixtures("classic_here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_the_classic_engine_says_so_too(hub: InHouse, tmp_path: Path) -> None:
    push(hub, models.save("llama", tmp_path / "llama"), "alice/llama")
    (tmp_path / "llama/README.md").write_text("---\nbase_model: meta/llama\n---\n")
    place = f"alice/llama@{propose(hub, tmp_path / 'llama', 'alice/llama')}"
    shard(hub, place, "alice/copy", job.Options("60kB"), engine="classic")
    folder = download(hub, "alice/copy", tmp_path / "copy")
    report = json.loads((folder / "sharding_report.json").read_text())
    assert report["verification"]["unreached"] == [place]
    assert "unreached-commit" in [one["code"] for one in report["plan"]["findings"]]
    assert not re.search("^base_model:", (folder / "README.md").read_text(), re.MULTILINE)


def test_where_a_hub_cannot_say_it_is_not_known_to_be_reached(hub: InHouse) -> None:
    old = merged(hub)
    for missing in ("/refs", "/commits/"):
        with hub.failing(f"gone@GET .*{missing}"):
            assert "unreached-commit" in findings(hub, f"{FAMOUS}@{old}")


def test_a_thousand_commits_are_asked_for_at_once(hub: InHouse) -> None:
    old = merged(hub)
    for n in range(60):
        put(hub, str(n))
    hub.log.clear()
    assert "unreached-commit" not in findings(hub, f"{FAMOUS}@{old}")
    assert hub.asked("/commits/") == 1


def test_a_base_of_a_pull_request_is_named_so_too(hub: InHouse, tmp_path: Path) -> None:
    commit = proposed(hub, tmp_path / "other")
    run = write_ranks(tmp_path / "run")
    base = f"{FAMOUS}@{commit}"
    assert "unreached-commit" in findings(hub, str(run), base=base)
    shard(hub, push(hub, run, "alice/run"), "alice/copy", job.Options("60kB", base=base))
    folder = download(hub, "alice/copy", tmp_path / "copy")
    assert json.loads((folder / "sharding_report.json").read_text())["verification"]["unreached"] == [base]
    assert not re.search("^base_model:", (folder / "README.md").read_text(), re.MULTILINE)
    assert f"No known branch or tag of {FAMOUS}" in (folder / "README.md").read_text()


@pytest.mark.filterwarnings("ignore")
def test_an_adapter_of_a_pull_request_is_named_so_too(hub: InHouse, tmp_path: Path) -> None:
    base = save_base(Case(), tmp_path / "base")
    push(hub, base, "alice/base")
    lora = save_adapter(Case(), base, tmp_path / "lora")
    push(hub, lora, "alice/lora")
    edited(lambda held: {name: tensor * 2 for name, tensor in held.items()})(lora)
    adapter = f"alice/lora@{propose(hub, lora, 'alice/lora')}"
    said = "No known branch or tag of alice/lora contains commit"
    checkpoint = job.plan("alice/base", job.Options("60kB", adapter=adapter), endpoint=hub.address, token=TOKEN)[0]
    assert [one.message[: len(said)] for one in checkpoint.findings if one.code == "unreached-commit"] == [said]
    shard(hub, "alice/base", "alice/copy", job.Options("60kB", adapter=adapter))
    folder = download(hub, "alice/copy", tmp_path / "copy")
    assert json.loads((folder / "sharding_report.json").read_text())["verification"]["unreached"] == [adapter]
    card = (folder / "README.md").read_text()
    assert said in card and not re.search("^base_model:", card, re.MULTILINE)
    status, told = command("verify", "alice/base", "alice/copy", "--adapter", adapter)
    assert status == 0 and said in told
