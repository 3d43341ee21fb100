"""Check for the optional libraries that a plain install does not include."""

import json
import shlex
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from sharding.core.environment import is_extension
from sharding.core.errors import Refused

_NAME = "shard-my-repo"

MODULES: Mapping[str, tuple[str, ...]] = {
    "load": ("torch", "transformers", "accelerate"),
    "localhub": ("starlette", "uvicorn", "joserfc"),
    "ray": ("ray",),
}
"""What each extra of this package installs that a plain install does not."""

_CACHE_OF_UVX = {"archive-v0"}  # The folder in which uv 0.13 keeps what `uvx` runs.


def is_installed(module: str) -> bool:
    """Return whether `module` can be imported, without importing it."""
    return find_spec(module) is not None


def require(what: str, extra: str = "load") -> None:
    """Raise Refused if `what` needs an `extra` of this package that is not installed."""
    missing = [module for module in MODULES[extra] if not is_installed(module)]
    if missing:
        message = f"{what} needs libraries that a plain install does not include: {', '.join(missing)}."
        raise Refused(message, install_hint(*missing, extra=extra))


def install_hint(*libraries: str, extra: str = "") -> str:
    """Return how to add `libraries`, or the `extra` that has them, to this copy, as it was installed itself."""
    prefix, names = Path(sys.prefix), " ".join(libraries)
    behind = " ".join(f"--with {library}" for library in libraries)
    again = "Start it with `{0} {1} …`: these words come right behind `{0}`."
    if (prefix / "pipx_metadata.json").is_file():
        is_kept = prefix.parent.name == "venvs"
        return f"Run `pipx inject {prefix.name} {names}`." if is_kept else again.format("pipx run", behind)
    if (prefix / "uv-receipt.toml").is_file():
        return f"Install it again, with `{behind}` right behind `uv tool install`."
    of_uv = (prefix / "pyvenv.cfg").is_file() and "\nuv = " in (prefix / "pyvenv.cfg").read_text(errors="replace")
    if of_uv and _CACHE_OF_UVX.intersection(prefix.resolve().parts):
        return again.format("uvx", behind)
    pip = f"uv pip install --python {shlex.quote(sys.prefix)}" if of_uv else "pip install"
    if is_extension() and not of_uv:
        pip = f"{shlex.quote(str(prefix / 'bin/python'))} -m pip install"
    return f"Run `{pip} {(extra and _with_extra(extra)) or names}`."


def _with_extra(extra: str) -> str:
    """Return pip's argument that installs `extra` of this copy, quoted for a shell; "" if unknown. It is never the
    plain name: no package index has this package, so anybody could register it there."""
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
