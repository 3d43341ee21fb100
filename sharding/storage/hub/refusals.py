"""Say in plain words what stands between this machine and a Hub, and what helps."""

import re
import ssl
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

import httpx2
from huggingface_hub import errors

from sharding.core.environment import certificates, proxies
from sharding.core.errors import DestinationError, Refused, Remedy, ShardingError
from sharding.core.extras import install_hint
from sharding.core.text import duration
from sharding.storage.hub.answers import (
    GarbledAnswer,
    OddAnswer,
    StoreAway,
    is_without,
    refuses_argument,
    seconds_asked,
)

SIGN_IN = "To sign in, run `hf auth login` or set HF_TOKEN."
GO_ON = "Start the same job again. It goes on where it stopped."
AROUND = "Or set HF_HUB_DISABLE_XET=1: then files pass the Hub."
NO_LOGIN, SIGN_IN_AGAIN = "The login is not valid or has expired", "Sign in, then start the same job again."

_STORAGE = "Free some storage on the Hub, or choose a smaller shard size."
_BY_STATUS = {
    400: ("The Hub does not accept the request", "Change what the Hub complains about, then start again."),
    401: (NO_LOGIN, f"{SIGN_IN_AGAIN} {SIGN_IN} HF_TOKEN counts before a saved login."),
    402: ("The Hub wants to be paid for it", "Free some storage on the Hub, or ask the owner of the account."),
    403: ("The login does not allow it", "Use a token that may write there, or choose another namespace."),
    404: ("The Hub cannot find it", "Check the name, and whether somebody has just deleted it."),
    407: ("A proxy asks for a login", "Write it into HTTP_PROXY and HTTPS_PROXY: http://user:password@host:port."),
    409: ("It already exists, or somebody else changed it just now", "Start again, or choose another name."),
    412: ("Somebody else has changed it", GO_ON),
    413: ("It is larger than the Hub accepts", _STORAGE),
    429: ("The Hub asks you to slow down", "Wait a few minutes, then start the same job again."),
    451: ("The Hub may not give it out, for legal reasons", "Choose another repo."),
}
_BY_WORDS = (
    ("storage limit", "The Hub has no storage left for it", _STORAGE),
    (
        "storage patterns",
        "The Hub has stopped uploads of this account",
        "Ask the Hub to allow them again, at the address that it names. Or write to a folder.",
    ),
    (
        "^403 .*gated repos",
        "The token may not read gated repos",
        "Allow it to read public gated repos, at {endpoint}/settings/tokens. Or use another token.",
    ),
    ("is disabled", "The Hub has disabled it", "Choose another repo, or ask its owner."),
    (
        "^403 POST /api/repos/create",
        "The login does not allow it",
        "Use a token that may create repos in that namespace, or choose another namespace.",
    ),
    ("^403 GET (?!.*write)", "The login does not allow it", "Use a token that may read it, or ask its owner."),
    ("^429 .*hour", "The Hub has had enough requests for now", "Wait an hour, then start the same job again."),
)
"""What to look for in "STATUS METHOD path message" of a refusal, the problem, and what to do. The first one counts."""


_OWNER_AND_NAME = "Write owner/name, such as openai-community/gpt2."

_ASKED = r"/(?:revision|resolve|tree|commits?|preupload|paths-info|xet-[a-z]+-token)/([^/?]+)(?:/([^?]+))?"
"""The end of a request's address about a repo: the revision, and the path of a file for some requests."""

_PURPOSES = {
    "/refs": "staging",
    "/branch/": "staging",
    "/xet-": "the transfer through Xet",
    "/preupload/": "the upload",
    "/info/lfs/": "the upload",
    "/commit/": "publishing",
    "/tree/": "listing the files",
    "/whoami": "the login",
}
"""What each endpoint is needed for, by a part of its path."""


def explanation(
    error: BaseException | None, repo_id: str, endpoint: str, family: type[ShardingError], is_signed_in: bool, away: str
) -> ShardingError | None:
    """Return a `family` error that explains an error about `repo_id`. None if neither client nor Hub has caused it.

    `away` is the message of the `StoreAway` that this Hub has met, "" for none.
    """
    match error:
        case OddAnswer():
            request = f" ({error.request})" if error.request else ""
            hint = "Check that HF_ENDPOINT is the address of a Hub that you trust."
            return family(f"{endpoint} {error}{request}.", hint)
        case StoreAway():
            hint = f"Ask for it to be let through your network. {AROUND}"
            return family(f"{endpoint} answers, but its Xet store does not, {error}.", hint)
        case GarbledAnswer():
            hint = "A proxy may have answered instead of the Hub. Start the same job again later."
            return family(f"{endpoint} sent an unreadable answer to {error}.", hint)
        case errors.GatedRepoError() if "token settings" not in (error.server_message or ""):
            page = f"{endpoint}/{repo_id}"
            sign_in = "" if is_signed_in else f" Sign in with the same account. {SIGN_IN}"
            remedy = Remedy("accept_terms", page) if is_signed_in else Remedy("sign_in")
            return family(f"{repo_id} is gated.", f"Accept its terms at {page}.{sign_in} Then try again.", remedy)
        case errors.RevisionNotFoundError():
            revision = _asked_for(error, repo_id)[0]
            if family is DestinationError:
                name = f"The branch {revision!r}" if revision else "A branch"
                message = f"{name} of {repo_id} is gone, but the job writes to it."
                return family(message, "Somebody has deleted it. Start the same job again.")
            hint = "Name a branch, a tag or a commit that it has. A slash in its name is written %2F."
            return family(f"{repo_id} has no {f'revision {revision!r}' if revision else 'such revision'}.", hint)
        case errors.RemoteEntryNotFoundError():
            path = _asked_for(error, repo_id)[1]
            if path and "/tree/" in error.response.request.url.path:
                return family(f"{repo_id} has no folder {path}.", "Name a folder that it has, or the repo alone.")
            missing = f"the file {path!r}" if path else "a file that it listed"
            hint = "The repo may have changed. Start the same job again."
            return family(f"{repo_id} no longer has {missing}.", hint)
        case errors.RepositoryNotFoundError() if not isinstance(error, errors.GatedRepoError):
            hint = "Check the name." if "/" in repo_id else _OWNER_AND_NAME
            hint = hint if is_signed_in else f"{hint} If the repo is private, sign in. {SIGN_IN}"
            message = f"The repo {repo_id} does not exist, or you have no access to it."
            return family(message, hint, None if is_signed_in else Remedy("sign_in"))
        case errors.HfHubHTTPError() if away and is_without(error) and "/info/lfs/" in error.response.request.url.path:
            return explanation(StoreAway(away), repo_id, endpoint, family, is_signed_in, away)
        case errors.HfHubHTTPError():
            return (_lack if is_without(error) else _refusal)(error, repo_id, endpoint, family)
        case errors.HFValidationError():
            return family(f"{repo_id!r} is not the name of a repo.", "Write owner/name.")
        case errors.OfflineModeIsEnabled():
            hint = "Unset HF_HUB_OFFLINE, or choose a folder as source and destination."
            return family("HF_HUB_OFFLINE is set, so this tool cannot use a Hub.", hint)
        case httpx2.LocalProtocolError():  # its own message quotes the header, and so the token
            hint = "Check your token. It may contain characters that are not allowed."
            message = f"The request to {endpoint} about {repo_id} cannot be sent: a header is not valid."
            return family(message, hint)
        case Exception() if refuses_argument(error):
            hint = "Check HF_ENDPOINT, your token, and the names of files and branches."
            return family(f"The request to {endpoint} about {repo_id} cannot be sent: {str(error).rstrip('.')}.", hint)
        case httpx2.RequestError() | ConnectionError() | TimeoutError():
            what, hint = way_out(error)
            message = f"{_asked_host(error, endpoint)} cannot be reached: {what or error or type(error).__name__}."
            return family(message, hint or f"Check the network. {GO_ON}")
        # hf-xet raises the next three. The first two name no number, which the system always does.
        case PermissionError(errno=None):
            return family(f"{NO_LOGIN}: {repo_id}.", f"{SIGN_IN_AGAIN} {SIGN_IN}", Remedy("sign_in"))
        case FileNotFoundError(errno=None):
            hint = "Start the same job again later. If that does not help, ask the owner to upload the files again."
            return family(f"The Hub lists files of {repo_id} whose bytes it does not have: {error}.", hint)
        case RuntimeError(__cause__=OddAnswer()):
            return explanation(error.__cause__, repo_id, endpoint, family, is_signed_in, away)
        case RuntimeError():
            return family(f"The transfer of {repo_id} broke off: {str(error).rstrip('.')}.", GO_ON)
    return None


def _asked_for(error: Any, repo_id: str) -> tuple[str, str]:
    """Return the revision and the path that the Hub could not find; "" for what its request does not name."""
    match = re.search(re.escape(f"/{repo_id}") + _ASKED, error.response.request.url.raw_path.decode())
    return (unquote(match[1]), unquote(match[2] or "")) if match else ("", "")


def _lack(error: Any, repo_id: str, endpoint: str, family: type[ShardingError]) -> ShardingError:
    method, path = error.response.request.method, error.response.request.url.path
    if path == f"/api/models/{repo_id}" and "/" not in repo_id:
        return family(f"This Hub has no repo {repo_id!r}.", _OWNER_AND_NAME)
    purpose = next((purpose for part, purpose in _PURPOSES.items() if part in path), "the job")
    hint = "Check that HF_ENDPOINT is the address of a Hub. Some Hubs do not have every endpoint."
    return family(f"This Hub has no {method} {path}, but {purpose} needs it.", hint)


def _refusal(error: Any, repo_id: str, endpoint: str, family: type[ShardingError]) -> ShardingError:
    answer, message = error.response, (error.server_message or "").strip()
    status, request = answer.status_code, answer.request
    problem, hint = _BY_STATUS.get(status, ("The Hub has an internal problem", "Start the same job again later."))
    said = f"{status} {request.method} {request.url.path} {message}"
    for sign, *words in _BY_WORDS:
        if re.search(sign, said, re.I | re.S):
            problem, hint = words
            break
    if status == 403 and not message and "html" in answer.headers.get("Content-Type", ""):
        problem = "Something between this machine and the Hub refuses the request"
        hint = f"Ask for {request.url.host} to be let through your network, or use another network."
    if status == 429 and (seconds := seconds_asked(answer.headers)):
        hint = f"Wait {duration(seconds)}, then start the same job again."
    lines = [line.rstrip(".") for line in message.splitlines()]
    remedy = Remedy("sign_in") if status == 401 else None
    details = f"status {status}{f', {lines[0][:200]}' if lines else ''}"
    return family(f"{problem}: {repo_id}, {details}.", hint.format(endpoint=endpoint), remedy)


def _asked_host(error: Exception, endpoint: str) -> str:
    """Return who did not answer: the Hub at `endpoint`, or the host to which it sent its reader."""
    with suppress(RuntimeError):  # the client does not say which request failed
        if isinstance(error, httpx2.RequestError) and error.request.url.host != httpx2.URL(endpoint).host:
            return f"{error.request.url.host}, where {endpoint} keeps files,"
    return endpoint


def way_out(error: Exception) -> tuple[str, str]:
    """Return what happened, to be put behind "cannot be reached", and what to do; "" for what others say as well."""
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        if match := re.search(r"failed: (.*(?:expired|not yet valid|mismatch).*) \(", str(error)):
            return match[1], "Check the address and the clock of this machine, or tell who runs the Hub."
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
    if isinstance(error, (httpx2.ConnectError, httpx2.ConnectTimeout)) and (variable := next(iter(proxies()), "")):
        return "", f"Check the network, and the proxy that {variable} names. {GO_ON}"
    return "", ""


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
