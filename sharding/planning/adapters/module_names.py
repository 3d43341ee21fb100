"""Find the stored tensor for a name that a module has in memory. Pure."""

from collections.abc import Iterable, Iterator, Mapping

_MOVED = (
    ("model.language_model.", "language_model.model."),
    ("model.language_model.", "model."),
    ("model.vision_tower.", "vision_tower."),
    ("model.visual.", "visual."),
    ("model.multi_modal_projector.", "multi_modal_projector."),
    ("lm_head.", "language_model.lm_head."),
)
"""Names in memory and in files of models with several parts (transformers 5.23, `conversion_mapping`)."""


_TEXT, _TEXT_ALONE = "model.language_model.", "model."
"""How the names of the language model start in a model with several parts, and in the class of that part alone."""

_INSIDE = ((".mlp.", ".block_sparse_moe."), (".block_sparse_moe.", ".mlp."))
"""The same in the middle of a name: Mixtral in transformers 5 and 4."""


class ModuleNames:
    """The names of stored tensors, searched by the names of the modules in memory.

    >>> names = ModuleNames(["h.0.attn.c_attn.weight"])
    >>> names.find("transformer.h.0.attn.c_attn.weight"), names.find("transformer.h.9.attn.c_attn.weight")
    ('h.0.attn.c_attn.weight', None)
    """

    def __init__(self, names: Iterable[str], known: Mapping[str, str] | None = None) -> None:
        """Search among `names`. `known` are the stored names of names in memory, as transformers knows them."""
        self._known = known or {}
        self._names = dict.fromkeys(names)
        self._inside: dict[str, str | None] = {}
        for name in self._names:
            _, dot, inside = name.partition(".")
            if dot:  # several names may be the same but for their first part
                self._inside[inside] = None if inside in self._inside else name
        self._prefix = ""
        self.prefixed = ""
        """The last name that was found with another prefix than the stored one."""
        self.is_of_text = False
        """Whether a name was one of the class of the language model alone, and was found in a model with more parts."""

    def find(self, name: str) -> str | None:
        """Return the stored name of `name`, or None if there is none.

        A stored name may lack the prefix of the model with a head, or have one more. If several names fit like that, it
        may be any of them, so none is returned.
        """
        if exact := next((other for other in self._moved(name) if other in self._names), None):
            return exact
        if name.startswith(_TEXT_ALONE) and (inside := _TEXT + name.removeprefix(_TEXT_ALONE)) in self._names:
            self.is_of_text = True
            return inside
        shorter = name.partition(".")[2]
        if shorter in self._names:
            self._prefix = name.removesuffix(shorter)
            self.prefixed = name
            return shorter
        longer = self._inside.get(name)
        self.prefixed = self.prefixed if longer is None else name
        return longer

    def in_memory(self, name: str) -> str:
        """Return what a stored name would be in memory, by the prefix that `find` has seen."""
        return _TEXT_ALONE + name.removeprefix(_TEXT) if self.is_of_text else self._prefix + name

    def may_be_trained(self, name: str) -> bool:
        """Return whether a stored name is in the part of the model that the adapter was trained on."""
        return not self.is_of_text or name.startswith(_TEXT)

    def _moved(self, name: str) -> Iterator[str]:
        yield name
        if name in self._known:
            yield self._known[name]
        yield from (name.replace(old, new) for old, new in _INSIDE if old in name)
        for old, new in _MOVED:
            if name.startswith(old):
                yield new + name.removeprefix(old)
