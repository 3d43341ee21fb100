"""A commit that no branch and no tag of a repo leads to is not that repo's: anybody may have pushed it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from sharding import job
from tests import models
from tests.commands import invoke
from tests.conftest import random_tensors, write_checkpoint
from tests.folders import write_ranks
from tests.hubs import TOKEN, download, propose, push, shard
from tests.inhouse import InHouse
from tests.lora import Case, edited, save_adapter, save_base
from tests.promises import promise


@pytest.fixture
def famous(hub: InHouse, own: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A repo on the Hub of whoever gives the commands."""
    hub.put(own, "README.md", b"---\nlicense: mit\nbase_model: alice/older\n---\nThe model.\n")
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    return own


@pytest.fixture
def proposed(hub: InHouse, famous: str, tmp_path: Path) -> str:
    """The commit of a pull request with other weights."""
    other = write_checkpoint(tmp_path / "other", {"model.safetensors": random_tensors(3, 2000, seed=7)}, False)
    (other / "README.md").write_text("---\nlicense: mit\nbase_model: meta/llama\nbase_model_relation: quantized\n---\n")
    return propose(hub, other, famous)


def command(*words: str) -> str:
    """What a command says, which has to succeed."""
    done = invoke(*words)
    assert done.exit_code == 0, done.output
    return done.stdout if "--json" in words else done.output


def findings(hub: InHouse, source: str, **more: Any) -> dict[str, str]:
    checkpoint = job.inspect(source, endpoint=hub.address, token=TOKEN, **more)
    return {finding.code: finding.message for finding in checkpoint.findings}


def assert_told(hub: InHouse, copy: str, folder: Path, place: str) -> None:
    """The report and the card of a copy say that nothing leads to the commit at `place`, and name no base model."""
    copied = download(hub, copy, folder)
    assert json.loads((copied / "sharding_report.json").read_text())["verification"]["unreached"] == [place]
    card, (repo, commit) = (copied / "README.md").read_text(), place.split("@")
    assert f"No known branch or tag of {repo} contains commit {commit[:12]}" in card
    assert not re.search("^base_model(_relation)?:", card, re.MULTILINE)


@pytest.mark.parametrize("named", ["commit", "short", "pull request"])
def test_a_commit_of_a_pull_request_is_named_so_by_every_command(
    hub: InHouse, famous: str, proposed: str, tmp_path: Path, named: str
) -> None:
    source = f"{famous}@{ {'commit': proposed, 'short': proposed[:9], 'pull request': 'refs/pr/1'}[named] }"
    said = f"No known branch or tag of {famous} contains commit {proposed[:12]}"
    assert said in command("inspect", source)
    if named != "commit":
        return
    assert said in command("plan", source)
    assert said in command("shard", source, str(tmp_path / "out"), "-s", "9kB")
    told = json.loads(command("inspect", source, "--json"))["findings"]
    assert [one["level"] for one in told if one["code"] == "unreached-commit"] == ["warning"]
    report = json.loads((tmp_path / "out/sharding_report.json").read_text())
    assert report["verification"]["unreached"] == [f"{famous}@{proposed}"]
    assert "unreached-commit" in [one["code"] for one in report["plan"]["findings"]]
    assert said in command("verify", source, str(tmp_path / "out"))
    assert json.loads(command("verify", source, str(tmp_path / "out"), "--json"))["unreached"] == [
        f"{famous}@{proposed}"
    ]


@promise("docs/security.md#get-weights-of-an-unmerged-pull")
def test_a_card_says_so_and_names_no_base(hub: InHouse, famous: str, proposed: str, name: str, tmp_path: Path) -> None:
    shard(hub, f"{famous}@refs/pr/1", name)
    assert_told(hub, name, tmp_path / "copy", f"{famous}@{proposed}")
    shard(hub, famous, f"{name}-main")
    card = (download(hub, f"{name}-main", tmp_path / "main") / "README.md").read_text()
    metadata = yaml.safe_load(card.split("---\n")[1])
    assert (metadata["license"], metadata["base_model"]) == ("mit", famous) and "No known branch" not in card


def branched(hub: InHouse, repo: str) -> str:
    """A commit of a branch, before its last."""
    hub.api().create_branch(repo, branch="v2")
    first = hub.put(repo, "x", b"one", revision="v2")
    hub.put(repo, "x", b"two", revision="v2")
    return first


def merged(hub: InHouse, repo: str) -> str:
    """A commit of main, before its last."""
    first = hub.put(repo, "x", b"one")
    hub.put(repo, "x", b"two")
    return first


def test_what_a_branch_or_a_tag_leads_to_is_the_repos_own(hub: InHouse, famous: str) -> None:
    hub.api().create_tag(famous, tag="v1")
    before = {merged(hub, famous), branched(hub, famous)}
    heads = {"v2", "v1", "refs/tags/v1", str(hub.api().model_info(famous).sha)}
    for revision in {"", "main"} | heads | before:
        hub.log.clear()
        assert "unreached-commit" not in findings(hub, f"{famous}@{revision}" if revision else famous), revision
        assert hub.asked("/refs$") == (revision not in ("", "main")), revision
        assert (hub.asked("/commits/") > 0) == (revision in before), revision


def test_once_it_is_tagged_it_counts(hub: InHouse, famous: str, proposed: str) -> None:
    assert "unreached-commit" in findings(hub, f"{famous}@{proposed}")
    hub.api().create_tag(famous, tag="taken", revision=proposed)
    assert "unreached-commit" not in findings(hub, f"{famous}@{proposed}")


def test_a_branch_that_is_gone_leads_nowhere(hub: InHouse, famous: str) -> None:
    commit = branched(hub, famous)
    hub.api().delete_branch(famous, branch="v2")
    assert "unreached-commit" in findings(hub, f"{famous}@{commit}")


def test_beyond_the_bound_a_commit_is_not_reached(hub: InHouse, famous: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old = merged(hub, famous)
    monkeypatch.setattr("sharding.storage.hub.lookup.REACHED_COMMITS", 1)
    assert "contains commit" in findings(hub, f"{famous}@{old}")["unreached-commit"]


@pytest.mark.parametrize("bound", ["REACHED_COMMITS", "REACHED_REFS"])
def test_beyond_the_bound_no_further_branch_is_asked_for(
    hub: InHouse, famous: str, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    commit = branched(hub, famous)
    for n in range(5):
        hub.api().create_branch(famous, branch=f"a{n}")
    monkeypatch.setattr(f"sharding.storage.hub.lookup.{bound}", 1)
    hub.log.clear()
    assert "unreached-commit" in findings(hub, f"{famous}@{commit}")
    assert hub.asked("/commits/") <= 2


def test_where_a_hub_cannot_say_it_is_not_known_to_be_reached(hub: InHouse, famous: str) -> None:
    old = merged(hub, famous)
    for missing in ("/refs", "/commits/"):
        with hub.failing(f"gone@GET .*{missing}"):
            assert "unreached-commit" in findings(hub, f"{famous}@{old}")


def test_a_thousand_commits_are_asked_for_at_once(hub: InHouse, famous: str, monkeypatch: pytest.MonkeyPatch) -> None:
    old = merged(hub, famous)
    monkeypatch.setattr("sharding.localhub.revisions._COMMITS", 1)  # as many as come where no number is asked for
    hub.log.clear()
    assert "unreached-commit" not in findings(hub, f"{famous}@{old}")
    assert hub.asked("/commits/") == 1


@pytest.mark.usefixtures("classic_here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_the_classic_engine_says_so_too(hub: InHouse, name: str, tmp_path: Path) -> None:
    push(hub, models.save("llama", tmp_path / "llama"), f"{name}-llama")
    (tmp_path / "llama/README.md").write_text("---\nbase_model: meta/llama\n---\n")
    place = f"{name}-llama@{propose(hub, tmp_path / 'llama', f'{name}-llama')}"
    report = shard(hub, place, name, job.Options("60kB"), engine="classic")
    assert "unreached-commit" in [finding.code for finding in report.plan.findings]
    assert_told(hub, name, tmp_path / "copy", place)


def test_a_base_of_a_pull_request_is_too(hub: InHouse, famous: str, proposed: str, name: str, tmp_path: Path) -> None:
    run, base = write_ranks(tmp_path / "run"), f"{famous}@{proposed}"
    assert "unreached-commit" in findings(hub, str(run), base=base)
    shard(hub, push(hub, run, f"{name}-run"), name, job.Options("60kB", base=base))
    assert_told(hub, name, tmp_path / "copy", base)


@pytest.mark.filterwarnings("ignore")
def test_an_adapter_of_a_pull_request_is_named_so_too(
    hub: InHouse, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    base = push(hub, save_base(Case(), tmp_path / "base"), f"{name}-base")
    lora = save_adapter(Case(), tmp_path / "base", tmp_path / "lora")
    push(hub, lora, f"{name}-lora")
    edited(lambda held: {name: tensor * 2 for name, tensor in held.items()})(lora)
    adapter = f"{name}-lora@{propose(hub, lora, f'{name}-lora')}"
    said = f"No known branch or tag of {name}-lora contains commit"
    report = shard(hub, base, name, job.Options("60kB", adapter=adapter))
    assert [one.message[: len(said)] for one in report.plan.findings if one.code == "unreached-commit"] == [said]
    assert_told(hub, name, tmp_path / "copy", adapter)
    assert said in command("verify", base, name, "--adapter", adapter)
