"""Say whether the libraries are there that a plain install does not bring."""

from collections.abc import Iterable
from importlib.util import find_spec

from sharding.core.errors import Refused


def is_installed(module: str) -> bool:
    """Return whether `module` can be imported, without importing it."""
    return find_spec(module) is not None


def require(what: str, modules: Iterable[str] = ("torch", "transformers", "accelerate"), extra: str = "load") -> None:
    """Raise Refused where `what` needs `modules`, which `extra` of this package brings, and they are not installed."""
    missing = [module for module in modules if not is_installed(module)]
    if missing:
        raise Refused(
            f"{what} needs what a plain install does not bring: {', '.join(missing)}.",
            f"Run pip install 'shard-my-repo[{extra}]'.",
        )
