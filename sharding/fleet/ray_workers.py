"""Run parts on a cluster of Ray, a part a processor. https://docs.ray.io/en/releases-2.60.0/ray-core/tasks.html."""

import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import current_thread, main_thread
from typing import Any

from typing_extensions import override

from sharding import __version__
from sharding.core.environment import prepare_for_ray, ray_address, without_login
from sharding.core.errors import Refused
from sharding.core.limits import ANSWER_SECONDS
from sharding.fleet.crew import Workers
from sharding.fleet.parts import PartEvent, parse_event

_OBJECT_STORE_BYTES = 80_000_000
"""The least that Ray takes: what is said of parts is short and needs none of it."""


@contextmanager
def ray_workers() -> Iterator["RayWorkers"]:
    """Yield the workers of the cluster at RAY_ADDRESS, or of one that is made of this machine and ends with the block.

    Raises UsageError, and Refused if there is no such cluster. Ray must be installed.
    """
    address = ray_address()
    prepare_for_ray(address)
    _refuse_unreachable(address)
    import ray

    with _signals_kept():
        try:
            if address == "local":
                with without_login():  # it goes to the processes that are started now
                    ray.init(
                        "local",
                        include_dashboard=False,
                        object_store_memory=_OBJECT_STORE_BYTES,
                        _node_ip_address="127.0.0.1",
                        # Else workers would import what is called `sharding` in the current folder.
                        job_config=ray.job_config.JobConfig(_client_job=True),
                        **_QUIET,
                    )
            else:
                ray.init(address, **_QUIET)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            where = "could be started here" if address == "local" else f"is at {address}"
            hint = "On a machine of the cluster RAY_ADDRESS may be auto; from elsewhere: ray job submit."
            raise Refused(f"No cluster of Ray {where}: {error}", hint) from error
    try:
        yield RayWorkers()
    finally:
        ray.shutdown()


def _refuse_unreachable(address: str) -> None:
    """Raise Refused where nobody answers at `address`: Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal():  # "local", or "auto"
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        hint = "Is it the address of the head node, with the port of its store (6379)? Set RAY_ADDRESS to that."
        raise Refused(f"No cluster of Ray is at {address}: {error}.", hint) from error


_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}


class RayWorkers(Workers):
    """Parts under way on a cluster, each by what `start` has returned."""

    def __init__(self) -> None:
        """Take the cluster that this process is connected to."""
        import ray
        from ray import cloudpickle

        from sharding.fleet import entry

        self.name = f"ray {ray.__version__}"
        cloudpickle.register_pickle_by_value(entry)
        self._ray = ray
        self._enter = ray.remote(num_cpus=1, max_retries=0, num_returns="streaming", scheduling_strategy="SPREAD")(
            entry.enter
        )

    @property
    @override
    def count(self) -> int:
        return int(self._ray.cluster_resources().get("CPU", 0))

    @override
    def start(self, part: str) -> Any:
        return self._enter.remote(part, __version__)

    @override
    def stop(self, part: Any) -> None:
        with suppress(self._ray.exceptions.RayError, TypeError, ValueError):
            self._ray.cancel(part, force=True)

    @override
    def wait(self, parts: list[Any], seconds: float) -> Iterator[tuple[Any, PartEvent | None]]:
        """Wait so long for `parts`, if any, to say something; yield what each says, None where its worker has died.

        Raises Refused where this package is another on a node.
        """
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
            if " " not in line:
                raise Refused(
                    f"On node {node} shard-my-repo is {line or 'not installed'}, and here it is {__version__}.",
                    "Install the same on all nodes: a runtime environment of Ray may do it.",
                )
            yield part, parse_event(line)


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Have signals end this process as before, whatever comes of it: Ray takes SIGTERM."""
    numbers = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
    before = {number: handler for number in numbers if (handler := signal.getsignal(number)) is not None}
    try:
        yield
    finally:
        if current_thread() is main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)
