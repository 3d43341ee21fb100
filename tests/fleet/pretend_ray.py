"""Ray as far as workers use it, in this very process: tasks that yield, begun again where their worker dies."""

import os
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any


class Died(Exception):
    """The process of a task has ended."""


class RayError(Exception):
    """What Ray raises of a task."""


class Task:
    """What a task yields, an item at a time. Where it dies it is begun again, so often as its options allow."""

    def __init__(self, start: Callable[[], Iterator[Any]], retries: int) -> None:
        self._start = start
        self._retries = retries
        self._items = start()
        self.cancelled = False

    def __next__(self) -> Callable[[], Any]:
        while True:
            try:
                item = next(self._items)
            except Died as death:
                if not self._retries:
                    return _raising(RayError(str(death)))
                self._retries -= 1
                self._items = self._start()
            else:
                return lambda: item


def _raising(error: Exception) -> Callable[[], Any]:
    def fail() -> None:
        raise error

    return fail


class PretendRay(ModuleType):
    """A module to stand in `sys.modules` for Ray: `log` is what was asked of it, `enter` is called by a task."""

    __version__ = "2.0"

    def __init__(self) -> None:
        super().__init__("ray")
        self.log: list[str] = []
        self.environment: dict[str, str] = {}
        self.options: dict[str, Any] = {}
        self.around: Callable[[Iterator[Any]], Iterator[Any]] = lambda items: items
        self.cpus = 2
        self.exceptions = SimpleNamespace(RayError=RayError)
        self.cloudpickle = SimpleNamespace(register_pickle_by_value=lambda module: None)
        self.job_config = SimpleNamespace(JobConfig=lambda **given: given)
        self.util = SimpleNamespace(get_node_ip_address=lambda: "10.0.0.7")

    def init(self, address: str, **options: Any) -> None:
        self.log.append(f"init {address}")
        self.environment, self.options = dict(os.environ), options

    def shutdown(self) -> None:
        self.log.append("shutdown")

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: "abcdef0123456789")

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": float(self.cpus)}

    def remote(self, *, max_retries: int = 3, **_: Any) -> Callable[[Any], Any]:
        def decorated(function: Callable[..., Iterator[Any]]) -> Any:
            def start(*given: Any) -> Task:
                return Task(lambda: self.around(function(*given)), max_retries)

            return SimpleNamespace(remote=start)

        return decorated

    def wait(self, tasks: list[Task], **_: Any) -> tuple[list[Task], list[Task]]:
        return tasks, []

    def get(self, item: Callable[[], Any]) -> Any:
        return item()

    def cancel(self, task: Task, *, force: bool) -> None:
        assert force, "else it would go on to its next word"
        task.cancelled = True
        self.log.append("cancel")
