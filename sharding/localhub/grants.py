"""Grant access to the Xet store over HTTP for a limited time, with tokens that hold their own claims."""

import hmac
import secrets
import time
from dataclasses import dataclass, field
from typing import Literal

Right = Literal["read", "write"]

HUBS_OWN = "hub"
"""The name of the Hub's own grants."""


@dataclass(frozen=True, slots=True)
class Grants:
    """The address of the store, how long a token is valid, and the key that signs it."""

    endpoint: str
    seconds: int
    key: bytes = field(repr=False)

    def token(self, right: Right, seconds: int | None = None, name: str = "") -> tuple[str, int]:
        """Return a token with that name ("": a random one), and the time of its end in seconds since 1970."""
        expires = int(time.time()) + (self.seconds if seconds is None else seconds)
        claims = f"{right}_{expires}_{name or secrets.token_hex(8)}"
        return f"xet_{claims}_{self._sign(claims)}", expires

    def allows(self, authorization: str, right: Right) -> bool:
        """Return whether a header `Authorization` has a valid token for that right. A token to write also reads."""
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
    """Return the public name of the token in a header `Authorization`, or "" without one."""
    return (*authorization.split("_"), *[""] * 4)[3]
