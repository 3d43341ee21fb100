"""Convert between the fields of the form and the options of a copy."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import gradio as gr

from sharding.core.options import SINGLE_FILE, Options
from sharding.page.form import FEWEST_MACHINES, PIPELINE, Form
from sharding.page.goals import MERGE

ONE_FILE = "one file"
"""The word for SINGLE_FILE on the page."""


def source_in(form: Form, values: Mapping[Any, Any]) -> str:
    """Return the source in the form, or "" if there is none."""
    return (values[form.repo] or "").strip()


def base_in(form: Form, values: Mapping[Any, Any]) -> str:
    """Return the model that was trained, or "" if the form names none."""
    return (values[form.base] or "").strip()


def adapter_in(form: Form, values: Mapping[Any, Any]) -> str:
    """Return the adapter to merge, or "" if the form names none. Only one goal has its field."""
    return (values[form.adapter] or "").strip() if values.get(form.goal) == MERGE else ""


def size_in(form: Form, values: Mapping[Any, Any]) -> str:
    """Return the size in the form, or "" if there is none."""
    size = (values[form.size] or "").strip()
    return SINGLE_FILE if size.lower() in (ONE_FILE, "1 file", SINGLE_FILE) else size


def size_label(size: str) -> str:
    """Return a size as the page shows it."""
    return ONE_FILE if size == SINGLE_FILE else size


def fields_of_a_plan(form: Form) -> list[Any]:
    """Return all fields that a plan depends on."""
    named = [
        form.repo,
        form.base,
        form.adapter,
        form.variant,
        form.size,
        form.strategy,
        form.machines,
        form.order,
        form.dtype,
    ]
    return [*named, form.overflow, form.dequantize, *form.more.values()]


def shown_in(form: Form, values: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the value of each field that a plan depends on, by the id of the field. The script compares them."""
    fields = [field for field in fields_of_a_plan(form) if field not in (form.variant, form.machines)]
    if values[form.strategy] == PIPELINE:
        fields.append(form.machines)
    return {field.elem_id: values[field] if values[field] is not None else "" for field in fields}


def options_in(form: Form, values: Mapping[Any, Any]) -> Options:
    """Return the chosen options. Raises UsageError if one is invalid."""
    kind = values[form.strategy]
    return Options(
        max_shard_size=size_in(form, values),
        strategy=f"{kind}:{int(values[form.machines] or 0)}" if kind == PIPELINE else kind,
        order=values[form.order],
        dtype=values[form.dtype],
        variant=values[form.variant],
        allow_overflow=values[form.overflow],
        base=base_in(form, values),
        adapter=adapter_in(form, values),
        dequantize=values[form.dequantize],
        **{name: values[field] for name, field in form.more.items()},
    )


def aimed(form: Form, options: Options) -> dict[Any, Any]:
    """Return the values of the fields that a goal sets."""
    kind, _, count = options.strategy.partition(":")
    return {
        form.size: size_label(str(options.max_shard_size)),
        form.strategy: kind,
        form.machines: int(count or FEWEST_MACHINES),
        form.dtype: options.dtype,
        form.dequantize: options.dequantize,
    }


def filled_in(form: Form, options: Options) -> dict[Any, Any]:
    """Return the fields filled in for `options`, except the size."""
    kind, _, count = options.strategy.partition(":")
    return {
        form.variant: options.variant,
        form.order: options.order,
        form.strategy: kind,
        form.machines: gr.Number(value=int(count or FEWEST_MACHINES), visible=kind == PIPELINE),
        form.dtype: "keep" if options == replace(options, dtype="keep") else options.dtype,
        form.overflow: options.allow_overflow,
        form.base: options.base,
        form.adapter: gr.Textbox(options.adapter, visible=bool(options.adapter)),
        **({form.goal: MERGE} if options.adapter else {}),
        form.dequantize: options.dequantize,
        **{field: getattr(options, name) for name, field in form.more.items()},
    }
