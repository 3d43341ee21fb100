"""Open on one machine what a job on another one has lent."""

from pathlib import Path

from sharding.core.lent import LentDestination, LentSource
from sharding.core.protocols import ShardSink, Source
from sharding.core.values import FileEntry
from sharding.storage.folder_sink import FolderSink
from sharding.storage.folder_source import FolderSource


def open_lent(lent: LentSource) -> Source:
    """Return a source with the files that were `lent`. Raises SourceError where a folder has others, or none."""
    if not lent.hub:
        # The folders above a file may be links on this machine; the file was none where it was lent.
        places = ((file.file, Path(file.place)) for file in lent.files)
        source = FolderSource(lent.ref.repo_id, {file: place.parent.resolve() / place.name for file, place in places})
        source.refuse_other(lent)
        return source
    from sharding.fleet.granted_hub import GrantedHub
    from sharding.storage.hub.source import HubSource

    files = tuple(FileEntry(file.file, file.bytes, xet_hash=file.xet_hash) for file in lent.files)
    return HubSource(GrantedHub(lent), lent.ref, files=files)


def open_lent_destination(lent: LentDestination) -> ShardSink:
    """Return where shards go. Raises DestinationError where a folder is not that of the job."""
    if lent.folder:
        sink = FolderSink(Path(lent.folder), lent.plan_id)
        sink.refuse_other()
        return sink
    from sharding.fleet.granted_hub import GrantedHub
    from sharding.storage.hub.upload import StoreSink

    return StoreSink(GrantedHub(lent), lent.ref.repo_id)
