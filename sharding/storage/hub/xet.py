"""Open sessions of hf-xet with bounded memory."""

from typing import Any

from sharding.core.environment import keep_xet_logs_off_the_disk

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
names these settings (crate xet-runtime, `config/groups`), so a version that lacks one goes without it.
"""


def xet_session() -> Any:
    """Return a session of hf-xet with bounded buffers and without log files."""
    keep_xet_logs_off_the_disk()
    from hf_xet import XetConfig, XetSession

    config = XetConfig()
    known = set(config.keys())
    return XetSession(config.with_config({name: value for name, value in XET_SETTINGS.items() if name in known}))
