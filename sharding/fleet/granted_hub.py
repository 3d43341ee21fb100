"""Reach only the store of a Hub, as a worker does: with a grant instead of a login."""

import time
from typing import Any, Literal

from sharding.core.errors import GrantExpired
from sharding.core.limits import GRANT_MARGIN_SECONDS
from sharding.core.protocols import LentDestination, LentSource
from sharding.storage.hub.client import Hub
from sharding.storage.hub.guard import checked_grant, checked_place


class GrantedHub(Hub):
    """A Hub that has given access to some files, or to a place for some."""

    least_xet_bytes = 0
    """Every file in the store is read from there, because HTTP might need a login."""

    def __init__(self, lent: LentSource | LentDestination) -> None:
        """Use the access that was `lent`. Asks nothing."""
        super().__init__(lent.hub, None)
        self._grant = lent.grant
        self._places = {file.file: file.place for file in lent.files} if isinstance(lent, LentSource) else {}

    def address(self, repo_id: str, revision: str, path: str) -> str:
        """Return the address of a file that is not in the store."""
        return checked_place(self._places[path])

    def _xet_access(self, kind: Literal["read", "write"], repo_id: str, revision: str) -> dict[str, Any]:
        """Return what hf-xet needs to reach the store. Raises GrantExpired."""
        if self._grant is None or self._grant.expires <= time.time() + GRANT_MARGIN_SECONDS:
            message = f"The access to {repo_id} for this part of the job has expired."
            raise GrantExpired(message, "Start the same job again. It goes on where it stopped.")
        return self._reached_with(checked_grant(self._grant, self.endpoint))
