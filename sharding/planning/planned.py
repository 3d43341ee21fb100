"""Plan a copy, with what transformers knows of its model class."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from sharding.core.extras import require
from sharding.core.hints import Hints
from sharding.core.options import Options
from sharding.core.values import Checkpoint, Plan
from sharding.model_class.architecture import hints_for, stored_names
from sharding.planning.adapters.classifiers import as_classifier
from sharding.planning.adapters.merged import merged, unknown_names
from sharding.planning.dequantize import dequantized, without_left_over
from sharding.planning.plan import plan_checkpoint
from sharding.recipes.dora import Dora


def planned(
    checkpoint: Checkpoint,
    options: Options,
    ask: Callable[[Checkpoint, Options], Hints] = hints_for,
    run: Callable[[str, Callable[[], Any]], Any] = lambda what, make: make(),
    ask_names: Callable[[Checkpoint], Mapping[str, str]] = stored_names,
) -> Plan:
    """Return the plan for a copy of `checkpoint` with `options`: where each tensor goes, and how it is made.

    `ask` returns what transformers knows of the model class. That takes seconds, if the options need it. `ask_names`
    returns the stored names of names in memory, if an adapter has names that the checkpoint does not. `run` does a step
    that takes seconds for a hundred thousand tensors, given its name. Raises UsageError, SourceError, and Refused if a
    library is missing.
    """
    after = without_left_over(checkpoint, drops=options.dequantize or options.dtype != "keep" or bool(options.adapter))
    if options.dequantize and after.reconfigured > checkpoint.reconfigured:
        options = replace(options, dequantize=False)  # the weights are ordinary ones already
    after = dequantized(after) if options.dequantize else after
    if checkpoint.adapter:
        known = ask_names(as_classifier(checkpoint)) if run("names", partial(unknown_names, checkpoint)) else {}
        after = run("merge", partial(merged, after, may_overflow=options.allow_overflow, known=known))
    if any(isinstance(tensor.recipe, Dora) for tensor in after.tensors):
        require("Merging a DoRA")
    plan: Plan = run("plan", partial(plan_checkpoint, after, options, ask(after, options)))
    about_merge = after.findings[len(checkpoint.findings) :]
    return replace(plan, findings=(*about_merge, *plan.findings)) if about_merge else plan
