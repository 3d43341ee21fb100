"""Read the environment variables. No other module reads them."""

import atexit
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

from sharding.core.errors import Refused, Remedy, UsageError
from sharding.core.limits import MAX_STORED_TOKENS_BYTES, MAX_TOKEN_BYTES
from sharding.core.text import parse_bytes

SHARED_JOB_BYTES = 50_000_000_000
"""Largest job of a visitor on somebody else's Space, because others wait for it. Your own Space has no such limit."""


def hub_endpoint() -> str:
    """Return the address of the Hub: HF_ENDPOINT, or the public Hub. Raises UsageError if it has a login or is none.
    With some texts, huggingface_hub cannot even be imported."""
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"
    if "@" in endpoint.partition("://")[2].partition("/")[0]:
        hint = "Remove the login from it. Set HF_TOKEN instead."
        raise UsageError("HF_ENDPOINT contains a login, and links show this address.", hint)
    if not re.fullmatch(r"https?://([^]\s:/?#[]+|\[[\da-f:.]+\])(:\d{1,5})?(/[^\s?#]*)?", endpoint, re.I):
        hint = "Write http:// or https:// and the host, such as https://huggingface.co."
        raise UsageError(f"HF_ENDPOINT is {endpoint!r}, not the address of a Hub.", hint)
    return endpoint


def result_page(repo_id: str) -> str | None:
    """Return the address of the page that shows a result, if this is a Space: SPACE_HOST."""
    return f"https://{hosts[0]}/?result={repo_id}" if (hosts := space_hosts()) else None


def space_hosts() -> list[str]:
    """Return the host names of this Space, its own name first: SPACE_HOST. Empty outside a Space."""
    return _names("SPACE_HOST")


def page_hosts() -> list[str]:
    """Return the extra host names under which a page outside a Space is served: SHARD_HOSTS."""
    return _names("SHARD_HOSTS")


def _names(variable: str) -> list[str]:
    return [name.strip() for name in os.environ.get(variable, "").split(",") if name.strip()]


def hub_token() -> str | None:
    """Return the login of this machine: HF_TOKEN, or a saved one; None without. Raises Refused if it is unreadable."""
    from huggingface_hub import constants, get_token

    if _is_on("HF_HUB_DISABLE_IMPLICIT_TOKEN"):
        return None
    path = token = Path(constants.HF_TOKEN_PATH)
    renewal = Path(constants.HF_STORED_TOKENS_PATH)
    try:
        if not os.environ.get("HF_TOKEN", "").strip():
            for path, most_bytes in ((renewal, MAX_STORED_TOKENS_BYTES), (token, MAX_TOKEN_BYTES)):
                is_read = path.exists() and not path.is_dir() and not path.samefile(os.devnull)
                if is_read and (not path.is_file() or path.stat().st_size > most_bytes):
                    raise ValueError(path)  # reading it would never end, or fill the memory
        return get_token()
    except Exception as error:  # the Hub's library may raise anything about a damaged or foreign file
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "it does not contain a token"
        hint = "Run `hf auth login` again, or set HF_TOKEN."
        raise Refused(f"The saved login cannot be read from {path}: {reason}.", hint, Remedy("sign_in")) from error


def _is_on(variable: str) -> bool:
    """Return whether a switch is on, as huggingface_hub 2.4 reads it."""
    return os.environ.get(variable, "").lower() in ("1", "on", "yes", "true")


def xet_is_off() -> bool:
    """Return whether no file is to pass through a Hub's Xet store: HF_HUB_DISABLE_XET."""
    return _is_on("HF_HUB_DISABLE_XET")


def prepare_for_xet() -> None:
    """Tell hf-xet, before its import, to write no logs, and its cache where this user may write."""
    os.environ.setdefault("HF_XET_LOG_DEST", os.devnull)
    if "HF_XET_CACHE" not in os.environ:
        from huggingface_hub import constants

        if not _is_creatable(Path(constants.HF_XET_CACHE)):
            os.environ["HF_XET_CACHE"] = folder = tempfile.mkdtemp(prefix="shard-")
            atexit.register(shutil.rmtree, folder, ignore_errors=True)


_PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


def proxies() -> dict[str, str]:
    """Return the variables that name a proxy. Those in lower case count first, as everywhere."""
    names = [spelled for name in _PROXIES for spelled in (name.lower(), name)]
    return {name: text for name in names if (text := os.environ.get(name))}


def certificates() -> tuple[str, str]:
    """Return the variable that says which certificates are trusted, and its value, "" if none is set."""
    return next(((name, text) for name in _CERTIFICATES if (text := os.environ.get(name))), (_CERTIFICATES[0], ""))


def proxy_logins() -> set[str]:
    """Return the logins in the addresses of proxies, such as "me:secret@", also decoded. Nobody may see them."""
    written = {text.rpartition("://")[2].rpartition("@")[0] for text in proxies().values()} - {""}
    return {f"{login}@" for text in written for login in (text, unquote(text))}


def keep_loopback_direct() -> None:
    """Let no proxy stand between programs on this machine: NO_PROXY."""
    there = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    for name in ("no_proxy", "NO_PROXY"):
        os.environ[name] = ",".join(filter(None, (there, "localhost", "127.0.0.1", "::1")))


def space_owner() -> str | None:
    """Return the owner of this Space: SPACE_AUTHOR_NAME. None outside a Space."""
    return os.environ.get("SPACE_AUTHOR_NAME") if is_space() else None


def is_space() -> bool:
    """Return whether this runs as a Space of the Hub, which sets SPACE_ID."""
    return space_id() is not None


def space_id() -> str | None:
    """Return "owner/name" of this Space: SPACE_ID. None outside a Space."""
    return os.environ.get("SPACE_ID") or None


def jobs_at_once() -> int:
    """Return how many jobs run side by side, from 1 to 64: SHARD_JOBS_AT_ONCE, or 1. Raises UsageError."""
    text = os.environ.get("SHARD_JOBS_AT_ONCE", "1")
    if not text.isdecimal() or not 1 <= int(text) <= 64:
        raise UsageError(f"SHARD_JOBS_AT_ONCE is {text!r}, not a number from 1 to 64.", "Set it to 1 or a few more.")
    return int(text)


def max_job_bytes() -> int | None:
    """Return the largest job of a visitor in bytes: SHARD_MAX_JOB_SIZE, or 50 GB on a Space. Raises UsageError."""
    if text := os.environ.get("SHARD_MAX_JOB_SIZE"):
        return parse_bytes(text, "SHARD_MAX_JOB_SIZE")
    return SHARED_JOB_BYTES if is_space() else None


def desk_folder() -> Path:
    """Return the folder for the jobs of the page: SHARD_FOLDER, or one of this user's. Raises UsageError."""
    if text := os.environ.get("SHARD_FOLDER"):
        return Path(text)
    folder = _state_folder()
    if is_space() and not (folder and _is_creatable(folder)):
        return Path(tempfile.gettempdir(), _DESK)
    if folder is None:
        hint = "Set SHARD_FOLDER to a folder for them."
        raise UsageError("You have no home folder, so the page has no place for its jobs.", hint)
    return folder


def outlives_restart(folder: Path) -> bool:
    """Return whether `folder` stays when the page's machine restarts. On a Space, only that of a mounted disk does."""
    is_chosen = bool(os.environ.get("SHARD_FOLDER"))  # /tmp may be mounted too
    return not is_space() or (is_chosen and folder.stat().st_dev != Path("/").stat().st_dev)


_DESK = "shard-my-repo"


def _state_folder() -> Path | None:
    # Only the page needs it, and a plain install does not include it.
    from platformdirs import user_state_path

    try:
        folder = user_state_path(_DESK)
    except RuntimeError:  # the system has no entry for this user
        return None
    return folder if folder.is_absolute() else None


def _is_creatable(folder: Path) -> bool:
    """Return whether this user may write to `folder` or, if it is missing, to the nearest folder above it."""
    there = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


_EXTENSION = "hf-shard"  # The console script that `hf extensions install` looks for, and the folder it installs into.


def is_extension() -> bool:
    """Return whether this is the extension of `hf`, in the virtual environment that `hf extensions install` made."""
    return Path(sys.prefix).parent.name == _EXTENSION


def called() -> str:
    """Return the name by which somebody calls this command: `hf shard` if it is the extension of `hf`."""
    if is_extension():
        return "hf shard"
    return _EXTENSION if Path(sys.argv[0]).stem == _EXTENSION else "shard-my-repo"


_COMMAND = re.compile(r"(?<![\w./-])shard-my-repo(?= (?:inspect|plan|shard|verify|diff)\b)")


def as_called(text: str) -> str:
    """Return `text` with each command in it under the name by which somebody calls this one."""
    return _COMMAND.sub(called(), text)


def child_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of this package, and -P: not a `sharding` in the current folder."""
    return [sys.executable, "-P", "-m", module, *arguments]


def ray_address() -> str:
    """Return the address of a Ray cluster: RAY_ADDRESS, or "local" for a cluster on this machine. Raises UsageError."""
    address = os.environ.get("RAY_ADDRESS", "").strip() or "local"
    if "://" in address:
        hint = "Submit it there: ray job submit -- shard-my-repo shard … --workers ray."
        raise UsageError(f"RAY_ADDRESS is {address!r}, but a job must start on a node of its cluster.", hint)
    return address


def prepare_for_ray(address: str) -> None:
    """Set what Ray reads at its import: no statistics, no logs of workers, and loopback stays on loopback."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray prints events of workers on standard output, where JSON may go. No other setting stops that.
    os.environ["RAY_DEDUP_LOGS"], os.environ["RAY_DEDUP_LOGS_SKIP_REGEX"] = "1", "."
    if address.startswith(("local", "127.", "[::1]")):
        # Otherwise Ray uses this machine's address in its network.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")


@contextmanager
def without_login() -> Iterator[None]:
    """Keep only the variables of Ray and of child processes in the environment until the block ends."""
    before = dict(os.environ)
    of_ray = {name: text for name, text in before.items() if name.startswith("RAY_")}
    inherited = reading_variables()
    os.environ.clear()
    os.environ.update(of_ray | inherited)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


# Lists of folders. Libraries may be installed in one of them, and an empty entry means the current folder.
_FOLDERS = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")
_OF_HUB = ("HF_HUB_DISABLE_XET", "HF_XET_LOG_DEST", "HF_HUB_DISABLE_TELEMETRY", "DISABLE_TELEMETRY", "DO_NOT_TRACK")
_OTHERS = ("LANG", "LC_ALL", "TZ", *_CERTIFICATES, *_OF_HUB)
_INHERITED = (*_FOLDERS, *_OTHERS, "PYTHONWARNINGS")
_OF_LOADING = ("HOME", "TMPDIR", "OMP_NUM_THREADS")


def child_variables() -> dict[str, str]:
    """Return the environment of a child that loads a model: no login, no network, and no GPU, as that changes code."""
    nothing = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return child_environment(*_OF_LOADING) | nothing


def reading_variables() -> dict[str, str]:
    """Return the environment of a child process that reads from a Hub: no login."""
    return job_variables() | child_environment(*_OF_LOADING)


def job_variables() -> dict[str, str]:
    """Return the environment of a child process that reaches a Hub: also the proxies, which may have a password."""
    return child_environment(*(spelled for name in (*_PROXIES, "NO_PROXY") for spelled in (name, name.lower())))


def child_environment(*more: str) -> dict[str, str]:
    """Return the few variables that a child process inherits, none of them a secret, and those in `more`. It can import
    this package. Lists of folders keep only absolute paths: others depend on the child's current folder."""
    variables = {name: os.environ[name] for name in (*_INHERITED, *more) if name in os.environ}
    package = str(Path(__file__).parent.parent.parent)
    variables["PYTHONPATH"] = os.pathsep.join([package, variables.get("PYTHONPATH", "")])
    for name in variables.keys() & set(_FOLDERS):
        variables[name] = os.pathsep.join(filter(os.path.isabs, variables[name].split(os.pathsep)))
    return {name: text for name, text in variables.items() if text}
