"""What is said of a copy is what was proved of it, wherever it is said."""

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from sharding import job
from sharding.cli.terminal import Terminal
from sharding.core.values import FileEntry
from sharding.desk.jobs import History
from sharding.page.result_panels import Places, result_panel
from sharding.report.report import event_json
from sharding.report.schema import Report
from sharding.report.snippets import download_snippet
from sharding.storage.hub import source as hub_source
from sharding.verify.trust import Trust
from tests.hubs import TOKEN, download, shard
from tests.inhouse import InHouse
from tests.scenarios.conftest import SOURCE


@pytest.mark.parametrize("states", [True, False])
@pytest.mark.parametrize("choices", [{}, {"dtype": "bf16"}])
def test_where_a_hub_states_no_hash_nobody_says_more_than_that_it_matches_what_was_read(
    states: bool, choices: dict[str, str], hub: InHouse, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = hub_source.listed_files

    def without_hashes(items: Iterable[object]) -> Iterator[FileEntry]:
        for file in listed(items):
            yield file if states else replace(file, sha256=None, git_sha1=None)

    monkeypatch.setattr(hub_source, "listed_files", without_hashes)
    options = job.Options("60kB", **choices)  # type: ignore[arg-type]
    events = list(job.shard(SOURCE, name, options, endpoint=hub.address, token=TOKEN))
    report = events[-1]
    assert isinstance(report, Report) and report.verification.identical
    assert report.verification.unstated == (not states)
    screen = Console(file=StringIO(), width=400)
    terminal = Terminal(screen, screen)
    history = History()
    for event in events:
        terminal.event(event)
        history.take(event_json(event), 0.0)
    assert isinstance(screen.file, StringIO)
    said = {
        "log": "\n".join(history.told.log),
        "page": result_panel(report, Trust("made-here", ()), Places(name, "", "")),
        "terminal": screen.file.getvalue(),
        "card": (download(hub, name, tmp_path / "copy") / "README.md").read_text(),
    }
    weaker = {"log": "Matches what was read", "page": "match what was read", "terminal": "Matches what was read"}
    assert {place: words in said[place] for place, words in weaker.items()} == dict.fromkeys(weaker, not states)
    assert ("Not all files of the original were compared with a hash" in said["card"]) == (not states)
    if not states:
        for place in ("log", "page"):
            assert "bit-identical" not in said[place] and "equal to" not in said[place].lower()


def test_the_download_line_brings_the_commit_that_is_shown(hub: InHouse, name: str) -> None:
    for size, out in (("60kB", name), ("single-file", f"{name}-one")):
        report = shard(hub, SOURCE, out, size)
        commit = hub.api().model_info(out).sha
        lines = download_snippet(report, f"{out}@{commit}")["download"].splitlines()
        words = shlex.split(next(line for line in lines if line.startswith("hf download")))
        assert words[2] == out and words[words.index("--revision") + 1] == commit
