"""Say what helps against a Hub's refusal."""

import re
from typing import Any

from sharding.core.errors import Remedy, ShardingError
from sharding.core.text import duration
from sharding.storage.hub.answers import seconds_asked

SIGN_IN = "To sign in, run `hf auth login` or set HF_TOKEN."
GO_ON = "Start the same job again. It goes on where it stopped."
NO_LOGIN, SIGN_IN_AGAIN = "The login is not valid or has expired", "Sign in, then start the same job again."

_STORAGE = "Free some storage on the Hub, or choose a smaller shard size."
_BY_STATUS = {
    400: ("The Hub does not accept the request", "Change what the Hub complains about, then start again."),
    401: (NO_LOGIN, f"{SIGN_IN_AGAIN} {SIGN_IN}"),
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


def refusal(error: Any, repo_id: str, endpoint: str, family: type[ShardingError]) -> ShardingError:
    """Return a `family` error about an answer of the Hub at `endpoint` that is no success."""
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
