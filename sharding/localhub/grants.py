"""Grant access to the Xet store over HTTP for a while, in tokens that say themselves what they are good for."""

import hmac
import time
from dataclasses import dataclass, field
from typing import Literal

Right = Literal["read", "write"]


@dataclass(frozen=True, slots=True)
class Grants:
    """The address of the store, how long a token is good, and the key that signs it."""

    endpoint: str
    seconds: int
    key: bytes = field(repr=False)

    def token(self, right: Right, seconds: int | None = None) -> tuple[str, int]:
        """Return a token and the second, as `time.time` counts, in which it expires."""
        expires = int(time.time()) + (self.seconds if seconds is None else seconds)
        return f"xet_{right}_{expires}_{self._sign(right, expires)}", expires

    def allows(self, authorization: str, right: Right) -> bool:
        """Whether a header `Authorization` has a token that is good for this; who may write may also read."""
        scheme, granted, expires, signature = (*authorization.split("_"), "", "", "", "")[:4]
        return (
            scheme == "Bearer xet"
            and hmac.compare_digest(signature, self._sign(granted, expires))
            and granted in (right, "write")
            and int(expires) >= time.time()
        )

    def _sign(self, right: str, expires: int | str) -> str:
        return hmac.new(self.key, f"{right}_{expires}".encode(), "sha256").hexdigest()
