"""Variables, endpoints, bounds, wings and figures on the pages are those that there are."""

import ast
import re
from pathlib import Path

import pytest
from huggingface_hub import constants

from sharding.core import limits
from sharding.core.environment import SHARED_JOB_BYTES
from sharding.core.options import of_tool
from sharding.core.text import format_bytes
from sharding.desk import desk
from sharding.storage.hub import guard
from tests.conftest import ROOT
from tests.docs.pages import API, COMMANDS, DEVELOPMENT, FORMATS, GAINS, README, RESULTS, code, section, table

# --- What is looked up --------------------------------------------------------------------------------


def test_every_variable_that_is_read_stands_in_the_docs_and_none_besides() -> None:
    tree = ast.parse((ROOT / "sharding/core/environment.py").read_text())
    strings = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    read = {text for text in strings if re.fullmatch(r"[A-Z][A-Z_]+", text)} | {"HF_TOKEN"}  # that, by get_token()
    text = section(COMMANDS, "Environment") + section(API, "For many visitors")
    assert {span for span in code(text) if re.fullmatch(r"[A-Z][A-Z_]+", span)} == read


def test_every_variable_of_huggingface_hub_is_obeyed_or_said_to_be_of_no_use() -> None:
    folder = Path(constants.__file__).parent
    text = "".join(path.read_text() for path in folder.rglob("*.py"))
    read = set(re.findall(r"""(?:environ\.get\(|getenv\(|environ\[)\s*"((?:HF|HUGGING|TRANSFORMERS)[A-Z_]*)\"""", text))
    named = " ".join(code(section(COMMANDS, "Environment") + section(COMMANDS, "Variables of other tools")))
    assert len(read) > 20 and read - set(named.split()) == set()


def test_the_endpoints_and_their_arguments_are_those_in_the_docs() -> None:
    tree = ast.parse((ROOT / "sharding/page/api.py").read_text())  # to import it takes seconds
    (endpoints,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Endpoints")
    arguments = {
        f"/{method.name}": [
            *(one.arg for one in method.args.args if one.arg not in ("self", "request")),
            *(option.tool_name for option in of_tool(method.name)),
        ]
        for method in endpoints.body
        if isinstance(method, ast.FunctionDef) and not method.name.startswith("_") and method.name != "add"
    }
    rows = table(API, "endpoint | arguments")
    assert {code(endpoint)[0]: code(named) for endpoint, named, _ in rows} == arguments


def test_bounds_are_those_in_the_docs() -> None:
    bounds = dict(table(API, "limit |"))
    assert bounds["jobs queued or running"] == str(limits.MAX_ACTIVE_JOBS)
    assert bounds["a job may run"].startswith(f"{desk.JOB_SECONDS // 3600} hours")
    assert bounds["a job may say nothing"].startswith(f"{desk.SILENT_SECONDS // 60} minutes")
    assert bounds["headers of a model are read again"] == f"after {limits.CACHED_SECONDS // 60} minutes"
    text = section(FORMATS, "Limits")
    of_files = (limits.MAX_HEADER_BYTES, limits.MAX_SIDE_FILE_BYTES, limits.MAX_SIDE_FILES_BYTES, limits.MAX_CARD_BYTES)
    for size in (*of_files, limits.MAX_ANSWER_BYTES, limits.LEAST_BYTES):
        assert format_bytes(size).replace(".0", "") in text
    assert (limits.MAX_TENSORS, limits.MAX_FILES) == (1_000_000, 100_000)
    assert "a million tensors" in " ".join(text.split())
    assert (guard.LONGEST_ANSWER_SECONDS, guard.LEAST_SECONDS) == (300, 60) and "five minutes" in text
    assert format_bytes(SHARED_JOB_BYTES).replace(".0", "") in section(API, "For many visitors")


def test_the_wings_and_benchmarks_are_those_in_the_docs() -> None:
    wings = {f"{path.name}/" for path in (ROOT / "sharding").iterdir() if path.is_dir() and path.name[0] != "_"}
    assert {code(wing)[0] for wing, _ in table(DEVELOPMENT, "package | what")} == wings
    assert {code(file)[0] for file, _ in table(DEVELOPMENT, "benchmark | what")} == {
        f"bench/{path.name}" for path in (ROOT / "bench").glob("*.py")
    }


# --- Figures ------------------------------------------------------------------------------------------


QUANTITY = re.compile(r"(\d[\d,]*(?:\.\d+)?)(?: ?(MB|GB|kB|s\b|%))?")
NO_RESULT = {"smallest..largest", "wanted", "target"}


def quantities(text: str) -> list[tuple[float, str]]:
    """Every number in a text with its unit, which may stand after the last of several; a ratio has none."""
    found, unit = [], ""
    for number, own in reversed(QUANTITY.findall(text.replace("×", "%").replace("%", "% "))):
        unit = own or unit
        found.append((float(number.replace(",", "")), "" if unit == "%" else unit))
    return found[::-1]


def measured(command: str) -> list[tuple[float, str]]:
    """Every result in the tables that `command` gave, what was wanted and how far runs were apart left out."""
    results = []
    for text in RESULTS.read_text().split("\n## "):
        if f"Command: `{command}`" not in text:
            continue
        head: list[str] = []
        for line in text.splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
            head = (head or cells) if cells else []
            for name, cell in list(zip(head, cells, strict=True))[1:]:
                results += quantities(cell.partition("(")[0]) if name not in NO_RESULT else []
    return results


def is_among(number: float, unit: str, places: int, results: list[tuple[float, str]]) -> bool:
    return any(of == unit and abs(result - number) <= 0.5001 * 10**-places for result, of in results)


def figures(page: Path) -> list[tuple[str, str, str]]:
    """Each row of a page's table of figures: what, the figures, the command."""
    if page == README:
        rows = table(page, "job | other")
        return [(what, f"{other}; {this}", command) for what, other, this, _, command in rows]
    return [(what, figure, command) for what, figure, command in table(page, "what | figure")]


@pytest.mark.parametrize("page", [README, GAINS], ids=["README", "gains"])
def test_every_figure_is_one_that_was_measured(page: Path) -> None:
    for what, figure, command in figures(page):
        results = measured(code(command)[0])
        written = re.findall(r"\d+(?:\.\d+)?", figure)
        assert written, what
        for (number, unit), text in zip(quantities(figure), written, strict=True):
            places = len(text.partition(".")[2])
            assert is_among(number, unit, places, results), f"{what}: {number} {unit}"


def test_the_machines_are_those_on_which_it_was_measured() -> None:
    sections = RESULTS.read_text().split("\n## ")
    for what, *_, machine, command in table(README, "job | other"):
        (text,) = (text for text in sections if f"Command: {command}\n" in f"{text}\n")
        assert f"Machine: {machine}" in text.replace("(R)", ""), what


def test_what_loading_costs_is_what_was_measured() -> None:
    results = measured("python bench/loading.py --pairs 3")
    for what, *cells in table(GAINS, "load | original"):
        assert all(quantity in results for cell in cells for quantity in quantities(cell)), what
