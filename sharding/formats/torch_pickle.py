"""Read a pickle of tensors into inert values. Pure. Calls, imports and builds nothing from it.

The instructions are those of torch's weights-only reader (torch 2.13, `_weights_only_unpickler.Unpickler`). Everything
that it refuses is refused here. Where it would call torch, a value of `torch_globals` stands in for the result. Also
refused: more instructions than any checkpoint has, and dictionary keys whose hashes somebody could make collide.
"""

from collections.abc import Callable, Mapping
from io import BytesIO
from pickletools import ArgumentDescriptor, opcodes, string1, stringnl_noescape_pair
from typing import Any, ClassVar, Self

from sharding.core.limits import MAX_PICKLE_MARKS, MAX_PICKLE_STEPS
from sharding.formats import torch_globals
from sharding.formats.torch_globals import Global, Ordered, Other, PickleRefused, Storage

_OPCODES = {opcode.code.encode("latin-1"): opcode for opcode in opcodes}


class PickleCut(PickleRefused):
    """The pickle continues after the end of its bytes."""


class Machine:
    """One run through a pickle, with the stack of its instructions.

    It has the `storages` that the pickle names (by key) and, at the end, the `value` and the `position` behind it.
    Dictionaries, lists, tuples, texts and numbers are themselves. Tensors are `StoredTensor`, and everything else is
    `Other`. Time and memory grow with the number of instructions, at most `most_steps`.
    """

    steps: ClassVar[Mapping[str, Callable[[Any, Any], Any]]] = {}
    most_steps: ClassVar[int] = MAX_PICKLE_STEPS
    reader: ClassVar[str] = "torch's weights-only reader"

    def __init__(self, data: bytes, start: int = 0, id_parts: int = torch_globals.ID_PARTS) -> None:
        """Start at `data[start:]`, where the name of a storage has `id_parts` parts."""
        self.position = start
        self.value: Any = None
        self.storages: dict[str, Storage] = {}
        self._data = data
        self._id_parts = id_parts
        self._steps_left = self.most_steps
        self._stack: list[Any] = []
        self._marked: list[list[Any]] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> Self:
        """Follow all instructions. Return the machine. Raises PickleRefused."""
        stream = BytesIO(self._data)
        stream.seek(self.position)
        try:
            while (code := stream.read(1)) != b".":
                if not code:
                    raise PickleCut("it ends early")
                opcode = _OPCODES.get(code)
                step = self.steps.get(opcode.name) if opcode else None
                if opcode is None or step is None:
                    raise PickleRefused(f"{self.reader} does not support its instruction {code!r}")
                step(self, opcode.arg and _argument(opcode.arg, stream))
                self._spend(1)
            self.value, self.position = self._stack.pop(), stream.tell()
        except (IndexError, KeyError) as error:
            raise PickleRefused("it uses a value that does not exist") from error
        return self

    def _spend(self, steps: int) -> None:
        self._steps_left -= steps
        if self._steps_left < 0:
            raise PickleRefused(f"it has more than {self.most_steps} instructions")

    def _since_mark(self) -> list[Any]:
        items, self._stack = self._stack, self._marked.pop()
        return items

    def _push_global(self, module: str, name: str) -> None:
        # Protocol 2 uses the names of Python 2.
        full = f"{'builtins' if module == '__builtin__' else module}.{name}"
        if full not in torch_globals.ALLOWED:
            raise PickleRefused(f"it asks for {full[:100]!r}, which torch's weights-only reader does not allow")
        self._stack.append(Global(full))

    def _call(self) -> None:
        arguments, function = self._stack.pop(), self._stack[-1]
        if isinstance(arguments, tuple) and len(arguments) == 1 and isinstance(arguments[0], list | tuple):
            self._spend(len(arguments[0]))  # many calls may share one long list
        self._stack[-1] = torch_globals.called(function, arguments)

    def _make(self) -> None:
        kind, arguments = self._pop_last(2)
        if kind != Global("collections.OrderedDict") or arguments != ():
            raise PickleRefused("it creates an object that is not a dictionary")
        self._stack.append(Ordered())

    def _build(self) -> None:
        state = self._stack.pop()
        if type(self._stack[-1]) is not Ordered or not isinstance(state, dict):
            raise PickleRefused("it sets the state of something that is not a dictionary")

    def _store(self) -> None:
        storage = self._stack[-1] = torch_globals.storage_of(self._stack[-1], self._id_parts)
        if self.storages.setdefault(storage.key, storage) != storage:
            raise PickleRefused("it describes one storage in two ways")

    def _mark(self) -> None:
        if len(self._marked) >= MAX_PICKLE_MARKS:
            raise PickleRefused("it is nested too deeply")
        self._marked.append(self._stack)
        self._stack = []

    def _append(self, items: list[Any]) -> None:
        if type(self._stack[-1]) is not list:
            raise PickleRefused("it appends to something that is not a list")
        self._stack[-1].extend(items)

    def _set(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) not in (dict, Ordered) or len(items) % 2:
            raise PickleRefused("it adds items to something that is not a dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[self._key(key)] = value

    def _key(self, key: Any) -> Any:
        return torch_globals.key_of(key)

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _remember(self, number: int) -> None:
        self._memo[number] = self._stack[-1]

    def _pop_last(self, count: int) -> list[Any]:
        if len(self._stack) < count:
            raise PickleRefused("it uses a value that does not exist")
        items = self._stack[-count:]
        del self._stack[-count:]
        return items


def _argument(form: ArgumentDescriptor, stream: BytesIO) -> Any:
    try:
        if form is stringnl_noescape_pair:  # pickletools undoes escapes in names, and pickle does not
            lines = [stream.readline(), stream.readline()]
            if lines[1][-1:] != b"\n":
                raise PickleCut("it ends early")
            return [line[:-1].decode() for line in lines]
        value = form.reader(stream)
        return value.encode("latin-1").decode() if form is string1 else value
    except UnicodeDecodeError as error:
        raise PickleRefused("it contains text that is not UTF-8") from error
    except ValueError as error:
        raise PickleCut("it ends early") from error


STEPS: dict[str, Callable[[Machine, Any], Any]] = {
    "PROTO": lambda m, _: None,
    "GLOBAL": lambda m, names: m._push_global(*names),
    "REDUCE": lambda m, _: m._call(),
    "NEWOBJ": lambda m, _: m._make(),
    "BUILD": lambda m, _: m._build(),
    "BINPERSID": lambda m, _: m._store(),
    "MARK": lambda m, _: m._mark(),
    "APPEND": lambda m, _: m._append(m._pop_last(1)),
    "APPENDS": lambda m, _: m._append(m._since_mark()),
    "SETITEM": lambda m, _: m._set(m._pop_last(2)),
    "SETITEMS": lambda m, _: m._set(m._since_mark()),
    "TUPLE": lambda m, _: m._push(tuple(m._since_mark())),
    "TUPLE1": lambda m, _: m._push(tuple(m._pop_last(1))),
    "TUPLE2": lambda m, _: m._push(tuple(m._pop_last(2))),
    "TUPLE3": lambda m, _: m._push(tuple(m._pop_last(3))),
    "NONE": lambda m, _: m._push(None),
    "NEWFALSE": lambda m, _: m._push(False),
    "NEWTRUE": lambda m, _: m._push(True),
    "EMPTY_TUPLE": lambda m, _: m._push(()),
    "EMPTY_LIST": lambda m, _: m._push([]),
    "EMPTY_DICT": lambda m, _: m._push({}),
    "EMPTY_SET": lambda m, _: m._push(Other("builtins.set")),
    **dict.fromkeys(
        ("BININT", "BININT1", "BININT2", "BINFLOAT", "BINUNICODE", "LONG1", "SHORT_BINSTRING"), Machine._push
    ),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), lambda m, number: m._push(m._memo[number])),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), Machine._remember),
}
"""The action of each instruction, by its name in `pickletools`. It gets the machine and the instruction's argument."""
Machine.steps = STEPS
