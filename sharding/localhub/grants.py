"""Grant access to the Xet store over HTTP for a while, in tokens that say themselves what they are good for."""

import hmac
import secrets
import time
from dataclasses import dataclass, field
from typing import Literal

Right = Literal["read", "write"]

HUBS_OWN = "hub"
"""The name of all that the Hub grants itself."""


@dataclass(frozen=True, slots=True)
class Grants:
    """The address of the store, how long a token is good, and the key that signs it."""

    endpoint: str
    seconds: int
    key: bytes = field(repr=False)

    def token(self, right: Right, seconds: int | None = None, name: str = "") -> tuple[str, int]:
        """Return a token of that name ("": one of its own), and the second, as `time.time` counts, of its end."""
        expires = int(time.time()) + (self.seconds if seconds is None else seconds)
        claims = f"{right}_{expires}_{name or secrets.token_hex(8)}"
        return f"xet_{claims}_{self._sign(claims)}", expires

    def allows(self, authorization: str, right: Right) -> bool:
        """Whether a header `Authorization` has a token that is good for this; who may write may also read."""
        scheme, granted, expires, name, signature = (*authorization.split("_"), *[""] * 5)[:5]
        return (
            scheme == "Bearer xet"
            and hmac.compare_digest(signature, self._sign(f"{granted}_{expires}_{name}"))
            and granted in (right, "write")
            and int(expires) >= time.time()
        )

    def _sign(self, claims: str) -> str:
        return hmac.new(self.key, claims.encode(), "sha256").hexdigest()


def name_of_grant(authorization: str) -> str:
    """Return what tells the token in a header `Authorization` from others, and is no secret; "" without one."""
    return (*authorization.split("_"), *[""] * 4)[3]
