"""Check for the optional libraries that a plain install does not include."""

import json
import shlex
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from sharding.core.errors import Refused

_NAME = "shard-my-repo"

MODULES: Mapping[str, tuple[str, ...]] = {
    "load": ("torch", "transformers", "accelerate"),
    "localhub": ("starlette", "uvicorn", "joserfc"),
    "ray": ("ray",),
}
"""What each extra of this package installs that a plain install does not."""


def is_installed(module: str) -> bool:
    """Return whether `module` can be imported, without importing it."""
    return find_spec(module) is not None


def require(what: str, extra: str = "load") -> None:
    """Raise Refused if `what` needs an `extra` of this package that is not installed."""
    missing = [module for module in MODULES[extra] if not is_installed(module)]
    if missing:
        raise Refused(
            f"{what} needs libraries that a plain install does not include: {', '.join(missing)}.",
            f"Run `pip install {_with_extra(extra) or ' '.join(missing)}`.",
        )


def _with_extra(extra: str) -> str:
    """Return the argument for pip that installs `extra` of this copy, quoted for a shell; "" if it is not known.

    It is never the plain name. No package index has this package, so anybody could register that name there.
    """
    wanted = ""
    with suppress(PackageNotFoundError, ValueError, LookupError, TypeError, AttributeError):
        wanted = _from_origin(json.loads(distribution(_NAME).read_text("direct_url.json") or ""), extra)
    sources = Path(__file__).parents[2]
    return wanted or (_from_folder(sources, extra) if (sources / "pyproject.toml").is_file() else "")


def _from_origin(origin: Any, extra: str) -> str:
    """Return the requirement (PEP 508) that installs again from `origin`, a `direct_url.json` (PEP 610)."""
    url: str = origin["url"]
    folder = Path(url2pathname(urlsplit(url).path)) if url.startswith("file:") else None
    if folder and ("vcs_info" in origin or not folder.exists()):
        return ""  # before 24.1, pip does not accept a local clone in that form
    if folder and "dir_info" in origin:
        return "-e " * bool(origin["dir_info"].get("editable")) + _from_folder(folder, extra)
    if versioned := origin.get("vcs_info"):
        url = f"{versioned['vcs']}+{url}@{versioned['commit_id']}"
    if below := origin.get("subdirectory"):
        url += f"#subdirectory={below}"
    return shlex.quote(f"{_NAME}[{extra}] @ {url}")


def _from_folder(folder: Path, extra: str) -> str:
    is_here = False
    with suppress(OSError):  # the current folder may be gone
        is_here = folder.samefile(".")
    return shlex.quote(f"{'.' if is_here else folder}[{extra}]")
