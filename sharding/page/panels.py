"""Turn checkpoints, plans and errors into the panels of the page. Pure."""

import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gradio as gr

from sharding.checkpoint.trained import needs_base
from sharding.core.errors import Remedy, ShardingError
from sharding.core.origin import Place
from sharding.core.text import count, format_bytes, parameters, time_range
from sharding.core.values import Content, Finding, Plan, Tensor
from sharding.desk import JobStatus
from sharding.desk.forecast import Forecast
from sharding.desk.overview import Overview
from sharding.drawing.map_svg import script_data
from sharding.drawing.model_map import ModelMap, today_of
from sharding.page.form import size_label
from sharding.page.render import Help, help_with, in_page_words, render, without_options
from sharding.planning.devices import CONTEXT_TOKENS, DevicePlan, Need, device_snippet, where_it_fits
from sharding.planning.sizes import SizeStop, stop_for
from sharding.report.schema import Inspection
from sharding.storage.hub.lookup import SourceCard

_MANY = 40  # With more columns than this, a map can be searched and zoomed.
_UNSAFE = re.compile(r"[^\w.-]+", re.ASCII)


def message(
    text: str, hint: str = "", level: str = "note", remedy: Remedy | None = None, ways: Iterable[Help] = ()
) -> str:
    """Return a message for beside its field, with `ways` on. Words for `remedy` replace sentences for a terminal."""
    helps = dict.fromkeys((help_with(remedy), *ways))
    return render("message", message=text, hint=without_options(hint), level=level, helps=helps)


def problem(error: ShardingError, ways: Iterable[Help] = ()) -> str:
    """Return the message of an error, with its hint, its remedy, and other `ways` on."""
    return message(error.message, error.hint, "error", error.remedy, ways)


def facts_panel(inspection: Inspection, card: SourceCard) -> str:
    """Return the line of facts about a source."""
    dtypes = ", ".join(sorted(inspection.dtypes, key=lambda dtype: -inspection.dtypes[dtype])[:4])
    codes = {finding.code for finding in inspection.findings}
    facts = [
        f"{parameters(inspection.total_parameters)} parameters",
        f"{format_bytes(inspection.total_bytes)} of {dtypes}",
        f"licence {card.license}" if card.license else "no licence stated",
        "gated" if card.gated else "private" if card.private else "not gated",
        "a commit on no known branch" if "unreached-commit" in codes else "",
    ]
    return render("facts", card=card, facts=[*filter(None, [inspection.architecture, *facts])])


def overview_panel(overview: Overview, card: SourceCard) -> str:
    """Return the panel of a source with too many tensors to plan here: its counts and a picture of its layers."""
    picture = b64encode(overview.picture.encode()).decode()
    return facts_panel(overview.source, card) + render("overview", source=overview.source, picture=picture)


def sizes_panel(stops: Sequence[SizeStop], size: str) -> str:
    """Return the slider of sizes. It stands at `size`, or next to it if `size` is not one of the stops."""
    at = stop_for(stops, size)
    reason = stops[at].reason if stops[at].size == size else ""
    drawn = [{"size": size_label(stop.size), "reason": stop.reason} for stop in stops]
    marks = {index: size_label(stop.size) for index, stop in enumerate(stops) if stop.stands_out}
    return render("sizes", stops=drawn, marks=marks, at=at, size=size_label(size), reason=reason)


def map_panel(
    model_map: ModelMap,
    name: str,
    size: str = "",
    need: Need | None = None,
    sides: tuple[str, str] = ("Today", "After"),
) -> str:
    """Return the map: today's files above those of the copy, and where that fits by its `need`."""
    files = [sum(column.files for column in columns) for columns in (model_map.today, model_map.after) if columns]
    title = f"{name}: {' → '.join([count(files[0], 'file'), *(f'{number:,}' for number in files[1:])])}"
    total = sum(column.bytes for column in model_map.after)
    stages = [machine.bytes for machine in model_map.machines]
    places = where_it_fits(need, stages) if need and total else ()
    longest = max((sum(max(fit.room_bytes, need) for need in fit.needs) for fit in places), default=0)
    file = _UNSAFE.sub("-", "-".join(filter(None, [name.rpartition("/")[2], size]))).strip("-.") or "map"
    values = {"context": CONTEXT_TOKENS if need and need.context else 0, "data": script_data(model_map), "file": file}
    values |= {"is_many": max(len(model_map.today), len(model_map.after)) > _MANY}
    return render("map", map=model_map, sides=sides, title=title, fits=places, longest=longest, **values)


def summary_panel(
    checkpoint: Content, plan: Plan, forecast: Forecast, choices: Mapping[str, Any] | None = None, at: int = 0
) -> str:
    """Return the line with the files of the copy and the cost of the job, the `choices` it is for, and their stop."""
    largest = max((shard.bytes for shard in plan.shards), default=0)
    values: dict[str, Any] = {"gain": _gain(checkpoint, plan), "largest": format_bytes(largest)}
    values |= {"today": count(len(checkpoint.weight_files), "file"), "lacks_base": needs_base(checkpoint)}
    values |= {"disk": f"{format_bytes(forecast.disk_bytes)} of disk" if forecast.disk_bytes else "no disk"}
    values |= {"same": changes_nothing(checkpoint, plan), "is_whole": all(one.is_whole for one in plan.components)}
    values |= {"most": max(plan.made, key=lambda change: change.changed, default=None)}
    time = about(forecast.lower_seconds, forecast.upper_seconds)
    return render("summary", choices=choices or {}, at=at, time=time, **values)


def _gain(checkpoint: Content, plan: Plan) -> str:
    size, after = format_bytes(checkpoint.total_bytes), format_bytes(plan.total_bytes)
    if size.split()[1] == after.split()[1] and size != after:
        size = size.split()[0]
    sizes = size if size == after else f"{size} → {after}"
    files = count(len(plan.shards), "file")
    if len(checkpoint.weight_files) != len(plan.shards):
        files = f"{len(checkpoint.weight_files):,} → {files}"
    return f"{sizes}, {files}"


def changes_nothing(checkpoint: Content, plan: Plan) -> bool:
    """Return whether a plan makes the same files as today: the same names, with the same tensors and dtypes."""
    if any(change.changed for change in plan.made) or {file.path for file in checkpoint.weight_files} != {
        shard.file for shard in plan.shards
    }:
        return False
    return {(tensor.name, tensor.dtype, tensor.file) for tensor in checkpoint.tensors} == {
        (tensor.name, tensor.dtype, shard.file) for shard in plan.shards for tensor in shard.tensors
    }


def shards_panel(plan: Plan, forecast: Forecast, classic: Forecast | None = None) -> str:
    """Return the cost of the job on this machine beside that of loading and saving, and the table of shards."""
    time = about(forecast.lower_seconds, forecast.upper_seconds)
    return render("plan", plan=plan, forecast=forecast, classic=classic, time=time)


def findings_panel(findings: Sequence[Finding]) -> str:
    """Return the findings: the warnings in full view, the notes folded."""
    remarks = [*map(in_page_words, findings)]
    warnings = [finding for finding in remarks if finding.level == "warning"]
    notes = [finding for finding in remarks if finding.level != "warning"]
    return render("findings", warnings=warnings, notes=notes)


def devices_panel(plan: DevicePlan, copy: str) -> str:
    """Return which part of a model goes on which device, and the code that loads `copy`, or the original, like that."""
    is_of_copy = copy and not plan.trouble
    snippet = device_snippet(plan.class_name, plan.device_map, Place("hub", copy)) if is_of_copy else plan.snippet
    longest = max((load.budget_bytes or load.bytes for load in plan.devices), default=0) or 1
    return render("devices", plan=plan, copy=copy, snippet=snippet, longest=longest)


def log_panel(status: JobStatus) -> str:
    """Return the log of a job. It is open if the job failed."""
    return render("log", lines=status.log, is_open=status.state == "failed")


def about(lower_seconds: float, upper_seconds: float) -> str:
    """Return a range of times in words."""
    return "a few seconds" if upper_seconds <= 5 else f"about {time_range(lower_seconds, upper_seconds)}"


def tensors_of(
    drawn: ModelMap, placed: Sequence[tuple[Tensor, str]], today: Iterable[Tensor], chosen: gr.EventData
) -> str:
    """Return the list of tensors in the `chosen` column, or "". `placed` are the copy's, with their files."""
    side, number = getattr(chosen, "side", ""), getattr(chosen, "column", -1)
    columns = drawn.today if side == "today" else drawn.after
    if not isinstance(number, int) or not 0 <= number < len(columns):
        return ""
    column, known = columns[number], today_of(today, {tensor.name for tensor, _ in placed})
    was = {name: file for name, (file, _) in known.items()}
    if side == "today":
        other, pairs = "To file", [(tensor, file) for tensor, file in placed if was.get(tensor.name) in column.names]
    else:
        other = "From file"
        pairs = [(tensor, was.get(tensor.name, "")) for tensor, file in placed if file in column.names]
    return render("tensors", title=column.title, other=other, tensors=pairs)
