"""Hold what a copy will be, on its way through the steps of the planner. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sharding.core.hints import Hints
from sharding.core.made import Made
from sharding.core.options import Options
from sharding.core.values import Component, Content, Finding, Tensor


@dataclass(frozen=True, slots=True)
class Draft:
    """What a copy of `content` will hold so far, the options that are true of it, and the folders `reconfigured`."""

    content: Content
    options: Options
    tensors: tuple[Tensor, ...]
    components: tuple[Component, ...]
    configs: Mapping[str, str]
    reconfigured: frozenset[str] = frozenset()
    findings: tuple[Finding, ...] = ()
    made: Made = ()
    hints: Hints = field(default_factory=dict)
    written: Mapping[str, bytes] = field(default_factory=dict)  # New files beside config.json, by path.
    unfit: frozenset[str] = frozenset()  # Files beside the weights that do not fit the copy.


def draft_of(content: Content, options: Options) -> Draft:
    """Return the draft of a copy to which nothing was done yet."""
    return Draft(content, options, content.tensors, content.components, content.configs, content.reconfigured)
