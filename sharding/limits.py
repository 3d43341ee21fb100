"""Every limit, default and unit of the project, each with its reason.

Sizes are decimal as on the Hub: "200MB" is 200 * 10**6 bytes. "MiB" and "GiB" are the binary units.
"""

import os
import re
import tempfile
from decimal import Decimal
from pathlib import Path

from sharding.errors import UsageError

# --- What is read from files that somebody else wrote -------------------------------------------------

MAX_HEADER_BYTES = 100_000_000
"""The safetensors reader's own bound on one header (safetensors 0.8, `MAX_HEADER_SIZE`)."""

MAX_HEADER_DEPTH = 127
"""Deepest JSON nesting the safetensors reader follows (serde_json's recursion limit is 128)."""

MAX_INDEX_BYTES = 100_000_000
"""An index of 300,000 tensors takes about 40 MB; beyond this it is no index."""

MAX_CONFIG_BYTES = 10_000_000
"""Configurations are kilobytes; a larger one is not worth the memory."""

MAX_REPORT_BYTES = 100_000_000
"""A report names every tensor twice, as an index does."""

MAX_SHOWN_REPORT_BYTES = 20_000_000
"""What the page reads of a report in a stranger's repo: one of 100,000 tensors has about 15 MB."""

MAX_CARD_BYTES = 1_000_000
"""Cards are kilobytes; of a longer one nothing is kept but the file in the source."""

MAX_SIDE_FILE_BYTES = 500_000_000
"""Tokenizers reach tens of megabytes; what is larger is data or weights under another name."""

MAX_FILES = 100_000
"""The Hub advises against repositories with more files than this."""

MAX_TENSORS = 1_000_000
"""Three times what the largest known mixtures of experts have; a million take half a gigabyte of memory."""

MAX_PICKLE_BYTES = 32_000_000
MAX_PICKLE_STEPS = 1_500_000
MAX_PICKLE_MARKS = 1000
"""The pickle of a .bin file: 37 instructions and 200 bytes a tensor, so 40,000 tensors; a hostile one of so many
instructions takes 140 MB and a few seconds. Checkpoints are nested three or four deep."""

MAX_DIRECTORY_BYTES = 16_000_000
"""The directory of a .bin file has about 80 bytes for each of its tensors."""

MAX_EXPANDED_BYTES = 1_000_000_000
"""What tensors that share their bytes may add to the size of a file: real ones are masks and position numbers."""

# --- Buffers ------------------------------------------------------------------------------------------

BLOCK_BYTES = 2 << 20
"""What is read, hashed and written in one go: large enough that Python's share of the work is small."""

SPAN_BYTES = 64 << 20
"""What one thread reads of a file in one stream when a checkpoint is verified."""

JOIN_GAP_BYTES = 64 << 10
"""Two ranges closer than this are read as one: a request costs more than 64 KiB of bytes thrown away."""

BLOCKS_AHEAD = 3
"""Blocks fetched before they are needed, so that neither disk nor network waits for the hashes."""

BLOCKS_BEHIND = 3
"""Blocks that hashing and writing may still hold. With BLOCKS_AHEAD this bounds the memory of a job."""

TILE_BYTES = 16 << 20
"""What is laid in order at a time of a tensor that does not lie in order: each time its bytes are read through once."""

FLUSH_BYTES = 32 << 20
"""Dirty bytes after which write-back is started, so that the sync at the end of a shard is short."""

THREADS = 2
"""For reading ahead, and for verifying: two cores on the free Space; more threads only add buffers."""

DISK_FLOOR_BYTES = 64_000_000
"""Left free on the disk beside the result: side files, reports and the machine's own needs."""

PROGRESS_SECONDS = 0.1
"""Shortest time between two progress events: fast enough for the eye, slow enough for a log."""

DEFAULT_MAX_SHARD_SIZE = "5GB"
"""The default of `huggingface_hub.save_torch_state_dict`."""

# --- Comparisons --------------------------------------------------------------------------------------

ROUNDS = 3
"""Loads of each side: enough for a median that one slow run does not move."""

CURVE_MOMENTS = 160
"""Points of a memory curve that are kept: as many as a picture can show, few enough for a report."""

MEMORY_SHARE = 0.85
"""Of the memory that is free now, what a load may be expected to take; beyond it the kernel may kill others."""

ARCHITECTURE_SECONDS = 300
"""Importing transformers on a cold disk and building the largest model on the meta device stay well below."""

# --- The Hub ------------------------------------------------------------------------------------------

XET_BUFFER_BYTES = 64 << 20
"""What hf-xet may fetch ahead; its own defaults buffer gigabytes."""

XET_UPLOADS_AT_ONCE = 2
"""Packages of up to 64 MB that hf-xet may have on their way to the store, each in memory; by itself up to 64."""

XET_LEAST_BYTES = 128 << 10
"""Shorter ranges (headers, configurations) are quicker over plain HTTP than through a reconstruction."""

HUB_BLOCK_BYTES = 8 << 20
"""What one request to a Hub asks for: a few dozen requests a shard, and as many buffers as memory allows."""

HUB_JOIN_GAP_BYTES = 512 << 10
"""The same as JOIN_GAP_BYTES for a Hub, where a request costs a round trip: tens of milliseconds."""

RANGES_AT_ONCE = 32
"""Ranges of one block, or headers, asked for side by side: kilobytes each, so that only the round trips count."""

COMMITS_AT_ONCE = 60
COMMIT_SECONDS = 60.0
"""A shard is noted on the staging branch as soon as it is finished; after the first sixty of a job at most once a
minute, several together. The Hub takes 128 commits an hour of one user, and a person has other work to push."""

NETWORK_TRIES = 6
NETWORK_WAIT_SECONDS = 0.25
"""Attempts at a request, at a read since its last byte, and half the first wait between two; it doubles."""

READ_TIMEOUT_SECONDS = 30
"""Longest silence while a file is read: then the connection is given up, and the read taken up again."""

ANSWER_TIMEOUT_SECONDS = 100
"""Longest wait for any other answer: the Hub itself gives up on a commit after 60 seconds."""

LONGEST_WAIT_SECONDS = 300
"""What a server may ask for with Retry-After: the Hub counts requests in windows of five minutes."""

# --- Many visitors on one machine -----------------------------------------------------------------------

KEEP_SECONDS = 24 * 3600
"""How long what a job said is kept, so that its link works again the next day."""

SHARED_JOB_BYTES = 50_000_000_000
"""Largest job of a visitor on somebody else's Space: others wait behind it. One's own Space has no such limit."""

EVENT_BYTES = 64_000_000
"""Longest event of a job: a plan of 100,000 tensors prints about 20 MB."""

EVENTS_BYTES = 4 * EVENT_BYTES
"""All that a job may say: a plan, a report, and days of progress once a second."""

LOG_LINES = 500
"""What a visitor may want to read of a job; the oldest go first."""

STDERR_BYTES = 8 << 10
"""Enough of what a broken job printed to see why."""

STOP_SECONDS = 5.0
"""A job that was told to end gets this long to do so before it is killed."""

MAX_ACTIVE_JOBS = 100
"""Queued or running: each keeps its plan in memory, and who comes after a hundred others waits for days."""

JOB_SECONDS = 24 * 3600
"""A job that has run so long is stopped, so that the others get their turn; it can be resumed. At 50 GB, the largest
of a visitor, that is half a megabyte a second."""

SILENT_SECONDS = 30 * 60
"""A job that has said nothing for so long hangs; the longest pause in a sound one is the commit at its end."""

HUB_JOB_ANON_BYTES = 467_000_000
"""Peak anonymous memory of a job between two Hub repos as measured: 3 GB in shards of 1 GB, a slow upload, and nothing
in the Hub's store before."""

JOBS_REMEMBERED = 100
"""Finished jobs whose cost forecasts rest on."""

DISCARD_SECONDS = 120.0
"""Removing what a cancelled job staged takes a few requests; no longer than this may it hold up the queue."""

SWEEP_SECONDS = 60.0
"""How often the desk looks for what may be thrown away."""

PROGRESS_KEPT_SECONDS = 1.0
"""Progress is kept once a second; the newest is always in memory."""

VIEW_SECONDS = 0.2
"""Shortest time between two views of a job: nobody reads faster."""

PERSON_SECONDS = 60.0
"""A page asks every second whose job it shows; the Hub need not be asked as often."""

CACHED_SECONDS = 10 * 60
CACHED_CHECKPOINTS = 64
CACHED_TENSORS = 300_000
"""Headers are read again after ten minutes; a hundred thousand tensors take about 50 MB of memory."""

CACHED_HINTS = 8
"""What transformers said of the models that visitors last looked at: as many tensors again, seconds to ask anew."""

# --- Units --------------------------------------------------------------------------------------------

_UNITS = {
    "": 1,
    "B": 1,
    **{f"{letter}B": 1000**power for power, letter in enumerate("KMGTP", start=1)},
    **{f"{letter}IB": 1024**power for power, letter in enumerate("KMGTP", start=1)},
}
_SIZE = re.compile(r"(\d{1,20}(?:\.\d{1,20})?)\s*([A-Za-z]*)", re.ASCII)


def parse_bytes(text: str) -> int:
    """Return the number of bytes that a size such as "200MB", "2 gb", "1GiB" or "300000000" means.

    >>> parse_bytes("1.5GB"), parse_bytes("1GiB")
    (1500000000, 1073741824)

    Raises UsageError for anything that is not a size of at least one byte.
    """
    match = _SIZE.fullmatch(text.strip())
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None:
        almost = match and f"{match[2].upper()}B" in _UNITS
        hint = (
            f"Did you mean {match[1]}{match[2].upper()}B?" if match and almost else "Write it like 200MB, 2GB or 1GiB."
        )
        raise UsageError(f"{text!r} is not a size.", hint)
    size = int(Decimal(match[1]) * unit)
    if size < 1:
        raise UsageError(
            f"A shard of {text!r} cannot hold anything.", "Give a size of at least one byte, such as 200MB."
        )
    return size


def format_bytes(count: float) -> str:
    """Return `count` bytes in the decimal unit that leaves one to three digits before the point.

    >>> format_bytes(199_500_000), format_bytes(512)
    ('199.5 MB', '512 B')
    """
    units = ["TB", "GB", "MB", "kB"]
    if count < 1000:
        return f"{count:.0f} B"
    while (count := count / 1000) >= 999.95 and len(units) > 1:
        units.pop()
    return f"{count:.1f} {units[-1]}"


def exact_size(count: int) -> str:
    """Return a size that `parse_bytes` reads as exactly `count` bytes, in the largest unit that has no fraction.

    >>> exact_size(200_000_000), exact_size(1 << 30), exact_size(1001)
    ('200MB', '1GiB', '1001')
    """
    whole = [(size, unit) for unit, size in _UNITS.items() if unit and count % size == 0]
    size, unit = max(whole)
    return f"{count // size}{unit.replace('IB', 'iB').replace('KB', 'kB')}" if size > 1 else str(count)


# --- The environment, which nobody else reads -----------------------------------------------------------


def hub_endpoint() -> str:
    """Return the address of the Hub: HF_ENDPOINT, or the public one."""
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"


def result_page(repo_id: str) -> str | None:
    """Return the address that shows a result, where this runs in a Space: SPACE_HOST."""
    host = os.environ.get("SPACE_HOST")
    return f"https://{host}/?result={repo_id}" if host else None


def hub_token() -> str | None:
    """Return the login of this machine: HF_TOKEN or the one that `hf auth login` saved; None if there is none."""
    from huggingface_hub import get_token

    return get_token()


def keep_xet_logs_off_the_disk() -> None:
    """Tell hf-xet, before it is imported, to write no log files; it reads no other setting for that."""
    os.environ.setdefault("HF_XET_LOG_DEST", os.devnull)


def space_host() -> str | None:
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
    return parse_bytes(text) if text else SHARED_JOB_BYTES if is_space() else None


def desk_folder() -> Path:
    """Return where the desk keeps what jobs say: SHARD_FOLDER, or a folder of this user among the temporary ones."""
    text = os.environ.get("SHARD_FOLDER")
    return Path(text) if text else Path(tempfile.gettempdir()) / f"shard-my-repo-{os.getuid()}"


def child_environment() -> dict[str, str]:
    """Return the few variables that a job's process inherits: none that could hold a secret of this one."""
    return {name: os.environ[name] for name in _INHERITED if name in os.environ}


_INHERITED = (
    *("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    *("HF_HUB_DISABLE_XET", "HF_XET_LOG_DEST", "PYTHONWARNINGS"),
)


def child_variables() -> dict[str, str]:
    """Return the environment of a child process that loads a model: this package importable, no login, no network."""
    kept = {name: os.environ[name] for name in ("HOME", "TMPDIR", "OMP_NUM_THREADS") if name in os.environ}
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH")]))
    quiet = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    return {**child_environment(), **kept, **quiet, "PYTHONPATH": path}
