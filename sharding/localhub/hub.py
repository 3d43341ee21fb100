"""Define what every module of the Hub works with: its settings, its state and its files."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sharding.localhub.blobs import Blobs
from sharding.localhub.grants import Grants
from sharding.localhub.records import State
from sharding.localhub.store import XetStore


@dataclass(frozen=True, slots=True)
class Settings:
    """How this Hub behaves. The default numbers are those of the real Hub."""

    users: tuple[str, ...] = ("alice", "bob")
    orgs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Organisations, each with the members who may write."""
    xet: bool = True
    xet_over_http: bool = False
    """Whether clients reach the Xet store through this Hub, like the real one, and not through a shared disk."""
    xet_seconds: int = 12 * 3600
    """How long a grant to write, or to read over HTTP, is valid."""
    quota_bytes: int | None = None
    """How much a namespace can store in LFS and Xet files. No limit by default."""
    page_items: int = 1000
    multipart_above_bytes: int = 5_000_000_000
    oauth_seconds: int = 8 * 3600

    @property
    def part_bytes(self) -> int:
        """Size of the parts of a multipart upload."""
        return min(self.multipart_above_bytes, 100_000_000)


@dataclass(frozen=True, slots=True)
class Hub:
    """One Hub. `address` is the start of all its URLs, without a slash at the end."""

    address: str
    settings: Settings
    state: State
    blobs: Blobs
    xet: XetStore | None
    signing_key: bytes = field(repr=False)

    @classmethod
    def open(cls, address: str, folder: Path, settings: Settings) -> "Hub":
        """Open the Hub in `folder`, or create one there. Accounts are added, never removed."""
        folder = folder.resolve()
        state = State(folder)
        blobs = Blobs(folder / "blobs")
        with state.writing() as db:
            for user in settings.users:
                db.execute("INSERT OR IGNORE INTO accounts VALUES (?, 'user')", (user,))
            for org, members in settings.orgs.items():
                db.execute("INSERT OR IGNORE INTO accounts VALUES (?, 'org')", (org,))
                db.executemany("INSERT OR IGNORE INTO members VALUES (?, ?)", [(org, member) for member in members])
        key = state.secret("signing key").encode()
        grants = Grants(f"{address}/cas", settings.xet_seconds, key) if settings.xet_over_http else None
        xet = XetStore(folder, state, grants) if settings.xet else None
        return cls(address, settings, state, blobs, xet, key)

    def close(self) -> None:
        """Close the files."""
        self.state.close()
