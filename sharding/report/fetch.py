"""Fetch the report that a job left in a repo, within bounds, and see whether it describes what lies beside it."""

from dataclasses import dataclass

from sharding.checkpoint.read import read_small
from sharding.core.errors import SourceError
from sharding.core.limits import MAX_SHOWN_REPORT_BYTES
from sharding.formats.names import REPORT_NAME
from sharding.report.schema import Report, parse_report
from sharding.storage.hub_client import Hub
from sharding.storage.hub_lookup import Lookup
from sharding.storage.locate import open_source


@dataclass(frozen=True, slots=True)
class Result:
    """A repo at one commit, what the report in it says, and whether the files there are those it names."""

    repo_id: str
    revision: str
    report: Report
    has_those_files: bool


def read_result(place: str, *, endpoint: str, token: str | None = None) -> Result:
    """Return the result in the repo that `place` ("owner/name[@revision]", or a link) names.

    The report is untrusted: it is read only up to a bound, and refused where it is not what this tool writes.
    Its files count as those of the repo if the Hub stores every shard with the size and SHA-256 that it names.
    Raises SourceError.
    """
    source = open_source(Lookup(endpoint).link(place), Hub(endpoint, token))
    files = {file.path: file for file in source.files}
    entry = files.get(REPORT_NAME)
    if entry is None:
        raise SourceError(
            f"{source.ref.repo_id} has no {REPORT_NAME}, so there is no result to show.",
            "Only repos that this tool has made have one.",
        )
    report = parse_report(read_small(source, entry, MAX_SHOWN_REPORT_BYTES))
    stored = {path: (file.bytes, file.sha256) for path, file in files.items()}
    agrees = all(stored.get(shard.file) == (shard.bytes, shard.sha256) for shard in report.shards)
    return Result(source.ref.repo_id, source.ref.revision, report, agrees)
