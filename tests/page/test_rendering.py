"""What the page shows of values, without a browser."""

import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any, get_args
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharding.core.options import Options, Order, TargetDtype
from sharding.core.values import Checkpoint, FileEntry, Finding, RepoRef, TensorEntry
from sharding.desk.history import History, status_of
from sharding.desk.jobs import JobRecord, JobRequest
from sharding.page import panels
from sharding.page.choices import filled_in, options_in
from sharding.page.file_table import MOST_BARS, MOST_ROWS, files_of_plan, files_of_source
from sharding.page.form import Form
from sharding.page.links import SIZES, Wish, query_of, read_wish, source_of
from sharding.page.render import MOST_NAMED
from sharding.planning.plan import plan_shards

EVIL = "<img src=x onerror=alert(1)>\"'&"


class Tags(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def checkpoint(files: dict[str, int], name: str = "w") -> Checkpoint:
    """One tensor of so many bytes in each file."""
    tensors = tuple(
        TensorEntry(f"{name}{n}", "U8", (size,), file, 0, size) for n, (file, size) in enumerate(files.items())
    )
    entries = tuple(FileEntry(file, size) for file, size in files.items())
    return Checkpoint(RepoRef("hub", "me/it", "0" * 40), tensors, (), entries, (), (), architecture=EVIL)


def test_names_from_a_repo_are_never_markup() -> None:
    source = checkpoint({f"{EVIL}.safetensors": 10, "b.safetensors": 10}, EVIL)
    plan = plan_shards(source.tensors, Options(10))
    from sharding.storage.hub_lookup import SourceCard

    card = SourceCard(EVIL, "0" * 40, "http://hub/me/it", EVIL, False, False)
    for html in (
        panels.plan_panel(source, plan),
        panels.facts_panel(source, card),
        panels.message(EVIL, EVIL, "error"),
        panels.log_panel([EVIL]),
    ):
        tags = Tags(html)
        assert "img" not in tags.seen
        assert EVIL in tags.text or html.count("&lt;img") > 0


def test_an_address_in_a_hint_becomes_a_link() -> None:
    html = panels.message("It is gated.", "Accept its terms on http://hub/me/it, then go on.")
    assert '<a href="http://hub/me/it"' in html


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=2000))
def test_picture_and_table_are_bounded_and_lose_no_byte(sizes: list[int]) -> None:
    source = checkpoint({f"f{n}.safetensors": size for n, size in enumerate(sizes)})
    files = files_of_source(source)
    assert len(files.rows) <= MOST_ROWS
    assert len(files.bars) <= MOST_BARS
    assert sum(bar.bytes for bar in files.bars) == files.bytes == sum(sizes)
    assert files.count == files.tensors == len(sizes)


def test_a_bar_shows_which_of_todays_files_its_bytes_come_from() -> None:
    source = checkpoint({"a.safetensors": 30, "b.safetensors": 20, "c.safetensors": 50})
    files = files_of_plan(plan_shards(source.tensors, Options(50)), source)
    assert [row.origins for row in files.rows] == [((0, 30), (1, 20)), ((2, 50),)]


OPTIONS = st.builds(
    Options,
    max_shard_size=st.sampled_from([*SIZES, "1.5GB", "1GiB", "300kB"]),
    strategy=st.sampled_from(["size", "blocks", "stages:1", "stages:12"]),
    order=st.sampled_from(get_args(Order)),
    dtype=st.sampled_from(get_args(TargetDtype)),
    variant=st.sampled_from(["", "fp16", "non_ema"]),
    allow_overflow=st.booleans(),
)


@given(st.builds(Wish, repo=st.just("me/it"), revision=st.sampled_from(["", "v1"]), options=OPTIONS))
def test_a_link_says_what_was_chosen(wish: Wish) -> None:
    assert read_wish(dict(parse_qsl(query_of(wish)[1:]))) == wish


@given(OPTIONS)
def test_fields_that_were_filled_in_ask_for_the_same_again(options: Options) -> None:
    form: Any = SimpleNamespace(**{name: name for name in Form.__slots__})
    shown = {field: getattr(value, "value", value) for field, value in filled_in(form, options).items()}
    assert options_in(form, shown) == options


@given(
    st.dictionaries(st.sampled_from(["repo", "revision", "job", "result", "size"]), st.text()),
    st.dictionaries(st.sampled_from(["order", "strategy", "dtype", "variant", "allow_overflow"]), st.text()),
)
def test_any_link_at_all_can_be_read(place: dict[str, str], choices: dict[str, str]) -> None:
    wish = read_wish(place | choices)
    assert wish.options.max_shard_bytes > 0
    assert all(len(text) <= 300 for text in (wish.repo, wish.job, wish.result))


def test_a_plan_shows_its_stages() -> None:
    tensors = tuple(TensorEntry(f"layers.{n}.{EVIL}", "U8", (10,), "f", 10 * n, 10 * n + 10) for n in range(4))
    source = replace(checkpoint({"f": 40}), tensors=tensors)
    html = panels.plan_panel(source, plan_shards(tensors, Options(10, strategy="stages:2")))
    assert "Stages of a pipeline" in html and "layers.2 to layers.3" in html
    assert "model-00003-of-00004.safetensors to model-00004-of-00004.safetensors" in html
    assert "img" not in Tags(html).seen
    assert "Stages" not in panels.plan_panel(source, plan_shards(tensors, Options(10)))


def test_a_job_that_failed_leads_back_to_all_that_was_chosen() -> None:
    options = Options("1GB", "stages:3", "stored", "fp16", "ema", allow_overflow=True)
    record = JobRecord("x", "me", JobRequest("me/it@v1", "me/copy", options), 1, 0.0, "failed")  # type: ignore[arg-type]
    html = panels.job_panel(status_of(record, History()), "http://hub/me/it")
    (link,) = re.findall('href="([?][^"]*)"', html)
    wish = read_wish(dict(parse_qsl(unescape(link)[1:])))
    assert wish == Wish("me/it", options=options)  # type: ignore[arg-type]
    assert "variant ema" in Tags(html).text


def test_what_is_pasted_with_a_revision_keeps_it() -> None:
    assert source_of("me/it", "v2") == "me/it@v2"
    assert source_of("me/it@v1", "v2") == "me/it@v1"
    assert source_of("https://hf.co/me/it/tree/v1", "v2") == "https://hf.co/me/it/tree/v1"
    assert source_of(None, None) == ""


def test_findings_are_told_in_their_own_words() -> None:
    from sharding.desk.forecast import Forecast

    found = Finding("warning", "x", "One tensor is large.", "Choose a larger size.")
    html = panels.forecast_panel(Forecast(75.0, True, 10**8, 0, "As measured."), [found])
    text = " ".join(Tags(html).text.split())
    assert "at least 1 min 15 s" in text
    assert "100.0 MB" in text
    assert "One tensor is large. Choose a larger size." in text


def test_of_three_thousand_remarks_a_dozen_is_listed_and_the_rest_counted() -> None:
    from sharding.desk.forecast import Forecast

    found = [Finding("warning", "x", f"Remark {number}.") for number in range(3001)]
    html = panels.forecast_panel(Forecast(75.0, True, 10**8, 0, "As measured."), found)
    assert html.count("<li") == MOST_NAMED + 1
    assert f"{3001 - MOST_NAMED:,} more remarks" in Tags(html).text
    assert len(html) < 10_000


def test_a_terminal_counts_what_it_does_not_list(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    from sharding.cli.terminal import Terminal

    with Terminal(Console(), Console(soft_wrap=True)) as terminal:
        terminal.findings([Finding("warning", "x", f"Remark {number}.") for number in range(3001)])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 60
    shown = sum("Remark" in line for line in lines)
    assert any(f"and {3001 - shown:,} more such remarks" in line for line in lines)
