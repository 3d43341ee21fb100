"""What the page shows of values, without a browser."""

import re
from dataclasses import replace
from functools import cache
from html import unescape
from typing import get_args
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharding.core.errors import Remedy
from sharding.core.options import SINGLE_FILE, Engine, Options, Order, Proving, TargetDtype
from sharding.core.origin import Place
from sharding.core.text import count, format_bytes
from sharding.core.values import Component, Content, FileEntry, Finding
from sharding.desk.forecast import Forecast
from sharding.desk.jobs import JobRecord, JobRequest, Told, status_of
from sharding.drawing.model_map import map_of_plan
from sharding.page import job_panels, panels
from sharding.page.form import Form, size_label
from sharding.page.links import Wish, query_of, read_wish
from sharding.page.render import MOST_NAMED, MOST_ROWS, render
from sharding.page.result_panels import CLAIMED, FITS, READ, STATED, Places, details_panel, result_panel, rung_of
from sharding.planning.devices import DeviceLoad, DevicePlan
from sharding.planning.plan import plan_shards
from sharding.planning.sizes import size_stops
from sharding.verify.trust import Level, Trust
from tests.conftest import in_a_loop
from tests.page.rooms import form
from tests.report.results import FOLDER, LIMIT, MERGE, PIPED, UNDONE, made, of
from tests.report.results import checkpoint as of_a_folder
from tests.tensors import stored_tensor
from tests.test_evil_names import Tags

PLACES = Places("a/b", "http://hub", "")
FORECAST = Forecast(150, 300, 10**8, 0, "As measured.")


def checkpoint(files: dict[str, int]) -> Content:
    """One tensor of so many bytes in each file."""
    tensors = tuple(stored_tensor(f"w{n}", "U8", (files[file],), file, 0, files[file]) for n, file in enumerate(files))
    entries = tuple(FileEntry(file, size) for file, size in files.items())
    return Content(Place("hub", "me/it", "0" * 40), tensors, (), entries, (), ())


def words(html: str) -> str:
    return " ".join(Tags(html).text.split())


def test_an_address_in_a_hint_becomes_a_link() -> None:
    html = panels.message("It is gated.", "Accept its terms on http://hub/me/it, then go on.")
    assert '<a href="http://hub/me/it"' in html


def test_a_table_is_bounded_and_loses_no_byte() -> None:
    for number in (1, MOST_ROWS, MOST_ROWS + 1, 2000):
        source = checkpoint({f"f{n}.safetensors": 1000 + n for n in range(number)})
        html = panels.shards_panel(plan_shards(source.tensors, Options(1)), FORECAST)
        body, foot = html.partition("<tfoot>")[::2]
        assert body.count('<th scope="row">model') == min(number, MOST_ROWS)
        assert ("more file" in body) is (number > MOST_ROWS)
        assert f"and {number - MOST_ROWS:,} more file" in body or number <= MOST_ROWS
        size = format_bytes(sum(1000 + n for n in range(number)))
        total = Tags(foot.partition("</tfoot>")[0]).text
        assert "".join(total.split()) == f"{count(number, 'file')}{size}{number:,}".replace(" ", "")


def test_lists_of_tensors_and_remarks_are_bounded_and_the_rest_counted() -> None:
    source = checkpoint({f"f{n}": 1 for n in range(3000)})
    html = render("tensors", title="f0 to f2999", other="From file", tensors=[(one, "a") for one in source.tensors])
    assert 400 < html.count("<tr") < 500
    assert "and 2,600 more tensors" in Tags(html).text
    html = panels.findings_panel([Finding("warning", "x", f"Remark {number}.") for number in range(3001)])
    assert html.count("<li") == MOST_NAMED + 1 and len(html) < 10_000
    assert f"{3001 - MOST_NAMED:,} more remarks" in Tags(html).text


def test_what_would_change_nothing_is_said_to_and_how_long_anything_else_takes() -> None:
    source = checkpoint({"model-00001-of-00002.safetensors": 10, "model-00002-of-00002.safetensors": 20})
    same, other = (plan_shards(source.tensors, Options(size)) for size in (20, 30))
    text = words(panels.summary_panel(source, same, FORECAST))
    assert "Nothing would change" in text and "Choose another size" in text
    one = checkpoint({"model.safetensors": 30})
    whole = panels.summary_panel(one, plan_shards(one.tensors, Options(20), [Component(is_whole=True)]), FORECAST)
    assert "takes one file, whatever the size" in words(whole)
    cast = replace(source, tensors=tuple(tensor._replace(dtype="I8") for tensor in source.tensors))
    assert "Nothing" not in panels.summary_panel(cast, same, FORECAST)
    for one, said in ((MERGE, "2 of 6 tensors change"), (UNDONE, "Nothing would change")):
        assert said in words(panels.summary_panel(source, replace(same, made=(one,)), FORECAST))
    for ends, time in (((150, 300), "about 2.5 to 5 min"), ((1, 2), "a few seconds"), ((50, 100), "about 50 to 100 s")):
        forecast = replace(FORECAST, lower_seconds=ends[0], upper_seconds=ends[1])
        text = words(panels.summary_panel(source, other, forecast))
        assert f"30 B, 2 → 1 file, largest 30 B · {time} · no disk" in text


@pytest.mark.parametrize(
    ("today", "after", "size", "said"),
    [
        ([6000], [1500, 1500], 2000, "6.0 → 3.0 kB, 1 → 2 files"),
        ([3000, 3000], [3000, 3000], 9000, "6.0 kB, 2 → 1 file"),
        ([900], [1800], 2000, "900 B → 1.8 kB, 1 file"),
        ([1800], [900], 2000, "1.8 kB → 900 B, 1 file"),
        ([10] * 1200, [10] * 1200, 9, "12.0 kB, 1,200 files"),
    ],
)
def test_sizes_and_files_are_told_once_where_they_stay(
    today: list[int], after: list[int], size: int, said: str
) -> None:
    source, made = (
        checkpoint({f"{number}.safetensors": held for number, held in enumerate(of)}) for of in (today, after)
    )
    html = panels.summary_panel(source, plan_shards(made.tensors, Options(size)), FORECAST)
    assert f"<b>{said}</b>" in html


def test_the_slider_stands_at_the_size_and_gives_its_reasons() -> None:
    html = panels.sizes_panel(size_stops(14_500_000_000), "4GB")
    assert "FAT32" in Tags(html).text and 'aria-valuetext="4GB"' in html
    assert re.findall("<span[^>]*>(.*?)</span>", html) == ["200MB", "4GB", "one file"]
    beside = panels.sizes_panel(size_stops(14_500_000_000), "123MB")
    assert 'aria-valuetext="123MB"' in beside and "A download" not in Tags(beside).text


@cache
def laid_out() -> Form:
    return in_a_loop(form())  # type: ignore[no-any-return]


WHOLE = st.builds(Options, max_shard_size=st.just(SINGLE_FILE), order=st.sampled_from(get_args(Order)))
OPTIONS = WHOLE | st.builds(
    Options,
    max_shard_size=st.sampled_from(["200MB", "5GB", "1.5GB", "1GiB", "300kB"]),
    strategy=st.sampled_from(["size", "blocks", "pp:2", "pp:12"]),
    order=st.sampled_from(get_args(Order)),
    dtype=st.sampled_from(get_args(TargetDtype)),
    variant=st.sampled_from(["", "fp16", "non_ema"]),
    allow_overflow=st.booleans(),
    dequantize=st.booleans(),
)


WISHES = st.one_of(
    st.builds(
        Wish,
        repo=st.sampled_from(["me/it", "me/it@v1"]),
        options=OPTIONS,
        engine=st.sampled_from(get_args(Engine)),
        proof=st.sampled_from(get_args(Proving)),
    ),
    st.builds(Wish, compare=st.sampled_from(["", "a/b@v1"]), against=st.just("c/d"), sized=st.just(False)),
)


@given(WISHES)
def test_a_link_says_what_was_chosen(wish: Wish) -> None:
    assert read_wish(dict(parse_qsl(query_of(wish)[1:]))) == wish


@given(OPTIONS)
def test_fields_that_were_filled_in_ask_for_the_same_again(options: Options) -> None:
    form = laid_out()
    shown = {field: getattr(value, "value", value) for field, value in form.filled_in(options).items()}
    assert form.options_in(shown | {form.size: size_label(str(options.max_shard_size))}) == options


@given(
    st.dictionaries(st.sampled_from(["repo", "revision", "job", "result", "size", "proof"]), st.text()),
    st.dictionaries(
        st.sampled_from(["order", "strategy", "dtype", "variant", "allow_overflow", "dequantize"]), st.text()
    ),
)
def test_any_link_at_all_can_be_read(place: dict[str, str], choices: dict[str, str]) -> None:
    wish = read_wish(place | choices)
    assert wish.options.max_shard_bytes > 0
    assert all(len(text) <= 300 for text in (wish.repo, wish.job, wish.result))


def test_a_single_file_is_written_in_words() -> None:
    form = laid_out()
    assert size_label(SINGLE_FILE) == "one file"
    assert {form.size_in({form.size: words}) for words in ("One file", "one file ", "1 file")} == {SINGLE_FILE}


def test_a_link_without_a_size_leaves_it_open() -> None:
    assert read_wish({"repo": "me/it"}) == Wish("me/it", sized=False)
    assert read_wish({"repo": "me/it", "size": "10 apples"}) == Wish("me/it", sized=False, misspelt="10 apples")
    assert query_of(Wish("me/it", sized=False)) == "?repo=me/it"


def test_a_plan_and_its_map_and_result_show_its_stages() -> None:
    cut = made(PIPED)
    html = words(panels.shards_panel(cut.plan, FORECAST))
    assert "Cut where transformers 5.23.0 cuts" in html and "What each machine of a pipeline needs" in html
    assert "layers.2 to model.layers.3" in html
    assert "pipeline" not in panels.shards_panel(made().plan, FORECAST)
    drawn = panels.map_panel(map_of_plan(cut.source, cut.plan), "me/it")
    assert drawn.count("<b>Machine ") == 2 and "layers 2 to 3" in drawn.partition("Machine 2")[2]
    details = words(
        result_panel(cut.report, Trust("fits", ()), PLACES) + details_panel(cut.report, PLACES, Trust("fits", ()))
    )
    assert "torchrun --nnodes 2" in details and "-of-2" in details


def test_a_job_that_failed_leads_back_to_all_that_was_chosen() -> None:
    options = Options("1GB", "pp:3", "stored", "fp16", "ema", allow_overflow=True)
    record = JobRecord("x", "me", JobRequest("me/it@v1", "me/copy", options, private=True), 1, 0.0, "failed")  # type: ignore[arg-type]
    html = job_panels.job_panel(status_of(record, Told()), "http://hub/me/it", "http://page/?job=x")
    (link,) = re.findall('href="([?][^"]*)"', html)
    wish = read_wish(dict(parse_qsl(unescape(link)[1:])))
    assert wish == Wish("me/it@v1", options, to="me/copy", private=True)
    assert "variant ema" in Tags(html).text
    # One that ended at an overflow leads to the plan that allows it. That plan and its fields are not beside it.
    request = replace(record.request, options=replace(options, allow_overflow=False))
    ended = replace(status_of(replace(record, request=request), Told()), remedy=Remedy("allow_overflow"))
    html = job_panels.job_panel(ended, "http://hub/me/it", "http://page/?job=x")
    links = dict(re.findall('href="([?][^"]*)"[^>]*>([^<]*)<', html))
    (allowing,) = [link for link, words in links.items() if words == "Allow overflow"]
    assert read_wish(dict(parse_qsl(unescape(allowing)[1:]))).options == options


def test_my_jobs_say_of_each_copy_how_its_newest_job_stands_and_since_when() -> None:
    request, others = (JobRequest("me/it@v1", f"me/{name}", Options()) for name in ("copy", "other"))
    check, begun = JobRequest("me/it@v1", "me/copy@v2", Options(), kind="verify"), 1_795_687_200.0
    records = [
        JobRecord("d/me/copy", "me", check, 1, 0.0, "failed", 1e9, 1e9, result="me/copy@v2"),
        JobRecord("c/me/other", "me", others, 1, 0.0, "running", begun),
        JobRecord("b/me/copy", "me", request, 1, 0.0, "interrupted", 1.0, begun),
        JobRecord("a/me/copy", "me", request, 1, 0.0, "done", 1.0, begun - 200),
    ]
    html = job_panels.jobs_panel(records)
    assert re.findall('href="([?][^"]*)"', html) == ["?job=d/me/copy", "?job=c/me/other", "?job=b/me/copy"]
    assert html.count('<time datetime="2026-11-26T10:00:00Z">26 November, 10:00 UTC</time>') == 2
    rows = [words(row) for row in html.split("<li>")[1:]]
    assert rows == [
        "me/copy compared with me/it, 1 B differs 9 September, 01:46 UTC",
        "me/other from me/it, 1 B running since 26 November, 10:00 UTC",
        "me/copy from me/it, 1 B interrupted 26 November, 10:00 UTC · can be resumed",
    ]


def shown_first(html: str) -> str:
    """The text of a panel without what a visitor has to unfold."""
    return words(re.sub(r"<details(?! class=\"files\" open).*?</details>", "", html, flags=re.DOTALL))


def bars(html: str) -> list[tuple[str, str, str]]:
    """The class of each bar, the width of its track, and how much of that it fills."""
    return re.findall(r'class="cost ([^"]*)".*?style="width: ([^"]*)"><i style="width: ([^"]*)"', html, re.DOTALL)


def test_the_weights_of_each_device_are_drawn_within_its_budget_and_the_table_is_folded() -> None:
    loads = DeviceLoad("cuda:0", 40_000, 30_000, ("a",), ("f",)), DeviceLoad("cpu", 20_000, 0, (), ())
    disk = DeviceLoad("disk", None, 10_000, ("b",), ("f",))
    plan = DevicePlan("X", ("L",), 3, (*loads, disk), {"a": "cuda:0", "b": "disk"}, "")
    html = panels.devices_panel(plan, "")
    assert bars(html) == [("good", "100.0%", "75.0%"), ("good", "50.0%", "0.0%"), ("bad", "25.0%", "100.0%")]
    assert "cuda:0 30.0 kB of 40.0 kB cpu 0 B of 20.0 kB disk 10.0 kB 3 blocks" in shown_first(html)
    assert "Files it needs" in Tags(html).text and "Files it needs" not in shown_first(html)


def test_a_plan_is_drawn_beside_the_usual_way_with_what_that_maps() -> None:
    plan = plan_shards([stored_tensor("w", "U8", (1,), "f", 0, 1)], Options(1))
    classic = Forecast(600, 1200, 4 * 10**8, 2 * 10**9, mapped_bytes=10**9, way="load and save")
    html = panels.shards_panel(plan, FORECAST, classic)
    text = shown_first(html)
    assert "The usual way is load and save." in text and "As measured." in text and "was not run" in text
    assert "Memory This job 100.0 MB The usual way 400.0 MB + 1.0 GB mapped Time" in text
    assert "Time This job about 2.5 to 5 min The usual way about 10 to 20 min" in text
    assert "Disk This job none The usual way 2.0 GB" in text
    tracks = [
        [float(width) for width in re.findall(r"<i[^>]* style=.width: ([\d.]+)%", row)] for row in html.split("<li")[1:]
    ]
    share = 100 / 14
    usual = [2.75 * share, 1.25 * share, 10 * share]  # the libraries, what is made, what is mapped
    assert tracks == [pytest.approx(one) for one in ([share], usual, [25], [100], [0], [100])]
    assert "takes less" not in text
    small = panels.shards_panel(plan, replace(FORECAST, peak_anon_bytes=427_000_000), replace(classic, mapped_bytes=0))
    assert "the usual way takes less. From about 152.0 MB of weights on, it takes more." in words(small)
    alone = panels.shards_panel(plan, FORECAST)
    assert not bars(alone) and "This jobabout 2.5 to 5 min100.0 MB none" in shown_first(alone)


def test_the_files_of_a_result_are_counted_and_their_table_is_folded() -> None:
    report = made().report
    html = details_panel(report, PLACES, Trust("claims", ()))
    (folded,) = re.findall(r"<details[^>]*><summary>The files \((\d+)\)</summary>(.*?)</details>", html, re.DOTALL)
    assert int(folded[0]) == len(report.plan.shards) == folded[1].count('<th scope="row">model-')


def test_a_long_name_breaks_after_its_separators_and_within_no_number() -> None:
    more = dict.fromkeys(("private", "there", "loads", "chosen"), False)
    html = render("target", repo_id="acme/<it>-7B_v0.1.safetensors", **more)
    assert "<b>acme/&lt;it&gt;-7B_<wbr>v0.1.<wbr>safetensors</b>" in html
    assert "<b>acme/<wbr>it-<wbr>7B</b>" in render("target", repo_id="acme/it-7B", **more)


def drawn(names: list[str], files: int, size: int) -> str:
    """The map of a model with tensors of 1 kB in `files` of them, cut into files of `size` bytes."""
    held = [f"model-{n // files:05d}.safetensors" for n in range(len(names))]
    tensors = tuple(stored_tensor(name, "U8", (1000,), file, 0, 1000) for name, file in zip(names, held, strict=True))
    entries = tuple(FileEntry(file, 1) for file in dict.fromkeys(held))
    source = Content(Place("hub", "me/it", "0" * 40), tensors, (), entries, (), ())
    return panels.map_panel(map_of_plan(source, plan_shards(tensors, Options(size))), "me/it")


def test_the_map_of_hundreds_of_layers_of_experts_is_no_burden() -> None:
    parts = [f"mlp.experts.{expert}.{part}" for expert in range(24) for part in ("up_proj", "down_proj")]
    parts += ["self_attn.q_proj", "self_attn.o_proj", "input_layernorm"]
    html = drawn([f"model.layers.{layer}.{part}.weight" for layer in range(300) for part in parts], 600, 24_000)
    assert html.count("data-n=") > 300
    assert len(html.encode()) < 200_000


def test_the_map_of_three_thousand_files_is_no_burden_and_holds_where_each_is() -> None:
    names = [f"model.layers.{n}.mlp.up_proj.weight" for n in range(3000)]
    html, few = (drawn(names, len(names), size) for size in (1000, 100_000))
    assert len(html.encode()) < 150_000
    assert "each column stands for 13 files" in html and "Find a file or tensor" in html
    assert "stands for" not in few and "Find a file or tensor" not in few


def test_the_time_of_a_result_is_that_of_the_whole_job_where_this_page_ran_it() -> None:
    report = made().report
    ours = details_panel(report, PLACES, Trust("made-here", ()), 110.0)
    shared = details_panel(report, PLACES, Trust("claims", ()))
    told = [dict(re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", html)) for html in (ours, shared)]
    assert [facts.get("Time") for facts in told] == ["1 min 50 s", None]
    assert [facts["Copying and checking"] for facts in told] == ["8 s", "8 s"]


def test_a_saved_picture_is_called_after_the_model_and_the_size() -> None:
    source = checkpoint({"a.safetensors": 10})
    drawn = map_of_plan(source, plan_shards(source.tensors, Options(10)))
    for name, size, file in (
        ("mistralai/Mistral-7B-v0.1", "300MB", "Mistral-7B-v0.1-300MB"),
        ("gpt2", "one file", "gpt2-one-file"),
        ("a/b", "", "b"),
        ("../..", "/\x00", "map"),
    ):
        assert f'data-file="{file}"' in panels.map_panel(drawn, name, size)


def test_what_to_do_next_depends_on_what_was_made() -> None:
    report, one, piped = (made(options).report for options in (None, Options(SINGLE_FILE), PIPED))
    large = replace(report, plan=replace(report.plan, total_bytes=16 * 10**9))  # more than a free Colab holds
    reports = {"Colab cell": report, "download": one, "pipeline.py": piped, "transformers": large}
    for first, which in reports.items():
        html = result_panel(which, Trust("claims", ()), PLACES)
        tabs = re.findall(r'role="tab"[^>]*>([^<]*)<', html)
        assert tabs[0] == first and {"transformers", "Colab cell", "download"} <= {*tabs}
        assert html.index('role="tab"') < html.index("data-trust") < html.index("shard-my-repo verify")


def test_nobody_is_asked_to_check_what_takes_a_base_of_another_machine() -> None:
    base = (Place("folder", "base", "1", role="base"),)
    kept, cast = (of(made(options).report, beside=base) for options in (None, Options(LIMIT, dtype="bf16")))
    trust = Trust("fits", ("It fits.",))
    assert ["made from a folder" in result_panel(one, trust, PLACES) for one in (kept, cast)] == [False, True]
    assert ["shard-my-repo verify" in result_panel(one, trust, PLACES) for one in (kept, cast)] == [True, False]
    assert "and the folder base" not in result_panel(cast, Trust("claims", ()), PLACES), "it gave no numbers"


def test_a_certificate_leads_to_its_documents() -> None:
    places = Places("me/copy", "http://hub", "", "2" * 40)
    html = result_panel(made().report, Trust("fits", ("It fits.",)), places)
    documents = dict(re.findall(r'<a href="([^"]*)"[^>]*>(The report|Checksums[^<]*)</a>', html))
    assert documents == {
        f"http://hub/me/copy/blob/{'2' * 40}/sharding_report.json": "The report",
        f"http://hub/me/copy/blob/{'2' * 40}/sharding_digests.json": "Checksums of every tensor",
    }


STEPS: dict[Level, int] = {
    **{"made-here": READ, "read-now": READ, "stated": STATED},
    **{"fits": FITS, "claims": CLAIMED, "unreached": CLAIMED},
}


@pytest.mark.parametrize(("level", "step"), STEPS.items())
def test_the_ladder_is_climbed_as_far_as_this_page_knows(level: Level, step: int) -> None:
    """And where it forgets that, it says when."""
    until = "until this Space restarts"
    for trust in (
        Trust(level, ("As it is.",)),
        Trust(level, (), until=until),
        Trust(level, (), ("But.",), until=until),
    ):
        html = result_panel(made().report, trust, PLACES, FORECAST if level == "fits" else None)
        assert rung_of(trust) == step
        # Hashes match only where that is the last step that is reached.
        assert html.count('<li class="reached"') == (3 if step == READ else step)
        assert ('class="state good"' in html) == (step == READ and not trust.caveats)
        assert html.count(f"; known {until}</span>") == (step >= STATED and bool(trust.until))


@pytest.mark.parametrize(("level", "step"), STEPS.items())
def test_what_was_done_to_numbers_is_said_in_words_that_the_headers_agree_with(level: Level, step: int) -> None:
    """Before, they are anybody's."""
    report = made(Options(LIMIT, dtype="bf16"), made=(MERGE,)).report
    trust = Trust(level, (), made=report.plan.made)
    html = result_panel(report, trust, PLACES)
    model, lora = "acme/model at aaaaaaaaaaaa", "bob/lora/sub at bbbbbbbbbbbb"
    assert (f"A copy of {model}, with the adapter {lora} merged, cast to bf16." in words(html)) == (step != CLAIMED)
    assert (f"Made from {model} and {lora}." in words(html)) == (step == CLAIMED)
    assert html.count('href="http://hub/bob/lora/tree/') == 1
    for said in ("The adapter changes 2 of 6 tensors.", "<code>tensor.to(torch.bfloat16)</code>"):
        assert (said in html) == (step != CLAIMED)
    assert ("the memory of bf16" in result_panel(report, trust, PLACES)) == (step != CLAIMED)


@pytest.mark.parametrize(
    "options",
    [
        Options("1kB", order="stored"),
        Options("2kB", strategy="blocks", dtype="fp16", allow_overflow=True),
        Options(SINGLE_FILE),
    ],
)
def test_make_one_like_it_opens_the_plan_with_the_same_choices(options: Options) -> None:
    report = made(options).report
    (link,) = re.findall(r'<a href="([^"]*)">Make one like it</a>', result_panel(report, Trust("fits", ()), PLACES))
    wish = read_wish(dict(parse_qsl(unescape(link).removeprefix("?"))))
    assert wish.repo == "acme/model"
    assert wish.options.max_shard_bytes == options.max_shard_bytes
    assert replace(wish.options, max_shard_size=options.max_shard_size) == replace(options, allow_overflow=False)


def test_a_copy_of_a_folder_leads_to_no_other_plan() -> None:
    report = made(source=of_a_folder(FOLDER)).report
    assert "Make one like it" not in result_panel(report, Trust("claims", ()), PLACES)
