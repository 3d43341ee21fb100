"""Write down what the script of the page needs to know of a map, ready for JSON. Pure."""

from typing import Any

from sharding.core.text import count, format_bytes
from sharding.drawing.brackets import file_numbers
from sharding.drawing.flows import flows_of
from sharding.drawing.model_map import ModelMap


def script_data(drawn: ModelMap) -> dict[str, Any]:
    """Return the columns, the flows between them and the experts of a map.

    A column is [first file, last file, tensors, size, number of files, number of the first], a flow [column of today,
    column, size, start and length of its edge today, and in the copy]. A run of experts is [experts, size, first and
    last column, first and last column of today].
    """
    return {
        **{
            side: [
                [
                    column.names[0],
                    column.names[-1],
                    count(column.tensors, "tensor"),
                    format_bytes(column.bytes),
                    column.files,
                    number,
                ]
                for column, number in zip(columns, file_numbers(columns), strict=True)
            ]
            for side, columns in (("today", drawn.today), ("after", drawn.after))
        },
        "flows": [
            [flow.today_column, flow.column, format_bytes(flow.bytes)]
            + [round(side, 1) for side in (flow.today_x, flow.today_width, flow.x, flow.width)]
            for flow in flows_of(drawn)
        ],
        "experts": [
            [row.layer, [[run.experts, format_bytes(run.bytes), *run.place] for run in row.runs]]
            for row in (drawn.experts.rows if drawn.experts else ())
        ],
    }
