"""See what a training run has saved as a repo: its weights at the top, beside them what the trained model has there."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from typing_extensions import override

from sharding.checkpoint.loaders import is_found_by_name
from sharding.core.lent import LentSource
from sharding.core.protocols import Source
from sharding.formats.names import is_duplicate, is_training_state, is_weights
from sharding.storage.source_view import SourceView


class TrainedSource(SourceView):
    """A source whose `folder` is its top, and what is beside the weights of `base`."""

    def __init__(self, source: Source, folder: str, base: Source | None) -> None:
        """Look at `source`; what it has beside `folder` stays where it is."""
        super().__init__(source)
        self.base = base
        self.links_out = tuple(link.removeprefix(folder) for link in source.links_out)
        self._places: dict[str, tuple[Source, str]] = {}
        if base:
            self.unreached += base.unreached
            self.links_out += tuple(filter(_is_beside, base.links_out))
            self._places |= {file.path: (base, file.path) for file in base.files if _is_beside(file.path)}
            hidden = (source.is_private, base.is_private)
            self.is_private = True if True in hidden else None if None in hidden else False
        self._places |= {file.path: (source, file.path) for file in source.files}
        inside = [file.path for file in source.files if folder and file.path.startswith(folder)]
        for path in inside:
            del self._places[path]
        self._places |= {path.removeprefix(folder): (source, path) for path in inside}
        entries = {(origin, file.path): file for origin in (source, base) if origin for file in origin.files}
        self.files = tuple(
            # Without the hash of the store, where nothing is copied on the server that is called otherwise there.
            entries[place] if place == (source, path) else replace(entries[place], path=path, xet_hash=None)
            for path, place in sorted(self._places.items(), key=lambda item: item[0])
        )

    @property
    @override
    def requests(self) -> int:
        """Requests made of both sources."""
        return self._source.requests + (self.base.requests if self.base else 0)

    @property
    @override
    def bytes_read(self) -> int:
        """Bytes read of both sources."""
        return self._source.bytes_read + (self.base.bytes_read if self.base else 0)

    @override
    def read(self, file: str, start_byte: int, end_byte: int) -> Iterator[bytes]:
        """Yield the bytes `[start_byte, end_byte)` of `file`. Raises SourceError."""
        source, path = self._places[file]
        return source.read(path, start_byte, end_byte)

    def is_from_base(self, file: str) -> bool:
        """Return whether `file` is the base's."""
        return file in self._places and self._places[file][0] is self.base

    @override
    def path(self, file: str) -> Path | None:
        """Return where `file` lies on this disk, if it does."""
        source, path = self._places[file]
        return source.path(path)

    @override
    def closed(self) -> str:
        """Return which of both was public and is not known to be so now, "" where neither."""
        return self._source.closed() or (self.base.closed() if self.base else "")

    @override
    def lend(self, files: Iterable[str]) -> LentSource:
        """Return what another machine needs to read weight `files`, which are never the base's. Raises SourceError."""
        names = {self._places[file][1]: file for file in files}
        lent = self._source.lend(names)
        return replace(lent, files=tuple(replace(entry, file=names[entry.file]) for entry in lent.files))


def _is_beside(path: str) -> bool:
    """Return whether a file of a base is taken: it is not its model, and no state of its training."""
    is_model = is_weights(path) and "/" not in path and not is_found_by_name(path)
    return not (is_model or is_duplicate(path) or is_training_state(path))
