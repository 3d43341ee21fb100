"""README is a front page, and every page leads where it says."""

import re
from datetime import date

import yaml

from sharding import __version__
from tests.conftest import ROOT
from tests.docs.pages import AGENTS, MOST_LINES, PAGES, README, RESULTS, code, prose, slugs


def test_the_readme_is_a_front_page() -> None:
    assert len(README.read_text().splitlines()) <= MOST_LINES
    assert README.read_text().startswith("# ")  # GitHub would show front matter as a table


BEGINS = re.compile(
    r"(You|Build|Call|Change|Check|Choose|Compare|Copy|Cut|Decide|Deploy|Do|Find|Get|Give|Install|Learn|Look|Make|Move|Put"
    r"|Read|Run|See|Serve|Set|Share|Start|Try|Turn|Use|Verify|Write)\b.*[.:]"
)
"""How the first sentence of a page begins: with what the reader does."""


def test_every_page_begins_with_what_a_reader_does_there() -> None:
    for page in PAGES[1:]:
        lines = page.read_text().splitlines()
        first = " ".join(lines[2 : lines.index("", 2)])
        assert lines[0].startswith("# ") and not lines[1], page.name
        assert BEGINS.fullmatch(first), f"{page.name}: {first}"
        assert f"docs/{page.name}" in README.read_text()


DOORS = r"https://(colab\.research\.google\.com/#fileId=https://)?huggingface\.co/spaces/OWNER/shard-my-repo"
"""The only links of the front page that lead out: the Space itself, and the notebook in it."""


def test_every_link_leads_somewhere() -> None:
    for page in (*PAGES, RESULTS, *AGENTS):
        links = re.findall(r"\]\(([^)\s]+)\)", prose(page))
        for link in links if page != README else [link for link in links if not re.match(DOORS, link)]:
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert "://" not in link and target.exists() and target.is_relative_to(ROOT), f"{page.name}: {link}"
            assert not anchor or anchor in slugs(target), f"{page.name}: {link}"


def test_every_page_lists_what_stands_on_it() -> None:
    for page in PAGES[1:]:
        listed = re.findall(r"^- \[([^\]]+)\]\(#", page.read_text(), flags=re.M)
        assert listed in ([], re.findall(r"^## (.+)$", prose(page), flags=re.M)), page.name


def test_the_changelog_keeps_to_its_form() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## \[(.+?)\]", text, flags=re.M)
    assert versions[:2] == ["Unreleased", __version__]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert f"\n## [{citation['version']}] - {citation['date-released']}\n" in text
    kinds = re.findall(r"^### (.+)$", text, flags=re.M)
    assert set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    entries = re.split(r"^- ", text.split("## [Unreleased]")[1], flags=re.M)[1:]
    dates = [re.search(r"\((\d{4}-\d\d-\d\d)\)\s*(?:$|\n\n#)", entry) for entry in entries]
    assert all(dates) and all(date.fromisoformat(found[1]) for found in dates if found)


def test_files_and_tests_that_a_page_names_are_there() -> None:
    named = {(page, span) for page in (*PAGES, RESULTS) for span in code(prose(page))}
    for page, span in named:
        if re.match(r"(sharding|tests|bench|docs)/\S+$", span):
            path, _, test = span.partition("::")
            assert (ROOT / path).exists(), f"{page.name}: {span}"
            assert not test or f"\ndef {test}(" in (ROOT / path).read_text(), f"{page.name}: {span}"
