"""Check the metadata at the top of a model card, as the Hub does before it accepts one."""

import re
from typing import Any

from starlette.responses import JSONResponse

from sharding.localhub.web import Answer, Call, text_of

MAX_CARD_BYTES = 1_000_000

_FRONT_MATTER = re.compile(r"\A\s*---[\r\n]+(.*?)[\r\n]+---(?:\r\n|\n|\Z)", re.DOTALL)

_LICENSE_IDS = """
apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m bigscience-bloom-rail-1.0
bigcode-openrail-m afl-3.0 artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda cc
cc0-1.0 cc-by-2.0 cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0
cc-by-nc-4.0 cc-by-nd-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0
cdla-sharing-1.0 cdla-permissive-1.0 cdla-permissive-2.0 wtfpl ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1
eupl-1.2 agpl-3.0 gfdl gpl gpl-2.0 gpl-3.0 lgpl lgpl-2.1 lgpl-3.0 isc h-research intel-research lppl-1.3c
ms-pl apple-ascl apple-amlr mpl-2.0 odc-by odbl openmdw-1.0 openrail++ osl-3.0 postgresql ofl-1.1 ncsa
unlicense zlib pddl lgpl-lr deepfloyd-if-license fair-noncommercial-research-license llama2 llama3 llama3.1
llama3.2 llama3.3 llama4 grok2-community gemma unknown other
"""
LICENSES = frozenset(_LICENSE_IDS.split())  # The values that the Hub's documentation lists for `license`.

_TEXTS = ("license_name", "license_link", "library_name", "pipeline_tag", "inference", "thumbnail", "title", "sdk")
_TEXT_LISTS = ("language", "tags", "datasets", "metrics", "base_model", "new_version")


def validate(call: Call) -> Answer:
    errors = [{"message": message} for message in find_errors(text_of(call.json(), "content"))]
    return JSONResponse({"errors": errors, "warnings": []}, status_code=400 if errors else 200)


def read_metadata(card: str) -> object:
    """Return the metadata between the lines `---` at the top of a card, or None. Raises ValueError if it is no YAML."""
    import yaml  # type: ignore[import-untyped, unused-ignore]

    match = _FRONT_MATTER.match(card)
    if not match:
        return None
    try:
        return yaml.safe_load(match[1])
    except yaml.YAMLError as error:
        raise ValueError(f"YAML Metadata Error: {error}") from error
    except RecursionError as error:
        raise ValueError("YAML Metadata Error: nested too deep") from error


def card_data(card: str) -> dict[str, Any]:
    """Return the metadata of a card as a mapping. It is empty if the metadata is missing or broken."""
    try:
        metadata = read_metadata(card)
    except ValueError:
        return {}
    return metadata if isinstance(metadata, dict) else {}


def find_errors(card: str) -> list[str]:
    """Return the errors in the metadata of a card, one sentence each. The list is empty if the Hub would accept it."""
    try:
        metadata = read_metadata(card)
    except ValueError as error:
        return [str(error)]
    if metadata is None:
        return []
    if not isinstance(metadata, dict):
        return ["YAML Metadata Error: the metadata must be an object"]
    errors = [f'"{key}" must be a string' for key in _TEXTS if not isinstance(metadata.get(key, ""), str | bool)]
    for key in _TEXT_LISTS:
        value = metadata.get(key, "")
        items = value if isinstance(value, list) else [value]
        wrong = [place for place, item in enumerate(items) if not isinstance(item, str)]
        if wrong and value is not None:
            errors.append(
                f'"{key}[{wrong[0]}]" must be a string' if items is value else f'"{key}" must be a string or an array'
            )
    if "license" in metadata:
        value = metadata["license"]
        licenses = value if isinstance(value, list) else [value]
        if not licenses or any(not isinstance(name, str) or name not in LICENSES for name in licenses):
            errors.append(f'"license" must be one of [{", ".join(sorted(LICENSES))}]')
    return errors


RULES = (("POST", "/api/validate-yaml", validate),)
