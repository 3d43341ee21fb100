"""Read a pickle of any classes into values without meaning. Pure. Imports, calls and builds nothing from it.

The machine of `torch_pickle` follows the instructions. An `Instance` stands for any object that is no `StoredTensor`.
"""

import sys
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sharding.core.limits import MAX_DCP_STEPS, MAX_DIMENSIONS
from sharding.core.text import name_problem, shown_name
from sharding.formats import torch_globals
from sharding.formats.torch_globals import Global, Ordered, PickleRefused
from sharding.formats.torch_pickle import STEPS, Machine

_STANDARD = {
    "argparse.Namespace", "builtins.bytearray", "builtins.complex", "builtins.object", "builtins.set", "_codecs.encode",
    "collections.Counter", "collections.OrderedDict", "collections.defaultdict", "copyreg._reconstructor",
    "datetime.datetime", "datetime.timedelta", "pathlib.Path", "pathlib.PosixPath", "pathlib.PurePosixPath",
}  # fmt: skip
_PYTHON_2 = {"__builtin__": "builtins", "copy_reg": "copyreg"}  # Protocol 2 uses the names of Python 2.
_SHARDED = "torch.distributed._shard.sharded_tensor.api.ShardedTensor"
_GETATTR = "builtins.getattr"
_WRAPPER = Global("torch._utils._rebuild_wrapper_subclass")


@dataclass(slots=True, eq=False)
class Instance:
    """A stand-in for an object of class `kind`, or for the result of a function. It is equal only to itself."""

    kind: str
    arguments: tuple[Any, ...] = ()
    state: dict[Any, Any] = field(default_factory=dict)


class InertMachine(Machine):
    """Follows the instructions of pickle protocol 4 as well as those that torch's own reader knows."""

    most_steps: ClassVar[int] = MAX_DCP_STEPS
    reader: ClassVar[str] = "this tool"

    def _push_global(self, module: str, name: str) -> None:
        self._stack.append(_named(module, name))

    def _push_named(self) -> None:
        module, name = self._pop_last(2)
        if not isinstance(module, str) or not isinstance(name, str):
            raise PickleRefused("the name of a class is not text")
        self._spend(len(module) + len(name))  # one long text may be part of many names
        self._push_global(module, name)

    def _call(self) -> None:
        arguments, function = self._stack.pop(), self._stack[-1]
        if not isinstance(function, Global) or not isinstance(arguments, tuple):
            raise PickleRefused("it calls something that is not a function")
        if function.name == _GETATTR:  # torch names the class inside a class like this
            if arguments != (Global(_SHARDED), "ProcessGroupState"):
                raise PickleRefused("it calls getattr, which is not allowed")
            self._stack[-1] = Global(f"{_SHARDED}.ProcessGroupState")
        elif function.name in torch_globals.FOLLOWED and _WRAPPER not in arguments[:1]:
            if arguments and isinstance(arguments[0], list | tuple):
                self._spend(len(arguments[0]))  # many calls may share one long list
            self._stack[-1] = torch_globals.called(function, arguments)
        else:
            self._stack[-1] = Instance(function.name, arguments)

    def _make(self) -> None:
        kind, arguments = self._pop_last(2)
        if not isinstance(kind, Global) or not isinstance(arguments, tuple):
            raise PickleRefused("it creates an object from something that is not a class")
        self._stack.append(Instance(kind.name, arguments))

    def _build(self) -> None:
        state, instance = self._stack.pop(), self._stack[-1]
        if isinstance(instance, Instance):
            if isinstance(state, tuple) and len(state) == 2 and state[0] is None and type(state[1]) is dict:
                state = state[1]  # of an object with slots
            instance.state = state if type(state) is dict else {"": state}
        elif type(instance) is not Ordered:
            raise PickleRefused("it sets the state of an object that has none")

    def _key(self, key: Any) -> Any:
        # An Instance hashes by identity, so nobody can choose its hash.
        return key if isinstance(key, Instance) else super()._key(key)


InertMachine.steps = STEPS | {
    "ADDITEMS": lambda m, _: m._since_mark(),
    "STACK_GLOBAL": lambda m, _: m._push_named(),
    "MEMOIZE": lambda m, _: m._remember(len(m._memo)),
    "FRAME": lambda m, _: None,
    **dict.fromkeys(("SHORT_BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES"), Machine._push),
}


def _named(module: str, name: str) -> Global:
    module = _PYTHON_2.get(module, module)
    full = f"{module}.{name}"
    if module.partition(".")[0] in sys.stdlib_module_names and full not in _STANDARD and full != _GETATTR:
        raise PickleRefused(f"it asks for {full[:100]!r}, which no checkpoint needs")
    return Global(full)


def state_of(value: Any) -> dict[Any, Any]:
    """Return the state of an Instance, {} for anything else."""
    return value.state if isinstance(value, Instance) else {}


def entries_of(value: Any, what: str = "it") -> dict[str, Any]:
    """Return the entries of a dictionary by name. Raises PickleRefused if `what` is none, or has a wrong name."""
    if not isinstance(value, dict):
        raise PickleRefused(f"{what} is not a dictionary")
    for name in value:
        if not isinstance(name, str):
            raise PickleRefused("the name of an entry is not text")
        if problem := name_problem(name):
            raise PickleRefused(f"the name of the entry {shown_name(name)} {problem}")
    return value


def lengths_of(value: Any, most: int = MAX_DIMENSIONS) -> tuple[int, ...]:
    """Return a shape, or a place in one. Raises PickleRefused unless it is a list of at most `most` lengths."""
    if not isinstance(value, tuple | list) or len(value) > most:
        raise PickleRefused(f"it has a shape or a place that is not a list of at most {most} lengths")
    if not all(map(torch_globals.is_count, value)):
        raise PickleRefused("it has a shape or a place with invalid lengths")
    return tuple(value)


def dtype_of(value: Any) -> str:
    """Return torch's name of a dtype. Raises PickleRefused for anything else."""
    if not isinstance(value, Global) or value.name not in torch_globals.DTYPES:
        raise PickleRefused("it has a tensor with an unknown dtype")
    return value.name.removeprefix("torch.")
