"""The map: every tensor where it lies, as large as its bytes, and never more than a page should hold."""

import re
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharding import job
from sharding.core.made import Change
from sharding.core.options import SINGLE_FILE, Options
from sharding.core.origin import Place
from sharding.core.values import Component, Content, FileEntry, Plan, Tensor
from sharding.drawing.map_svg import COLOURS, draw_map, draw_plan, files_caption, outline
from sharding.drawing.model_map import (
    HEIGHT,
    MOST_CELLS,
    MOST_COLUMNS,
    WIDTH,
    Box,
    Column,
    ModelMap,
    map_of_copy,
    map_of_plan,
    today_of,
)
from sharding.drawing.tensor_kinds import kind_of
from sharding.planning.plan import plan_shards
from sharding.recipes.stored import place_of
from tests.models import build
from tests.planning.tensors import in_ranks
from tests.quantized import FORMS, save_form
from tests.tensors import plan_of, stored_tensor


def checkpoint(sizes: dict[str, int], files: int = 1, scattered: bool = False) -> Content:
    """A checkpoint of tensors of so many bytes, in so many files: one part after another, or dealt out."""
    ends: Counter[str] = Counter()
    tensors = []
    for index, (name, size) in enumerate(sizes.items()):
        number = index % files if scattered else index * files // len(sizes)
        file = f"model-{number + 1:05d}-of-{files:05d}.safetensors"
        tensors.append(stored_tensor(name, "U8", (size,), file, ends[file], ends[file] + size))
        ends[file] += size
    entries = tuple(FileEntry(file, size) for file, size in ends.items())
    source = Place("hub", "samples/model", "a" * 40)
    return Content(source, tuple(tensors), (Component(),), entries, (), ())


def layers(count: int, experts: int = 0) -> dict[str, int]:
    """Names and bytes of a model of so many layers."""
    parts = {"self_attn.q_proj": 40, "self_attn.o_proj": 40, "input_layernorm": 1}
    parts |= {f"mlp.experts.{number}.up_proj": 20 for number in range(experts)} or {"mlp.up_proj": 160}
    named = {f"model.layers.{n}.{part}.weight": size for n in range(count) for part, size in parts.items()}
    return {"model.embed_tokens.weight": 500, **named, "model.norm.weight": 1}


def planned(source: Content, size: str | int) -> tuple[Plan, ModelMap]:
    plan = plan_of(source, Options(size))
    return plan, map_of_plan(source, plan)


def overlap(one: Box, other: Box) -> float:
    wide = min(one.x + one.width, other.x + other.width) - max(one.x, other.x)
    high = min(one.y + one.height, other.y + other.height) - max(one.y, other.y)
    return max(wide, 0) * max(high, 0)


def test_every_tensor_is_a_cell_in_its_own_file() -> None:
    source = checkpoint(layers(4), files=2)
    plan, drawn = planned(source, 700)
    files, files_today = [shard.file for shard in plan.shards], [file.path for file in source.weight_files]
    where_today = {tensor.name: tensor.file for tensor in source.tensors}
    shown = {cell.tensor.name: cell for cell in drawn.cells if cell.tensor}
    assert shown.keys() == where_today.keys()
    for name, cell in shown.items():
        assert (files[cell.column], files_today[cell.today_column]) == (plan.weight_map[name], where_today[name])
        for box, column in ((cell.after, drawn.after[cell.column]), (cell.today, drawn.today[cell.today_column])):
            assert box and column.x - 1e-6 <= box.x <= box.x + box.width <= column.x + column.width + 1e-6
            assert -1e-6 <= box.y <= box.y + box.height <= HEIGHT + 1e-6


@given(sizes=st.lists(st.integers(20, 200), min_size=1, max_size=24), files=st.integers(1, 4), dealt=st.booleans())
def test_areas_are_bytes_and_do_not_overlap(sizes: list[int], files: int, dealt: bool) -> None:
    source = checkpoint({f"h.{n // 3}.{n}.weight": size for n, size in enumerate(sizes)}, files, dealt)
    _, drawn = planned(source, 300)
    for strip, columns in (("after", drawn.after), ("today", drawn.today)):
        boxes = [(cell.bytes, getattr(cell, strip)) for cell in drawn.cells]
        room = WIDTH - sum(after.x - before.x - before.width for before, after in pairwise(columns))
        for size, box in boxes:
            assert box.width * box.height == pytest.approx(room * HEIGHT * size / sum(sizes), rel=0.02)
        assert all(overlap(one, other) < 1e-6 for (_, one), (_, other) in combinations(boxes, 2))


@pytest.mark.parametrize(
    ("sizes", "files", "size", "scattered"),
    [(layers(100, experts=16), 200, 700, True), (layers(800), 3, 240, False), (layers(250), 1, 10**9, False)],
)
def test_a_large_map_is_gathered_and_loses_nothing(
    sizes: dict[str, int], files: int, size: int, scattered: bool
) -> None:
    source = checkpoint(sizes, files, scattered)
    plan, drawn = planned(source, size)
    assert len(drawn.cells) <= MOST_CELLS and max(len(drawn.after), len(drawn.today)) <= MOST_COLUMNS
    assert sum(cell.tensors for cell in drawn.cells) == len(sizes)
    kinds: Counter[str] = Counter()
    for name, held in sizes.items():
        kinds[kind_of(name)] += held
    shown: Counter[str] = Counter()
    for cell in drawn.cells:
        shown[cell.kind] += cell.bytes
    assert shown == kinds
    for columns, count in ((drawn.after, len(plan.shards)), (drawn.today, files)):
        assert sum(column.files for column in columns) == count
        assert sum(column.bytes for column in columns) == sum(sizes.values())
        assert sum(column.tensors for column in columns) == len(sizes)
    assert len(draw_plan(source, plan).encode()) < 200_000


def merged(source: Content, changed: set[str]) -> Plan:
    """The plan of a merge that changes the tensors `changed`."""
    tensors = [
        tensor._replace(recipe=place_of(tensor)._replace(source=1)) if tensor.name in changed else tensor
        for tensor in source.tensors
    ]
    lora = Place("hub", "a/lora", role="adapter")
    merge = Change("adapter", "", "", "", "", len(changed), len(tensors), lora)
    return replace(plan_shards(tensors, Options("10GB")), made=(merge,))


def test_a_gathered_cell_says_what_it_stands_for_and_counts_what_a_merge_changes() -> None:
    _, drawn = planned(checkpoint(layers(400, experts=4)), 10**9)
    titles = [cell.title for cell in drawn.cells if cell.kind == "expert"]
    assert "8 expert tensors in model.layers.1 to model.layers.2" in titles
    source = checkpoint(layers(400), files=2)
    changed = {tensor.name for tensor in source.tensors if tensor.name.endswith("3.self_attn.q_proj.weight")}
    drawn = map_of_copy(source, source, plan=merged(source, changed))
    assert (drawn.changed, drawn.tensors) == (len(changed), len(source.tensors)) and len(drawn.cells) <= MOST_CELLS
    some = [cell for cell in drawn.cells if 0 < cell.changed < cell.tensors]
    assert some and all(f", {cell.changed} of them change" in cell.title for cell in some)


def test_a_copy_without_a_known_source_has_no_today() -> None:
    copy = checkpoint(layers(2), files=2)
    drawn = map_of_copy(copy, None)
    assert drawn.today == () and len(drawn.after) == 2
    assert all(cell.today is None and cell.today_column == -1 for cell in drawn.cells)
    both = map_of_copy(copy, checkpoint(layers(2)))
    assert len(both.today) == 1 and all(cell.today for cell in both.cells)


@pytest.mark.parametrize("size", [SINGLE_FILE, 700, 1])
def test_the_picture_is_an_svg_that_shows_both(size: str | int) -> None:
    source = checkpoint(layers(3), files=2)
    plan, _ = planned(source, size)
    picture = ET.fromstring(draw_plan(source, plan))
    texts = ["".join(text.itertext()) for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == f"samples/model: 2 files → {len(plan.shards)}"
    assert any(text.startswith("Today  2 files") for text in texts)
    assert any(text.startswith("After  ") and f"{len(plan.shards)} file" in text for text in texts)
    paths = [path.get("class") for path in picture.iter("{http://www.w3.org/2000/svg}path")]
    assert paths == 2 * ["attention", "mlp", "embedding", "norm"]


@pytest.mark.parametrize("name", ["qwen2-moe", "gpt-neox", "dinov2"])  # others are held against their classes
def test_what_models_of_transformers_hold_is_told_apart(name: str) -> None:
    kinds = Counter(kind_of(key) for key in build(name, layers=2).state_dict())
    assert kinds.keys() >= {"attention", "embedding", "norm"} and kinds.keys() & {"mlp", "expert"}
    assert kinds["other"] <= 2, "but for what is said once a model"


def test_each_machine_stands_under_its_own_files() -> None:
    source = checkpoint(layers(6))
    hints = in_ranks([tensor.name for tensor in source.tensors], 3)
    plan = plan_of(source, Options(500, strategy="pp:3"), {"": hints})
    machines = map_of_plan(source, plan).machines
    titles = ["983 B, layers 0 to 1", "482 B, layers 2 to 3", "482 B, layers 4 to 5"]
    assert [machine.title for machine in machines] == titles
    assert sum(machine.width for machine in machines) <= WIDTH
    assert all(one.x + one.width <= other.x for one, other in pairwise(machines))
    assert not map_of_plan(source, plan_of(source, Options(500))).machines


def test_quantized_weights_lie_today_where_their_numbers_and_scales_do() -> None:
    def entry(name: str, file: str, start: int, size: int) -> Tensor:
        return stored_tensor(name, "U8", (size,), file, start, start + size)

    source = checkpoint({"model.layers.0.mlp.experts.up_blocks": 160, "model.layers.0.mlp.experts.up_scales": 10})
    tensors = (*source.tensors, entry("logit_scale", source.tensors[0].file, 170, 4))
    source = replace(source, tensors=tensors)
    made = [entry("model.layers.0.mlp.experts.up", "f", 0, 640), entry("logit_scale", "f", 640, 4)]
    drawn = map_of_plan(source, plan_shards(made, Options("1kB")))
    (today,), (after,) = drawn.today, drawn.after
    assert (today.bytes, today.tensors, after.bytes) == (174, 2, 644)


@pytest.mark.parametrize("form", FORMS)
def test_all_parts_of_a_quantized_weight_lie_today_where_it_does(form: str, tmp_path: Path) -> None:
    before = job.inspect(str(save_form(form, tmp_path)))
    names = {tensor.name for tensor in plan_of(before, Options(dequantize=True)).tensors}
    assert today_of(before.tensors, names).keys() == names


@pytest.mark.parametrize(
    ("today", "after", "widths"),
    [
        (600, 600, (WIDTH, WIDTH)),
        (800, 400, (WIDTH, WIDTH / 2)),
        (300, 1200, (WIDTH / 4, WIDTH)),
        (9000, 9, (WIDTH, 60)),
    ],
)
def test_both_strips_are_in_one_scale_of_bytes_and_the_smaller_stays_visible(
    today: int, after: int, widths: tuple[float, float]
) -> None:
    source = checkpoint({f"h.{n}.weight": today // 3 for n in range(3)}, files=3)
    made = [stored_tensor(f"h.{n}.weight", "U8", (after // 3,), "f", 0, after // 3) for n in range(3)]
    drawn = map_of_plan(source, plan_shards(made, Options("1GB")))
    ends = [max(column.x + column.width for column in strip) for strip in (drawn.today, drawn.after)]
    assert ends == pytest.approx(widths)
    for strip, end in zip(("today", "after"), ends, strict=True):
        boxes = [getattr(cell, strip) for cell in drawn.cells]
        assert max(box.x + box.width for box in boxes) <= end + 1e-6 and len(boxes) == 3


@pytest.mark.parametrize("files", [1, MOST_COLUMNS, MOST_COLUMNS + 1, 2 * MOST_COLUMNS + 1])
def test_files_have_a_column_each_up_to_a_bound_and_share_them_beyond(files: int) -> None:
    """No map has more columns than a page can show, and none is gathered where that is not needed."""
    source = checkpoint({f"h.{n}.weight": 10 for n in range(files)}, files)
    plan, drawn = planned(source, 10)
    assert len(plan.shards) == len(source.weight_files) == files
    names = [shard.file for shard in plan.shards], [file.path for file in source.weight_files]
    for columns, there in zip((drawn.after, drawn.today), names, strict=True):
        assert len(columns) == files if files <= MOST_COLUMNS else len(columns) <= MOST_COLUMNS
        assert [name for column in columns for name in column.names] == there
    assert len(drawn.cells) == files if files <= MOST_COLUMNS else len(drawn.cells) <= MOST_CELLS


def test_the_kinds_come_in_the_order_of_their_bytes() -> None:
    names = {"mlp": "h.0.mlp.weight", "norm": "h.0.norm.weight", "attention": "h.0.attn.weight", "other": "h.0.x"}
    for kinds in (["norm", "attention", "mlp", "other"], ["other", "mlp", "norm", "attention"]):
        # Two tensors of a kind count together: the first of all is only so with both.
        sizes = {names[kind]: 50 - 10 * n for n, kind in enumerate(kinds[1:])}
        sizes |= {names[kinds[0]]: 30, names[kinds[0]].replace("h.0", "h.1"): 30}
        source = checkpoint(sizes)
        _, drawn = planned(source, 100)
        assert list(drawn.kinds) == kinds
        assert list(map_of_copy(source, None).kinds) == kinds


def test_files_are_told_with_the_largest_only_where_each_has_a_column_of_its_own() -> None:
    def told(sizes: list[int], steps: int = 1) -> str:
        groups = [sizes[start : start + steps] for start in range(0, len(sizes), steps)]
        return files_caption(Column([""] * len(group), 1, sum(group), 0, 0) for group in groups)

    assert told([1500]) == "1 file, 1.5 kB"
    assert told([1500, 500]) == "2 files, 2.0 kB, the largest 1.5 kB"
    assert told([100, 1500, 400]) == "3 files, 2.0 kB, the largest 1.5 kB"
    assert told([100, 1500, 400], steps=2) == "3 files, 2.0 kB"
    assert told([100, 1500], steps=2) == "2 files, 1.6 kB"


def test_cells_with_tensors_that_a_merge_changes_are_hatched_and_say_so() -> None:
    source = checkpoint(layers(3), files=2)
    changed = {tensor.name for tensor in source.tensors if "attn" in tensor.name}
    drawn = map_of_copy(source, source, plan=merged(source, changed))
    assert (drawn.changed, drawn.tensors) == (len(changed), len(source.tensors)) and changed
    assert {cell.tensor.name for cell in drawn.cells if cell.tensor and cell.changed} == changed
    assert all(cell.title.endswith(", changes") == bool(cell.changed) for cell in drawn.cells)
    assert outline(drawn.cells).count("z") == len(changed)
    text = draw_map(drawn, "A merge")
    assert f"changes: {len(changed)} of {len(source.tensors)} tensors" in text
    assert f'fill="url(#hatch)" d="{outline(drawn.cells)}"' in text and ET.fromstring(text) is not None
    plain = map_of_copy(source, source)
    assert not plain.changed and "hatch" not in draw_map(plain, "A copy")


def test_what_is_left_out_has_an_empty_place_in_the_files_of_today() -> None:
    source = checkpoint(layers(3), files=2)
    plan = plan_of(source, Options(700, drop="*.layers.1.*"))
    drawn = map_of_plan(source, plan)
    dropped = [tensor for tensor in source.tensors if ".layers.1." in tensor.name]
    assert drawn.left_out == len(dropped) and f"left out: {len(dropped)} tensors" in draw_plan(source, plan)
    assert sum(column.bytes for column in drawn.today) == source.total_bytes
    assert sum(cell.today_bytes for cell in drawn.cells) < source.total_bytes


@pytest.mark.parametrize("has_source", [True, False])
def test_the_picture_needs_nothing_else_and_has_colours_for_light_and_dark(has_source: bool) -> None:
    source = checkpoint(layers(3, experts=2) | {"logit_scale": 4}, files=2)
    drawn = map_of_copy(source, source if has_source else None)
    text = draw_map(drawn, "A & <b>")
    picture = ET.fromstring(text)
    assert picture.get("viewBox") and picture.tag == "{http://www.w3.org/2000/svg}svg"
    plain = {"svg", "title", "style", "rect", "text", "tspan", "g", "path"}
    assert {tag.tag.partition("}")[2] for tag in picture.iter()} == plain
    assert not [key for tag in picture.iter() for key in tag.attrib if key.endswith(("href", "src", "style"))]
    (style,) = picture.iter("{http://www.w3.org/2000/svg}style")
    assert style.text and not set(re.findall(r"url|@\w+", style.text)) - {"@media"}
    light, dark = style.text.split("@media(prefers-color-scheme:dark)")
    used = {tag.get("class") for tag in picture.iter()} - {None, "title", "name"}
    assert used == {"ground", "file", *drawn.kinds} and len(drawn.kinds) == len(COLOURS) - 1
    for name in used:
        colours = [re.findall(rf"\.{name}{{fill:(#\w+)}}", part) for part in (light, dark)]
        assert len(colours[0]) == len(colours[1]) == 1 and colours[0] != colours[1], name
    assert text.count("<g ") == (2 if has_source else 1)
