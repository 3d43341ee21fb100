"""Values that let another machine reach the files of a job without a login. Pure."""

from dataclasses import dataclass, field

from sharding.core.values import RepoRef


@dataclass(frozen=True, slots=True)
class Grant:
    """Access to the store of a Hub at `endpoint`, until `expires` (seconds, as in `time.time`)."""

    endpoint: str
    token: str = field(repr=False)
    expires: int


@dataclass(frozen=True, slots=True)
class LentFile:
    """A file that another machine may read: from the store by `xet_hash`, else from `place`.

    `place` is a path that all machines share, or an address. For a file in a folder, `modified_ns` is its time of
    modification. Another time means that the file has changed.
    """

    file: str
    bytes: int
    xet_hash: str | None = None
    place: str = field(default="", repr=False)
    modified_ns: int | None = None


@dataclass(frozen=True, slots=True)
class LentSource:
    """Some files of a source: a folder, or a repo of the Hub at `hub`."""

    ref: RepoRef
    files: tuple[LentFile, ...]
    hub: str = ""
    grant: Grant | None = None


@dataclass(frozen=True, slots=True)
class LentDestination:
    """Where the shards of plan `plan_id` go: a folder that all machines share, or the store of the Hub at `hub`."""

    ref: RepoRef
    plan_id: str
    folder: str = ""
    hub: str = ""
    grant: Grant | None = None
