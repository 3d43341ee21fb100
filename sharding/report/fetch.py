"""Fetch the report that a job left in a repo, within bounds. Nobody vouches for what it says: see `verify.trust`."""

from dataclasses import dataclass

from sharding.checkpoint.documents import read_small
from sharding.core.errors import SourceError
from sharding.core.limits import MAX_SHOWN_REPORT_BYTES, MAX_SHOWN_REPORT_VALUES
from sharding.core.text import values_in
from sharding.core.values import FileEntry
from sharding.formats.names import REPORT_NAME
from sharding.report.schema import Report, parse_report
from sharding.storage.hub.client import Hub
from sharding.storage.hub.lookup import Lookup
from sharding.storage.locate import open_source


@dataclass(frozen=True, slots=True)
class Result:
    """A repo at one commit, the files that it has there, and what the report in it says."""

    repo_id: str
    revision: str
    files: tuple[FileEntry, ...]
    report: Report


def read_result(place: str, *, endpoint: str, token: str | None = None) -> Result:
    """Return the result in the repo that `place` ("owner/name[@revision]", or a link) names.

    The report is untrusted: it is read only up to a bound, and refused where it is not what this tool writes.
    Raises SourceError.
    """
    source = open_source(Lookup(endpoint).link(place), Hub(endpoint, token))
    entry = next((file for file in source.files if file.path == REPORT_NAME), None)
    if entry is None:
        raise SourceError(
            f"{source.ref.repo_id} has no {REPORT_NAME}, so there is no result to show.",
            "Only repos that this tool has made have one.",
        )
    text = read_small(source, entry, MAX_SHOWN_REPORT_BYTES)
    refuse_costly(text, source.ref.repo_id)
    report = parse_report(text)
    return Result(source.ref.repo_id, source.ref.revision, source.files, report)


def refuse_costly(text: bytes, repo_id: str) -> None:
    """Raise SourceError where the report in `repo_id` would take far more memory than its bytes, once it is read."""
    if values_in(text) > MAX_SHOWN_REPORT_VALUES:
        raise SourceError(
            f"The {REPORT_NAME} of {repo_id} holds more than a page can show.",
            "`shard-my-repo verify` compares models of any size.",
        )
