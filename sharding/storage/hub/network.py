"""Say which variable or which place on the way is to blame if no connection comes about."""

import ssl
from contextlib import suppress

import httpx2

from sharding.core.environment import certificates, proxies
from sharding.core.errors import Refused
from sharding.core.extras import install_hint


class StoreAway(Exception):  # noqa: N818 - it is the store that is away
    """The store that a Hub names does not answer. The message is its host, and what happened."""


def unusable_variable(error: Exception) -> Refused:
    """Return what to say if no client can be made that follows the variables for certificates and proxies."""
    if isinstance(error, OSError):
        name, path = certificates()
        reason = "there is none in it" if isinstance(error, ssl.SSLError) else error.strerror or str(error)
        message = f"The certificates that {name} names ({path}) cannot be read: {reason}."
        return Refused(message, "Set it to a file of certificates (PEM) that you may read, or unset it.")
    lacks_library = isinstance(error, ImportError)
    names = [name for name, text in proxies().items() if text.startswith("socks") or not lacks_library]
    if lacks_library:
        return Refused(f"{names[0]} names a SOCKS proxy, which needs the library socksio.", install_hint("socksio"))
    message = f"{' or '.join(names)} does not name a proxy that can be used."
    return Refused(message, "Write http://host:port. It may also begin with https, socks5 or socks5h.")


def never_passes(error: Exception) -> bool:
    """Return whether a connection fails in the same way each time: a proxy or a certificate stands in its way."""
    return isinstance(error, httpx2.ProxyError) or "CERTIFICATE_VERIFY_FAILED" in str(error)


def asked_host(error: Exception, endpoint: str) -> str:
    """Return who did not answer: the Hub at `endpoint`, or the host to which it sent its reader."""
    with suppress(RuntimeError):  # the client does not say which request failed
        if isinstance(error, httpx2.RequestError) and error.request.url.host != httpx2.URL(endpoint).host:
            return f"{error.request.url.host}, where {endpoint} keeps files,"
    return endpoint


def way_out(error: Exception) -> tuple[str, str]:
    """Return what happened, to be put behind "cannot be reached", and what to do; ("", "") if it may pass."""
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        name, path = certificates()
        hint = f"If your network reads what passes, set {name} to a file with its certificate (PEM)."
        if path:
            hint = f"{name} is set to {path}. Add the certificate of your network to it, or unset it."
        return "its certificate is not one that this machine trusts", hint
    if isinstance(error, httpx2.ProxyError):
        variable = next(iter(proxies()), "HTTPS_PROXY")
        if "407" in str(error):
            return "the proxy asks for a login", f"Write it into {variable}: http://user:password@host:port."
        hint = f"Ask who runs the proxy to let it pass. Or check {variable}, or add the host to NO_PROXY."
        return f"the proxy refuses it ({error})", hint
    return "", ""
