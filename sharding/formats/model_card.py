"""Read a model card: its metadata, within limits, and its text. Touches no files."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml  # type: ignore[import-untyped]

from sharding.core.limits import MAX_METADATA_BYTES, MAX_METADATA_DEPTH, MAX_METADATA_VALUES
from sharding.core.text import format_bytes
from sharding.core.values import Finding
from sharding.formats.names import CARD_NAME

_FRONT_MATTER = re.compile(r"\A\s*---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ModelCard:
    """The content of a README.md: metadata, text, and the `problem` if the metadata could not be read."""

    metadata: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""
    problem: str = ""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """A finding if the metadata could not be read."""
        if not self.problem:
            return ()
        message = f"The metadata of the source's {CARD_NAME} is left out of the copy: {self.problem}."
        return (Finding("warning", "card-unread", message, "Add the licence and the tags to the copy yourself."),)


class _Unread(ValueError):
    """The reason why metadata is not read."""


def parse_card(card: str) -> ModelCard:
    """Return metadata and text of a card. Metadata is left out if it cannot be read, or would cost too much.

    >>> parse_card("---\\nlicense: mit\\n---\\nA model.").metadata
    {'license': 'mit'}
    """
    match = _FRONT_MATTER.match(card)
    if match is None:
        return ModelCard(text=card)
    text = card[match.end() :]
    try:
        return ModelCard(_metadata(match[1]), text)
    except _Unread as error:
        return ModelCard({}, text, str(error))
    except (yaml.YAMLError, ValueError, ArithmeticError):
        return ModelCard({}, text, "it is not valid YAML")


def _metadata(front: str) -> dict[str, Any]:
    if len(front) > MAX_METADATA_BYTES:
        raise _Unread(f"it is larger than {format_bytes(MAX_METADATA_BYTES)}")
    depth = 0
    # Events are checked one by one and build no objects. A few events can otherwise expand into very many.
    for number, event in enumerate(yaml.parse(front, yaml.SafeLoader)):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if number > MAX_METADATA_VALUES or depth > MAX_METADATA_DEPTH:
            raise _Unread(f"it has more than {MAX_METADATA_VALUES:,} values, or more than {MAX_METADATA_DEPTH} levels")
        is_merge = getattr(event, "value", "") == "<<" and event.style is None
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) or is_merge:
            raise _Unread("it uses anchors, aliases or merge keys of YAML")
        if getattr(event, "tag", None):
            raise _Unread("it uses tags of YAML")
        if re.search(r"[\ud800-\udfff]", getattr(event, "value", "")):  # YAML can write it as an escape
            raise _Unread("it contains a surrogate, which is not a character")
    metadata = yaml.load(front, _Loader)
    if metadata is not None and not isinstance(metadata, dict):
        raise _Unread("it is not a list of keys and values")
    return metadata or {}


_AS_IN_YAML_1_1 = {"tag:yaml.org,2002:null", "tag:yaml.org,2002:merge"}
_AS_IN_YAML_1_2 = {
    "bool": (r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    "int": (r"^[-+]?(?:0|[1-9][0-9]{0,17})$", "-+0123456789"),
    "float": (r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*|(?=[eE])))(?:[eE][-+]?[0-9]+)?$", "-+.0123456789"),
}


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """A safe YAML loader with the types of YAML 1.2. In it, `no` is Norwegian and `1:20` is a text.

    Dates, `0777`, infinite numbers, NaN and integers of more than 18 digits become texts too, because a Hub refuses
    them or they cannot be written again unchanged.
    """

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in rules if tag in _AS_IN_YAML_1_1]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_finite(self, node: Any) -> Any:
        number = self.construct_yaml_float(node)
        return number if math.isfinite(number) else node.value


_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_finite)
for _kind, (_pattern, _starts) in _AS_IN_YAML_1_2.items():
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(_pattern), list(_starts))
