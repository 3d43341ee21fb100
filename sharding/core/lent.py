"""Say how another machine reaches the files of a job without anybody's login: values that go there. Pure."""

from dataclasses import dataclass, field

from sharding.core.values import RepoRef


@dataclass(frozen=True, slots=True)
class Grant:
    """Access to the store of a Hub, which is at `endpoint`, until `expires`, in seconds as `time.time` counts."""

    endpoint: str
    token: str = field(repr=False)
    expires: int


@dataclass(frozen=True, slots=True)
class LentFile:
    """A file to be read: in the store as `xet_hash`, else at `place`, a path that all machines have or an address.

    One in a folder was modified at `modified_ns`, or it is not the file that was lent.
    """

    file: str
    bytes: int
    xet_hash: str | None = None
    place: str = field(default="", repr=False)
    modified_ns: int | None = None


@dataclass(frozen=True, slots=True)
class LentSource:
    """Some files of a source: those of a folder, or of a repo of the Hub at `hub`."""

    ref: RepoRef
    files: tuple[LentFile, ...]
    hub: str = ""
    grant: Grant | None = None


@dataclass(frozen=True, slots=True)
class LentDestination:
    """Where shards of plan `plan_id` go: into a folder that all machines have, or the store of the Hub at `hub`."""

    ref: RepoRef
    plan_id: str
    folder: str = ""
    hub: str = ""
    grant: Grant | None = None
