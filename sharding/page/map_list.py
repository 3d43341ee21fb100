"""List the tensors of the column of a map that somebody has chosen. Pure."""

from collections.abc import Iterable, Sequence

import gradio as gr

from sharding.core.values import TensorEntry
from sharding.page.panels import tensors_panel
from sharding.report.model_map import ModelMap, today_of


def tensors_of(
    drawn: ModelMap, placed: Sequence[tuple[TensorEntry, str]], today: Iterable[TensorEntry], chosen: gr.EventData
) -> str:
    """Return the list for a column: its `side` ("today" or "after") and its number are in what the script tells.

    `placed` are the tensors of the copy and their files there, `today` those of the source. "" for no column.
    """
    side, number = getattr(chosen, "side", ""), getattr(chosen, "column", -1)
    columns = drawn.today if side == "today" else drawn.after
    if not isinstance(number, int) or not 0 <= number < len(columns):
        return ""
    column, known = columns[number], today_of(today, {tensor.name for tensor, _ in placed})
    was = {name: file for name, (file, _) in known.items()}
    if side == "today":
        pairs = [(tensor, file) for tensor, file in placed if was.get(tensor.name) in column.names]
    else:
        pairs = [(tensor, was.get(tensor.name, "")) for tensor, file in placed if file in column.names]
    return tensors_panel(column.title, pairs)
