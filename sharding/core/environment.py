"""Read the environment, which nobody else does."""

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from sharding.core.errors import Refused, Remedy, UsageError
from sharding.core.limits import MAX_STORED_TOKENS_BYTES, MAX_TOKEN_BYTES, SHARED_JOB_BYTES
from sharding.core.text import parse_bytes


def hub_endpoint() -> str:
    """Return the address of the Hub: HF_ENDPOINT, or the public one.

    Raises UsageError where a login stands in it: the address is part of links and of messages.
    """
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"
    if "@" in endpoint.partition("://")[2].partition("/")[0]:
        raise UsageError("There is a login in HF_ENDPOINT, which is shown in links.", "Leave it out, and set HF_TOKEN.")
    return endpoint


def result_page(repo_id: str) -> str | None:
    """Return the address that shows a result, where this runs in a Space: SPACE_HOST."""
    return f"https://{hosts[0]}/?result={repo_id}" if (hosts := space_hosts()) else None


def space_hosts() -> list[str]:
    """Return the names of the Space that this is, its own before others that lead to it: SPACE_HOST."""
    return _names("SPACE_HOST")


def page_hosts() -> list[str]:
    """Return the names, besides those of this machine, under which a page off a Space is served: SHARD_HOSTS."""
    return _names("SHARD_HOSTS")


def _names(variable: str) -> list[str]:
    return [name.strip() for name in os.environ.get(variable, "").split(",") if name.strip()]


def hub_token() -> str | None:
    """Return the login of this machine: HF_TOKEN or the one that `hf auth login` saved; None if there is none.

    Raises Refused where a login is saved and cannot be read.
    """
    from huggingface_hub import constants, get_token

    path = token = Path(constants.HF_TOKEN_PATH)
    renewal = Path(constants.HF_STORED_TOKENS_PATH)
    try:
        if not os.environ.get("HF_TOKEN", "").strip():
            for path, most_bytes in ((renewal, MAX_STORED_TOKENS_BYTES), (token, MAX_TOKEN_BYTES)):
                _refuse_no_token(path, most_bytes)
        return get_token()
    except Exception as error:  # whatever the Hub's library raises of files that it has written, or has not
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "it is no text of a token"
        hint = "Run `hf auth login` again, or set HF_TOKEN."
        raise Refused(f"The saved login cannot be read from {path}: {reason}.", hint, Remedy("sign_in")) from error


def _refuse_no_token(path: Path, most_bytes: int) -> None:
    """Raise ValueError where what is at `path` would be read for ever, or would fill all memory."""
    if not path.exists() or path.is_dir() or path.samefile(os.devnull):
        return
    if not path.is_file() or path.stat().st_size > most_bytes:
        raise ValueError(path)


def keep_xet_logs_off_the_disk() -> None:
    """Tell hf-xet, before it is imported, to write no log files; it reads no other setting for that."""
    os.environ.setdefault("HF_XET_LOG_DEST", os.devnull)


def space_owner() -> str | None:
    """Return whose Space this is, if it is one: SPACE_AUTHOR_NAME."""
    return os.environ.get("SPACE_AUTHOR_NAME") if is_space() else None


def is_space() -> bool:
    """Return whether this is a Space of the Hub: SPACE_ID is set there."""
    return bool(os.environ.get("SPACE_ID"))


def space_id() -> str | None:
    """Return "owner/name" of the Space that this is, if it is one: SPACE_ID."""
    return os.environ.get("SPACE_ID") or None


def jobs_at_once() -> int:
    """Return how many jobs run side by side: SHARD_JOBS_AT_ONCE, or 1. Raises UsageError."""
    text = os.environ.get("SHARD_JOBS_AT_ONCE", "1")
    if not text.isdecimal() or not 1 <= int(text) <= 64:
        raise UsageError(f"SHARD_JOBS_AT_ONCE is {text!r}, which is no number of jobs.", "Set it to 1 or a few more.")
    return int(text)


def max_job_bytes() -> int | None:
    """Return the largest job that a visitor may start: SHARD_MAX_JOB_SIZE; without it 50 GB on a Space, else no limit.

    Raises UsageError.
    """
    text = os.environ.get("SHARD_MAX_JOB_SIZE")
    return parse_bytes(text, "SHARD_MAX_JOB_SIZE") if text else SHARED_JOB_BYTES if is_space() else None


def desk_folder() -> Path:
    """Return where the desk keeps what jobs say: SHARD_FOLDER, or a folder in the one that holds this user's state.

    Raises UsageError where this user has no home.
    """
    if text := os.environ.get("SHARD_FOLDER"):
        return Path(text)
    folder = _state_folder()
    if is_space() and not (folder and _is_creatable(folder)):
        return Path(tempfile.gettempdir(), _DESK)
    if folder is None:
        raise UsageError("You have no home folder that could hold the jobs of the page.", "Set SHARD_FOLDER.")
    return folder


_DESK = "shard-my-repo"


def _state_folder() -> Path | None:
    # Only the page needs it, and a plain install does not bring it.
    from platformdirs import user_state_path

    try:
        folder = user_state_path(_DESK)
    except RuntimeError:  # the system does not know this user
        return None
    return folder if folder.is_absolute() else None


def _is_creatable(folder: Path) -> bool:
    """Return whether this user may write to `folder`, or to what is there of the folders above it."""
    there = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def child_command(module: str, *arguments: str) -> list[str]:
    """Return what runs a module of this package in a process of its own: -P keeps the current folder out of its path.

    Else whatever is called `sharding` there would run in its place.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def child_environment() -> dict[str, str]:
    """Return the few variables that a job's process inherits: none that could hold a secret of this one."""
    return _inherited(os.environ)


def ray_address() -> str:
    """Return where a cluster of Ray is: RAY_ADDRESS, or "local" for one of this machine's own. Raises UsageError."""
    address = os.environ.get("RAY_ADDRESS", "").strip() or "local"
    if "://" in address:
        raise UsageError(
            f"RAY_ADDRESS is {address!r}: a job runs on a node of its cluster and is not led from outside.",
            "Submit it there: ray job submit -- shard-my-repo shard … --workers ray.",
        )
    return address


def prepare_for_ray(address: str) -> None:
    """Set what Ray reads when it is imported: on loopback it stays there, and nobody is told how it is used."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # It prints what happens to workers on standard output, where there may be JSON; there is no other way to stop that.
    os.environ["RAY_DEDUP_LOGS"], os.environ["RAY_DEDUP_LOGS_SKIP_REGEX"] = "1", "."
    if address.startswith(("local", "127.", "[::1]")):
        # Else it takes the address that this machine has among others.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")


@contextmanager
def without_login() -> Iterator[None]:
    """Leave in the environment, for the time, what a child process of this package needs, and what is Ray's."""
    before = dict(os.environ)
    of_ray = {name: text for name, text in before.items() if name.startswith("RAY_")}
    os.environ.clear()
    os.environ.update(of_ray | _inherited(before, *_OF_LOADING))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


_INHERITED = (
    *("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    *("HF_HUB_DISABLE_XET", "HF_XET_LOG_DEST", "PYTHONWARNINGS"),
)
_OF_LOADING = ("HOME", "TMPDIR", "OMP_NUM_THREADS")
_FOLDERS = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")
"""Lists of folders: libraries may be installed in one of them, and in an empty entry the current folder counts."""


def child_variables() -> dict[str, str]:
    """Return the environment of a child process that loads a model: no login, no network, no GPU.

    Where libraries see a GPU they map tens of gigabytes, and choose other code for quantized weights.
    """
    nothing = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return _inherited(os.environ, *_OF_LOADING) | nothing


def reading_variables() -> dict[str, str]:
    """Return the environment of a child process that reads from a Hub: no login."""
    return _inherited(os.environ, *_OF_LOADING)


def _inherited(environment: Mapping[str, str], *more: str) -> dict[str, str]:
    """Return the variables that a child process inherits, and those of `more`; it can import this package.

    Lists of folders keep their absolute paths: the others lead to wherever the child happens to be.
    """
    variables = {name: environment[name] for name in (*_INHERITED, *more) if name in environment}
    package = str(Path(__file__).parent.parent.parent)
    variables["PYTHONPATH"] = os.pathsep.join([package, variables.get("PYTHONPATH", "")])
    for name in variables.keys() & set(_FOLDERS):
        variables[name] = os.pathsep.join(filter(os.path.isabs, variables[name].split(os.pathsep)))
    return {name: text for name, text in variables.items() if text}
