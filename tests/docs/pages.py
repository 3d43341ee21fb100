"""Read the pages: README and docs."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import typer

from sharding.cli.commands import app
from tests.commands import invoke
from tests.conftest import ROOT

README, RESULTS = ROOT / "README.md", ROOT / "bench/RESULTS.md"
COMMANDS, API, GAINS, DEVELOPMENT, FORMATS, ARCHITECTURES, TROUBLE = (
    ROOT / "docs" / f"{name}.md"
    for name in (*("commands", "page-and-api", "gains", "development", "formats", "architectures"), "troubleshooting")
)
AGENTS = (ROOT / "llms.txt", ROOT / "skills/shard-my-repo/SKILL.md")
PAGES = (README, *sorted((ROOT / "docs").glob("*.md")))
MOST_LINES = 170
CLI: Any = typer.main.get_command(app)


def prose(page: Path) -> str:
    """The text of a page without its front matter and code blocks."""
    text = page.read_text()
    text = text.split("---\n", 2)[2] if text.startswith("---\n") else text
    return re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)


def section(page: Path, heading: str) -> str:
    """What stands below a heading of a page, up to the next of its rank."""
    return page.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]


def subsection(page: Path, heading: str) -> str:
    """What stands below a heading of the third rank, up to the next heading."""
    return re.split(r"^##", page.read_text().split(f"\n### {heading}\n")[1], maxsplit=1, flags=re.M)[0]


def table(page: Path, head: str) -> list[list[str]]:
    """The cells of the tables of a page whose first row begins with `head`, row by row; there is at least one."""
    return cells(page.read_text(), head)


def cells(text: str, head: str) -> list[list[str]]:
    """The same of a text."""
    below = text.split(f"\n| {head}")[1:]
    assert below, f"There is no table that begins with {head}."
    rows = [row for part in below for row in part.split("\n\n")[0].splitlines()[2:]]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row.strip()[1:-1])] for row in rows]


def code(text: str) -> list[str]:
    """What stands between single backquotes."""
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), flags=re.M | re.S)


def slugs(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the Hub make them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@cache
def localhub_options() -> frozenset[str]:
    return frozenset(re.findall(r"^  (--[a-z-]+)", invoke("localhub", "--help").stdout, flags=re.M))
