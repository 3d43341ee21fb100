"""Read a pickle of tensors into inert values. Pure. Calls, imports and builds nothing from it.

The instructions are those of torch's weights-only reader (torch 2.13, `_weights_only_unpickler.Unpickler`). Everything
that it refuses is refused here. If it would call a function of torch, a value stands in for the result: see
`torch_globals`. Two more things are refused: more instructions than any checkpoint has, and dictionary keys other than
text and small numbers. Nobody can make the hashes of such keys collide.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

from sharding.core.limits import MAX_PICKLE_MARKS, MAX_PICKLE_STEPS
from sharding.formats import torch_globals
from sharding.formats.torch_globals import Global, Ordered, Other, PickleRefused, Storage


class PickleCut(PickleRefused):
    """The pickle continues after the end of its bytes."""


class Machine:
    """One run through a pickle, with the stack of its instructions.

    It has the `storages` that the pickle names (by key) and, at the end, the `value` and the `position` behind it.
    Dictionaries, lists, tuples, texts and numbers are themselves. Tensors are `StoredTensor`, and everything else is
    `Other`. Time and memory grow with the number of instructions, at most `most_steps`.
    """

    steps: ClassVar[Mapping[int, Callable[[Any], Any]]] = {}
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
        data, size, steps = self._data, len(self._data), self.steps
        try:
            while self.position < size and (code := data[self.position]) != ord("."):
                step = steps.get(code)
                if step is None:
                    raise PickleRefused(f"{self.reader} does not support its instruction {bytes([code])!r}")
                self.position += 1
                step(self)
                self._spend(1)
            self._take(1)
            self.value = self._stack.pop()
        except (IndexError, KeyError) as error:
            raise PickleRefused("it uses a value that does not exist") from error
        return self

    def _spend(self, steps: int) -> None:
        self._steps_left -= steps
        if self._steps_left < 0:
            raise PickleRefused(f"it has more than {self.most_steps} instructions")

    def _take(self, count: int) -> bytes:
        end = self.position + count
        if end > len(self._data):
            raise PickleCut("it ends early")
        taken = self._data[self.position : end]
        self.position = end
        return taken

    def _number(self, size: int, *, signed: bool = False) -> int:
        return int.from_bytes(self._take(size), "little", signed=signed)

    def _line(self) -> str:
        end = self._data.find(b"\n", self.position)
        if end < 0:
            raise PickleCut("it ends early")
        return text_of(self._take(end + 1 - self.position)[:-1])

    def _since_mark(self) -> list[Any]:
        items, self._stack = self._stack, self._marked.pop()
        return items

    def _push_global(self) -> None:
        module, name = self._line(), self._line()
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


def text_of(data: bytes, errors: str = "strict") -> str:
    """Return `data` as text. Raises PickleRefused if it is not UTF-8."""
    try:
        return str(data, "utf-8", errors)
    except UnicodeDecodeError as error:
        raise PickleRefused("it contains text that is not UTF-8") from error


STEPS: dict[int, Callable[[Machine], Any]] = {
    ord("\x80"): lambda m: m._take(1),
    ord("c"): lambda m: m._push_global(),
    ord("R"): lambda m: m._call(),
    ord("\x81"): lambda m: m._make(),
    ord("b"): lambda m: m._build(),
    ord("Q"): Machine._store,
    ord("("): Machine._mark,
    ord("a"): lambda m: m._append(m._pop_last(1)),
    ord("e"): lambda m: m._append(m._since_mark()),
    ord("s"): lambda m: m._set(m._pop_last(2)),
    ord("u"): lambda m: m._set(m._since_mark()),
    ord("t"): lambda m: m._push(tuple(m._since_mark())),
    ord("\x85"): lambda m: m._push(tuple(m._pop_last(1))),
    ord("\x86"): lambda m: m._push(tuple(m._pop_last(2))),
    ord("\x87"): lambda m: m._push(tuple(m._pop_last(3))),
    ord("N"): lambda m: m._push(None),
    ord("\x89"): lambda m: m._push(False),
    ord("\x88"): lambda m: m._push(True),
    ord(")"): lambda m: m._push(()),
    ord("]"): lambda m: m._push([]),
    ord("}"): lambda m: m._push({}),
    ord("\x8f"): lambda m: m._push(Other("builtins.set")),
    ord("J"): lambda m: m._push(m._number(4, signed=True)),
    ord("K"): lambda m: m._push(m._number(1)),
    ord("M"): lambda m: m._push(m._number(2)),
    ord("G"): lambda m: m._push(struct.unpack(">d", m._take(8))[0]),
    ord("X"): lambda m: m._push(text_of(m._take(m._number(4)), "surrogatepass")),
    ord("U"): lambda m: m._push(text_of(m._take(m._number(1)))),
    ord("\x8a"): lambda m: m._push(int.from_bytes(m._take(m._number(1)), "little", signed=True)),
    ord("h"): lambda m: m._push(m._memo[m._number(1)]),
    ord("j"): lambda m: m._push(m._memo[m._number(4)]),
    ord("q"): lambda m: m._remember(m._number(1)),
    ord("r"): lambda m: m._remember(m._number(4)),
}
"""The action of each instruction, by its code (pickletools of Python 3.11)."""
Machine.steps = STEPS
