"""Read the files of one or several sources as a single repo."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from typing_extensions import override

from sharding.core.protocols import Files, Source
from sharding.core.values import FileEntry


class Repo(Files):
    """The files to copy. Each file names its source and its path there.

    The first source is the one that the user named. Weights are read from the sources directly.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        files: Iterable[FileEntry] | None = None,
        links_out: Sequence[str] | None = None,
        adapter_folder: str | None = None,
    ) -> None:
        """Combine `files` and `links_out`. By default they are those of the first source.

        With `adapter_folder` ("" or ending in "/"), the last source has an adapter there, to merge into the model.
        """
        first = sources[0]
        self.sources = tuple(sources)
        self.ref, self.folder, self.ranges_at_once = first.ref, first.folder, first.ranges_at_once
        self.files = first.files if files is None else tuple(files)
        self.links_out = first.links_out if links_out is None else tuple(links_out)
        self.unreached = tuple(place for source in sources for place in source.unreached)
        hidden = {source.is_private for source in sources}
        self.is_private = True if True in hidden else None if None in hidden else False
        self._adapter_folder = adapter_folder
        self._entries = {file.path: file for file in self.files}

    @property
    def base(self) -> Source | None:
        """The model that was trained, if it is a source too."""
        others = self.sources[1 : None if self._adapter_folder is None else -1]
        return others[0] if others else None

    @property
    def adapter(self) -> Source | None:
        """The repo of the adapter to merge, if it is a source too."""
        return None if self._adapter_folder is None else self.sources[-1]

    @property
    def adapter_folder(self) -> str:
        """The folder of the adapter in its repo: "" or ending in "/"."""
        return self._adapter_folder or ""

    def with_adapter(self, adapter: Source, folder: str) -> "Repo":
        """Return the same files, with an adapter in `folder` of one more source."""
        return Repo([*self.sources, adapter], self.files, self.links_out, folder)

    def through(self, sources: Sequence[Source]) -> "Repo":
        """Return the same files, read through `sources`, which are views of the original sources."""
        return Repo(sources, self.files, self.links_out, self._adapter_folder)

    @override
    def read(self, file: str, start_byte: int, end_byte: int) -> Iterator[bytes]:
        entry = self._entries[file]
        return self.sources[entry.source].read(entry.at, start_byte, end_byte)

    @override
    def path(self, file: str) -> Path | None:
        entry = self._entries[file]
        return self.sources[entry.source].path(entry.at)

    @override
    def closed(self) -> str:
        return next(filter(None, (source.closed() for source in self.sources)), "")
