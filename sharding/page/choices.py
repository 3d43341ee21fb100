"""Read what the fields of the form ask for together, and fill them in."""

from collections.abc import Mapping
from typing import Any

import gradio as gr

from sharding.core.options import Options
from sharding.page.form import FEWEST_STAGES, OTHER_SIZE, STAGES, Form
from sharding.page.links import SIZES, source_of

Given = Mapping[Any, Any]
"""What stands in the fields, by field."""


def source_in(form: Form, given: Given) -> str:
    """Return the source that is named, "" where there is none."""
    return source_of(given[form.repo], given[form.revision])


def size_in(form: Form, given: Given) -> str:
    """Return the size that is chosen or written, "" where there is none."""
    size: str = given[form.other_size] if given[form.size] == OTHER_SIZE else given[form.size]
    return size.strip()


def options_in(form: Form, given: Given) -> Options:
    """Return what is chosen. Raises UsageError for what is no choice."""
    kind = given[form.strategy]
    return Options(
        max_shard_size=size_in(form, given),
        strategy=f"{kind}:{int(given[form.stages] or 0)}" if kind == STAGES else kind,
        order=given[form.order],
        dtype=given[form.dtype],
        variant=given[form.variant],
        allow_overflow=given[form.overflow],
    )


def filled_in(form: Form, options: Options) -> dict[Any, Any]:
    """Return the fields as they stand for `options`."""
    size, (kind, _, count) = str(options.max_shard_size), options.strategy.partition(":")
    is_offered = size in SIZES
    return {
        form.variant: options.variant,
        form.size: size if is_offered else OTHER_SIZE,
        form.other_size: gr.Textbox(value="" if is_offered else size, visible=not is_offered),
        form.order: options.order,
        form.strategy: kind,
        form.stages: gr.Number(value=int(count or FEWEST_STAGES), visible=kind == STAGES),
        form.dtype: options.dtype,
        form.overflow: options.allow_overflow,
    }
