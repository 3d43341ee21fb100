"""Fetch the report in a repo, within limits. Anybody may have written it: see `verify.trust`."""

from dataclasses import dataclass

from sharding.checkpoint.documents import read_small
from sharding.core.errors import Remedy, SourceError
from sharding.core.limits import MAX_SHOWN_REPORT_BYTES, MAX_SHOWN_REPORT_VALUES
from sharding.core.text import values_in
from sharding.core.values import FileEntry
from sharding.formats.names import REPORT_NAME
from sharding.report.schema import Report, parse_report
from sharding.storage.hub.client import Hub
from sharding.storage.hub.lookup import Lookup
from sharding.storage.locate import open_source
from sharding.storage.names import parse_address


@dataclass(frozen=True, slots=True)
class Result:
    """A repo at one commit, its files, and the report in it."""

    repo_id: str
    revision: str
    files: tuple[FileEntry, ...]
    report: Report


def read_result(place: str, *, endpoint: str, token: str | None = None) -> Result:
    """Return the result in the repo at `place`: "owner/name[@revision]", or a link.

    The report is untrusted. It is read only up to a limit, and refused if it is not what this tool writes. Raises
    SourceError.
    """
    link, address = Lookup(endpoint).link(place), parse_address(place, endpoint)
    if address.folder:
        raise SourceError(f"{place[:200]} is a folder in a repo. A result is a whole repo.", "Name the repo alone.")
    source = open_source(link, Hub(endpoint, token))
    entry = next((file for file in source.files if file.path == REPORT_NAME), None)
    if entry is None:
        raise SourceError(
            f"{source.ref.repo_id} has no {REPORT_NAME}, so there is no result to show.",
            "Only repos that this tool made have a result.",
            Remedy("plan_repo", "@".join(filter(None, (source.ref.repo_id, address.revision)))),
        )
    text = read_small(source, entry, MAX_SHOWN_REPORT_BYTES)
    refuse_costly(text, source.ref.repo_id)
    report = parse_report(text, source.ref.repo_id)
    return Result(source.ref.repo_id, source.ref.revision, source.files, report)


def refuse_costly(text: bytes, repo_id: str) -> None:
    """Raise SourceError if the report in `repo_id` has too many values: they need far more memory than its bytes."""
    if values_in(text) > MAX_SHOWN_REPORT_VALUES:
        raise SourceError(
            f"The {REPORT_NAME} of {repo_id} holds more than a page can show.",
            "Compare the models with `shard-my-repo verify`, which has no such limit.",
        )
