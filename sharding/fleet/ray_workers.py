"""Run parts on a Ray cluster, one per processor. https://docs.ray.io/en/releases-2.60.0/ray-core/tasks.html."""

import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from threading import current_thread, main_thread
from typing import Any

from sharding import __version__
from sharding.core.environment import prepare_for_ray, ray_address, without_login
from sharding.core.errors import Refused
from sharding.fleet.parts import PartEvent, parse_event

ANSWER_SECONDS = 10.0  # Longest time that the head node of a cluster may take to answer.
_OBJECT_STORE_BYTES = 80_000_000  # The least that Ray accepts. Messages about parts are short and do not need it.

_HINT = (
    "On a machine of the cluster, set RAY_ADDRESS to auto, or to the head node with the port of its store (6379). From "
    "elsewhere, use ray job submit."
)


@contextmanager
def ray_workers() -> Iterator["RayWorkers"]:
    """Yield the workers of the cluster at RAY_ADDRESS, or of one that ends here. Raises UsageError, Refused."""
    address = ray_address()
    prepare_for_ray(address)
    host, _, port = address.rpartition(":")
    if port.isdecimal():  # neither "local" nor "auto": Ray itself would try for minutes
        try:
            socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise Refused(f"No Ray cluster is at {address}: {error}.", _HINT) from error
    import ray

    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        options |= {"include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
        # Without the second, workers would import any `sharding` in the current folder.
        options |= {"_node_ip_address": "127.0.0.1", "job_config": ray.job_config.JobConfig(_client_job=True)}
    with _signals_kept():
        try:
            with without_login() if address == "local" else nullcontext():  # processes that start now inherit it
                ray.init(address, **options)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            problem = "Ray cannot start a cluster here" if address == "local" else f"No Ray cluster is at {address}"
            raise Refused(f"{problem}: {error}", _HINT) from error
    try:
        yield RayWorkers()
    finally:
        ray.shutdown()


class RayWorkers:
    """Runs parts on a cluster. `name` is the engine with its version."""

    def __init__(self) -> None:
        import ray
        from ray import cloudpickle

        from sharding.fleet import entry

        self.name = f"ray {ray.__version__}"
        cloudpickle.register_pickle_by_value(entry)
        self._ray = ray
        options = {"num_cpus": 1, "max_retries": 0, "num_returns": "streaming", "scheduling_strategy": "SPREAD"}
        self._enter = ray.remote(**options)(entry.enter)

    @property
    def count(self) -> int:
        """How many parts can run now."""
        return int(self._ray.cluster_resources().get("CPU", 0))

    def start(self, part: str) -> Any:
        """Send out a part, as JSON; return a handle to it."""
        return self._enter.remote(part, __version__)

    def stop(self, part: Any) -> None:
        """End a part, if it is still running."""
        with suppress(self._ray.exceptions.RayError, TypeError, ValueError):
            self._ray.cancel(part, force=True)

    def wait(self, parts: list[Any], seconds: float) -> Iterator[tuple[Any, PartEvent | None]]:
        """Yield each of `parts` with news in `seconds`, with its event; None if its worker died. Raises Refused."""
        if not parts:
            time.sleep(seconds)
            return
        ready, _ = self._ray.wait(parts, num_returns=len(parts), timeout=seconds, fetch_local=False)
        for part in ready:
            try:
                node, line = self._ray.get(next(part))
            except (StopIteration, self._ray.exceptions.RayError):
                yield part, None
                continue
            if not line.startswith("{"):
                message = f"On node {node}, shard-my-repo is {line or 'not installed'}, but here it is {__version__}."
                hint = "Install the same version on all nodes. A runtime environment of Ray can do that."
                raise Refused(message, hint)
            yield part, parse_event(line)


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Keep the signal handlers of this process, because Ray takes over SIGTERM."""
    numbers = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
    before = {number: handler for number in numbers if (handler := signal.getsignal(number)) is not None}
    try:
        yield
    finally:
        if current_thread() is main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)
