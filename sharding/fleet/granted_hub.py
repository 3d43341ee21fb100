"""See of a Hub only its store, with a grant in the place of a login: what a worker has."""

import time
from typing import Any, Literal

from sharding.core.errors import GrantExpired
from sharding.core.lent import LentDestination, LentSource
from sharding.core.limits import GRANT_MARGIN_SECONDS
from sharding.storage.hub.client import Hub
from sharding.storage.hub.guard import checked_grant, checked_place


class GrantedHub(Hub):
    """A Hub of which some files were lent, or the place for some."""

    least_xet_bytes = 0
    """All of a file in the store is read from there: over HTTP it might take a login."""

    def __init__(self, lent: LentSource | LentDestination) -> None:
        """Take what was `lent`. Asks nothing."""
        super().__init__(lent.hub, None)
        self._grant = lent.grant
        self._places = {file.file: file.place for file in lent.files} if isinstance(lent, LentSource) else {}

    def address(self, repo_id: str, revision: str, path: str) -> str:
        """Return where a file that is not in the store is read."""
        return checked_place(self._places[path])

    def _xet_access(self, kind: Literal["read", "write"], repo_id: str, revision: str) -> dict[str, Any]:
        """Return how hf-xet reaches the store. Raises GrantExpired."""
        if self._grant is None or self._grant.expires <= time.time() + GRANT_MARGIN_SECONDS:
            raise GrantExpired(f"The access to {repo_id} that was granted for a part of the job has ended.")
        return self._reached_with(checked_grant(self._grant, self.endpoint))
