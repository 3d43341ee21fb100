"""See of a Hub only its store, with a grant in the place of a login: what a worker has."""

import time
from contextlib import suppress
from functools import partial
from typing import Any, Literal

from sharding.core.errors import DestinationError, GrantExpired
from sharding.core.lent import LentDestination, LentSource
from sharding.core.limits import GRANT_MARGIN_SECONDS
from sharding.core.values import ShardRecord
from sharding.storage.hub.client import Hub
from sharding.storage.hub.guard import checked_grant, checked_place
from sharding.storage.hub.upload import XetShardWriter


class GrantedHub(Hub):
    """A Hub of which some files were lent, or the place for some."""

    least_xet_bytes = 0
    """All of a file in the store is read from there: over HTTP it might take a login."""

    def __init__(self, lent: LentSource | LentDestination) -> None:
        """Take what was `lent`. Asks nothing."""
        super().__init__(lent.hub, None)
        self._grant = lent.grant
        self._places = {one.file: one.place for one in lent.files} if isinstance(lent, LentSource) else {}

    def address(self, repo_id: str, revision: str, path: str) -> str:
        """Return where a file that is not in the store is read."""
        return checked_place(self._places[path])

    def _xet_access(self, kind: Literal["read", "write"], repo_id: str, revision: str) -> dict[str, Any]:
        """Return how hf-xet reaches the store. Raises GrantExpired."""
        if self._grant is None or self._grant.expires <= time.time() + GRANT_MARGIN_SECONDS:
            raise GrantExpired(f"The access to {repo_id} that was granted for a part of the job has ended.")
        return self._reached_with(checked_grant(self._grant, self.endpoint))


class GrantedStore:
    """The store of a Hub: what is put there, somebody with a login commits. See `borrowed.LentSink`."""

    shards_at_once = 1

    def __init__(self, lent: LentDestination) -> None:
        """Take the store. Asks nothing."""
        self._hub = GrantedHub(lent)
        self._repo_id = lent.ref.repo_id
        self._writers: list[XetShardWriter] = []

    @property
    def bytes_uploaded(self) -> int:
        """Bytes that were sent to the store."""
        return sum(writer.bytes_uploaded for writer in self._writers)

    @property
    def bytes_deduplicated(self) -> int:
        """Bytes that the store had already."""
        return sum(writer.bytes_deduplicated for writer in self._writers)

    def finished(self, file: str) -> ShardRecord | None:
        """Return None: the store has no names. What is put there twice is there once."""

    def open_shard(self, file: str) -> XetShardWriter:
        """Start a shard."""
        start = partial(self._hub.upload_to, self._repo_id, "")
        self._writers.append(XetShardWriter(lambda: self._hub.ask(self._repo_id, DestinationError, start), file))
        return self._writers[-1]

    def note(self, record: ShardRecord) -> None:
        """Do nothing: the shard is where it can be committed from."""

    def close(self) -> None:
        """Give up what is not finished."""
        for writer in self._writers:
            with suppress(RuntimeError, OSError):
                writer.abort()
