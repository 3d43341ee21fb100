"""What is too large for the page is counted in a process of its own, and whatever that does ends in counts or a refusal."""

import io
import json
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from sharding import job
from sharding.core.errors import SourceError
from sharding.desk import overview
from sharding.desk.overview import OVERVIEW_BYTES, Overview, Question, ask_overview
from sharding.report.report import summarize_source
from tests.conftest import random_tensors, write_checkpoint
from tests.desk.actors import is_gone, until
from tests.desk.conftest import ALICE, BOB
from tests.hubs import push
from tests.inhouse import InHouse

QUESTION = ("http://hub/a/b", "fp16", "http://hub/c/d", "http://hub", "hf_secret")


@pytest.fixture
def counter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Let a script of the shell count, in a folder of its own; `answer` is in a file there."""

    def counter(code: str, answer: str = "") -> Path:
        script = tmp_path / "count"
        (tmp_path / "answer").write_text(answer)
        script.write_text(f"#!/bin/sh\ncd '{tmp_path}'\n{code}")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr("sharding.core.environment.sys.executable", str(script))
        return tmp_path

    return counter


@pytest.fixture
def count_here(monkeypatch: pytest.MonkeyPatch) -> Callable[[Question], tuple[int, str]]:
    """Run in this process what counts in one of its own; its bound is noted and not set."""

    def count(question: Question) -> tuple[int, str]:
        bounds: list[object] = []
        written = io.BytesIO()
        text = io.TextIOWrapper(written, write_through=True)
        asked = io.BytesIO(json.dumps(question).encode())
        with monkeypatch.context() as context:
            context.setattr(sys, "stdin", SimpleNamespace(buffer=asked))
            context.setattr(sys, "stdout", text)
            context.setattr("sharding.desk.overview.resource.setrlimit", lambda *given: bounds.append(given[1]))
            status = overview.main()
        assert bounds == [(OVERVIEW_BYTES, OVERVIEW_BYTES)]
        return status, written.getvalue().decode()

    return count


def test_the_counts_are_those_of_the_headers_as_who_asks_may_read_them(
    hub: InHouse, small: str, tmp_path: Path, count_here: Callable[[Question], tuple[int, str]],
    counter: Callable[..., Path],
) -> None:  # fmt: skip
    folder = write_checkpoint(tmp_path / "in", {"model.safetensors": random_tensors(3)}, False)
    hidden = push(hub, folder, "alice/hidden", private=True)
    for source, token in ((small, None), (hidden, ALICE)):
        status, answer = count_here((f"{hub.address}/{source}", "", "", hub.address, token))
        counter("cat answer", answer)
        found = ask_overview(QUESTION)
        assert status == 0
        assert found.source == summarize_source(job.inspect(source, endpoint=hub.address, token=token))
        assert found.picture.startswith("<svg") and source in found.picture
    status, answer = count_here((f"{hub.address}/{hidden}", "", "", hub.address, BOB))
    counter(f"cat answer; exit {status}", answer)
    with pytest.raises(SourceError) as refusal:
        ask_overview(QUESTION)
    with pytest.raises(SourceError) as usual:
        job.inspect(hidden, endpoint=hub.address, token=BOB)
    assert refusal.value.document() == usual.value.document()


def test_who_counts_is_told_the_question_and_no_login_that_others_could_see(
    counter: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_of_the_space")
    place = counter("echo $$ > pid; printf '%s\\n' \"$@\" > arguments; export -p > environment; cat > question; exit 1")
    with pytest.raises(SourceError):
        ask_overview(QUESTION)
    assert int((place / "pid").read_text()) != os.getpid()
    assert (place / "arguments").read_text().split() == ["-P", "-m", "sharding.desk.overview"]
    environment = (place / "environment").read_text()
    assert "hf_secret" not in environment and "hf_of_the_space" not in environment
    assert json.loads((place / "question").read_text()) == [*QUESTION]


@pytest.mark.parametrize(
    "code",
    [
        "echo $$ > pid; exec sleep 600",
        *("echo '{'", "echo '{}'", "echo 'null'", "", "printf '\\377'", "head -c 5000 /dev/zero"),  # no counts
        *("echo 'Traceback' >&2; exit 1", "kill -9 $$"),  # out of memory
        *("exit 3", "echo 'It is broken.'; exit 3"),  # an error without words, and one that is no JSON
    ],
)
def test_counting_that_fails_or_takes_too_long_ends_in_a_refusal(
    code: str, counter: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharding.desk.overview.OVERVIEW_SECONDS", 0.3 if "sleep" in code else 30)
    monkeypatch.setattr("sharding.desk.overview.MAX_OVERVIEW_BYTES", 4000)
    place = counter(code)
    with pytest.raises(SourceError) as refusal:
        ask_overview(QUESTION)
    assert refusal.value.message == "Counting the tensors of this checkpoint takes too long here."
    assert "shard-my-repo" in refusal.value.hint
    if "sleep" in code:
        pid = place / "pid"  # which there may have been no time to write
        until(lambda: not pid.exists() or is_gone(int(pid.read_text() or 0)))


def test_an_answer_has_a_bound(
    counter: Callable[..., Path], hub: InHouse, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Overview(summarize_source(job.inspect(small, endpoint=hub.address)), "<svg>")
    text = overview._ANSWER.dump_json(found).decode()
    counter("cat answer", text)
    monkeypatch.setattr("sharding.desk.overview.MAX_OVERVIEW_BYTES", len(text))
    assert ask_overview(QUESTION) == found
    monkeypatch.setattr("sharding.desk.overview.MAX_OVERVIEW_BYTES", len(text) - 1)
    with pytest.raises(SourceError, match="takes too long here"):
        ask_overview(QUESTION)
