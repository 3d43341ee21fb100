"""Use the private parts of huggingface_hub, httpx2 and hf-xet. A test fails if a release changes them.

Made for huggingface_hub 2.4, httpx2 2.16 and hf-xet 1.8.
"""

import logging
from collections.abc import Callable
from functools import partial
from threading import RLock
from typing import Any, BinaryIO

import httpx2
from huggingface_hub import CommitOperationAdd
from huggingface_hub.lfs import UploadInfo
from huggingface_hub.utils import (
    _http,
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
    set_client_factory,
)

from sharding.core.environment import keep_xet_logs_off_the_disk
from sharding.core.values import ShardRecord

XET_BUFFER_BYTES = 64 << 20
"""Bytes that hf-xet may fetch ahead. Its own defaults buffer gigabytes."""

XET_UPLOADS_AT_ONCE = 2
"""Packages that hf-xet may upload side by side. Each takes up to 64 MB of memory. Its default is up to 64 packages."""


XET_SETTINGS = {
    "reconstruction.download_buffer_size": XET_BUFFER_BYTES,
    "reconstruction.download_buffer_perfile_size": XET_BUFFER_BYTES,
    "reconstruction.download_buffer_limit": 2 * XET_BUFFER_BYTES,
    "reconstruction.min_prefetch_buffer": XET_BUFFER_BYTES,
    "reconstruction.min_reconstruction_fetch_size": XET_BUFFER_BYTES,
    "client.ac_max_upload_concurrency": XET_UPLOADS_AT_ONCE,
    "client.ac_initial_upload_concurrency": XET_UPLOADS_AT_ONCE,
    "telemetry.enabled": False,
}
"""By default hf-xet 1.8 buffers gigabytes ahead, and reports to the store how each transfer went.

A session that ends keeps the whole process waiting for that report, for two seconds at most. Only the source of hf-xet
names these settings (crate xet-runtime, `config/groups`).
"""


_QUIET = RLock()

ClientFactory = Callable[[], httpx2.Client]


def replace_client_factory(change: Callable[[ClientFactory], httpx2.Client]) -> None:
    """Make huggingface_hub create its clients with `change` of its current factory, unless it does so already."""
    usual = _http._GLOBAL_CLIENT_FACTORY
    if getattr(usual, "func", None) is not change:
        set_client_factory(partial(change, usual))


def watch_connections(client: httpx2.Client, wrap: Callable[[Any], Any]) -> None:
    """Make `client` open its connections through `wrap`. httpx2 2.16 has no argument for that."""
    for transport in (client._transport, *client._mounts.values()):
        if pool := getattr(transport, "_pool", None):
            pool._network_backend = wrap(pool._network_backend)


def xet_session() -> Any:
    """Return a session of hf-xet with bounded buffers and without log files."""
    keep_xet_logs_off_the_disk()
    from hf_xet import XetConfig, XetSession

    return XetSession(XetConfig().with_config(XET_SETTINGS))


def uploaded(record: ShardRecord) -> CommitOperationAdd:
    """Return the operation that commits a file whose bytes the Hub's store already has. The commit sends no bytes."""
    operation = CommitOperationAdd(record.file, b"")
    operation.upload_info = UploadInfo(size=record.bytes, sample=b"", sha256=bytes.fromhex(record.sha256))
    return _decided(operation, "lfs")


def to_upload(path: str, file: BinaryIO) -> CommitOperationAdd:
    """Return the operation that uploads a file to the store, whatever `.gitattributes` or `.gitignore` says."""
    operation = CommitOperationAdd(path, file)
    operation._upload_mode = "lfs"
    return operation


def small(path: str, data: bytes) -> CommitOperationAdd:
    """Return the operation that commits a JSON file to git itself, without asking the Hub, which wants it there."""
    return _decided(CommitOperationAdd(path, data), "regular")


def went_to_store(operation: CommitOperationAdd) -> bool:
    """Return whether a commit, which asked the Hub first, sent this file to the store, as `.gitattributes` may say."""
    return operation._upload_mode == "lfs"


def quietly(upload: Callable[[], None]) -> None:
    """Run `upload` without the client's progress bar ("Upload 0 LFS files") and its warning about an open file.

    Both are settings of the whole process, so uploads wait for one another.
    """
    log = logging.getLogger("huggingface_hub._commit_api")

    def keeps(record: logging.LogRecord) -> bool:
        return "binary IO buffer" not in record.getMessage()

    with _QUIET:
        has_bars = not are_progress_bars_disabled()
        log.addFilter(keeps)
        if has_bars:
            disable_progress_bars()
        try:
            upload()
        finally:
            log.removeFilter(keeps)
            if has_bars:
                enable_progress_bars()


def _decided(operation: CommitOperationAdd, mode: str) -> CommitOperationAdd:
    """Return `operation` as if the Hub had said how it wants the file, and had its bytes."""
    operation._upload_mode, operation._is_uploaded, operation._should_ignore = mode, True, False  # type: ignore[assignment]
    return operation
