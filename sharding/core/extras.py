"""Say whether the libraries are there that a plain install does not bring, and import large ones in good time."""

from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from threading import Thread

from sharding.core.errors import Refused


def is_installed(module: str) -> bool:
    """Return whether `module` can be imported, without importing it."""
    return find_spec(module) is not None


def import_meanwhile(module: str) -> None:
    """Begin to import `module`, which will be needed; where it cannot be imported, whoever needs it will say so."""

    def load() -> None:
        with suppress(ImportError, MemoryError):
            import_module(module)

    # Not a daemon: one that is stopped inside an import, as a job is refused, may take the process down with it.
    Thread(target=load, name=f"import {module}").start()


def require(what: str, modules: Iterable[str] = ("torch", "transformers", "accelerate"), extra: str = "load") -> None:
    """Raise Refused where `what` needs `modules`, which `extra` of this package brings, and they are not installed."""
    missing = [module for module in modules if not is_installed(module)]
    if missing:
        raise Refused(
            f"{what} needs what a plain install does not bring: {', '.join(missing)}.",
            f"Run pip install 'shard-my-repo[{extra}]'.",
        )
