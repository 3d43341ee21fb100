"""Open, on a worker's machine, the files and the destination that the job gives it access to."""

from pathlib import Path

from sharding.core.protocols import LentDestination, LentSource, ShardSink, Source
from sharding.core.values import FileEntry
from sharding.storage.folder_source import FolderSource
from sharding.storage.folder_writing import FolderSink


def open_lent(lent: LentSource) -> Source:
    """Return a source with the files that were `lent`. Raises SourceError if a folder has other files, or none."""
    if not lent.hub:
        # The folders above a file may be links on this machine. The file itself was no link on the first machine.
        places = ((file.file, Path(file.place)) for file in lent.files)
        source = FolderSource(lent.ref.repo_id, {file: place.parent.resolve() / place.name for file, place in places})
        source.refuse_other(lent)
        return source
    from sharding.fleet.granted_hub import GrantedHub
    from sharding.storage.hub.source import HubSource

    files = tuple(FileEntry(file.file, file.bytes, xet_hash=file.xet_hash) for file in lent.files)
    return HubSource(GrantedHub(lent), lent.ref, files=files)


def open_lent_destination(lent: LentDestination) -> ShardSink:
    """Return the sink for the shards. Raises DestinationError if a folder does not hold the job."""
    if lent.folder:
        sink = FolderSink(Path(lent.folder), lent.plan_id)
        sink.refuse_other()
        return sink
    from sharding.fleet.granted_hub import GrantedHub
    from sharding.storage.hub.upload import StoreSink

    return StoreSink(GrantedHub(lent), lent.ref.repo_id)
