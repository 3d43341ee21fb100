"""Re-shard in the way of the tutorials, in a child process, and put checkpoints into folders to load them from."""

import shutil
import subprocess
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile

from sharding.checkpoint.loadable import loadable_files
from sharding.checkpoint.read import describe_source, read_checkpoint, read_configs
from sharding.checkpoint.side_files import sort_files, weights_beside
from sharding.checkpoint.weight_sets import TRANSFORMERS, by_folder
from sharding.core.dtypes import torch_name
from sharding.core.environment import child_command, child_variables
from sharding.core.errors import Remedy, SourceError
from sharding.core.limits import DISK_FLOOR_BYTES, MEMORY_SHARE
from sharding.core.made import Change
from sharding.core.meter import anon_bytes
from sharding.core.options import Options
from sharding.core.protocols import Files
from sharding.core.text import format_bytes
from sharding.core.values import Content, FileEntry, Shard, Tensor
from sharding.loading.costs import ClassicCost
from sharding.loading.measure import Load, free_memory_bytes, predict_load
from sharding.planning.cast import cast_change
from sharding.planning.plan import plan_shards, written_configs
from sharding.storage.folder_source import open_folder
from sharding.transfer.stream import Prepared

_SAMPLE_SECONDS = 0.02
_STREAM = Remedy("use_stream_engine")


def refuse_too_large(needed_memory_bytes: int, needed_disk_bytes: int, folder: Path) -> None:
    """Raise SourceError with the figures if a model does not fit into memory or its files do not fit on the disk."""
    free_bytes = int(MEMORY_SHARE * free_memory_bytes())
    if needed_memory_bytes > free_bytes:
        raise SourceError(
            f"The classic engine needs about {format_bytes(needed_memory_bytes)} of memory for this model, but only "
            f"{format_bytes(free_bytes)} can be used here.",
            "The stream engine keeps only a small part of it in memory. Leave --engine out to use it.",
            _STREAM,
        )
    free_bytes = free_disk_bytes(folder)
    if needed_disk_bytes > free_bytes:
        raise SourceError(
            f"The classic engine needs {format_bytes(needed_disk_bytes)} on the disk for its copies, but only "
            f"{format_bytes(free_bytes)} are free.",
            "The stream engine needs no such copies. Leave --engine out to use it.",
            _STREAM,
        )


def free_disk_bytes(folder: Path) -> int:
    """Return how many bytes the disk of `folder` takes now, beside those that stay free for others."""
    return shutil.disk_usage(folder).free - DISK_FLOOR_BYTES


def run_classic(folder: Path, out: Path, max_shard_bytes: int, dtype: str | None) -> ClassicCost:
    """Load `folder` as torch's `dtype` (None: as stored), save it in `out`, and load that again. Raises SourceError."""
    started = time.monotonic()
    arguments = (str(folder), str(out), str(max_shard_bytes), dtype or "keep")
    command = child_command("sharding.loading.classic_child", *arguments)
    # A file, because nobody reads a pipe meanwhile: it would fill, and the child would wait forever.
    with TemporaryFile() as errors:
        variables, nothing = child_variables(), subprocess.DEVNULL
        with subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=errors, env=variables) as process:
            peak_bytes = 0
            try:
                while process.poll() is None:
                    peak_bytes = max(peak_bytes, anon_bytes(process.pid))
                    time.sleep(_SAMPLE_SECONDS)
            finally:
                process.kill()
        errors.seek(0)
        lines = errors.read().decode(errors="replace").strip().splitlines()
    if process.returncode:
        reason = lines[-1][:500] if lines else f"it ended with {process.returncode}"
        message = f"The classic engine cannot re-shard this checkpoint: {reason}"
        hint = "Leave --engine out. If that fails too, load the model with its own library and save it as safetensors."
        raise SourceError(message, hint, _STREAM)
    written_bytes = sum(path.stat().st_size for path in out.iterdir())
    return ClassicCost(time.monotonic() - started, peak_bytes, written_bytes)


@contextmanager
def prepared_classic(origin: Files, options: Options) -> Iterator[Prepared]:
    """Load `origin`, save it in a temporary folder and yield that as the source of a job. Raises SourceError."""
    files = loadable_files(origin)
    dtype = torch_name(options.dtype)
    memory_bytes = predict_load(origin, files, Load(dtype=dtype)).peak_anon_bytes
    copy_bytes = max(sum(file.bytes for file in files), memory_bytes)
    with TemporaryDirectory(prefix="classic-") as scratch:
        refuse_too_large(memory_bytes, download_bytes(origin, files) + copy_bytes, Path(scratch))
        folder = Path(scratch) / "original"
        deque(lay_out(origin, files, folder), maxlen=0)
        cost = run_classic(folder, Path(scratch) / "saved", options.max_shard_bytes, dtype)
        saved = open_folder(str(Path(scratch) / "saved"))
        checkpoint = read_checkpoint(saved)
        beside = weights_beside(by_folder(file.path for file in origin.files), {"": TRANSFORMERS})
        side_files, _ = sort_files(origin.files, (), beside)
        as_saved = replace(options, strategy="size", order="stored")
        plan = plan_shards(checkpoint.tensors, as_saved, checkpoint.components)
        configs = read_configs(origin, [component.folder for component in checkpoint.components])
        written = written_configs(configs, checkpoint.reconfigured, options)
        original = None
        with suppress(SourceError):
            original = read_checkpoint(origin)
        made = tuple(_cast(original, checkpoint, options.dtype)) if options.dtype != "keep" else ()
        held = {file.path: list[Tensor]() for file in checkpoint.weight_files}
        for tensor in checkpoint.tensors:
            held[tensor.file].append(tensor)
        shards = tuple(Shard(path, tuple(those), sum(one.bytes for one in those)) for path, those in held.items())
        yield Prepared(
            sources=(saved,),
            checkpoint=replace(
                checkpoint,
                source=origin.ref,
                side_files=side_files,
                copied_weights=tuple(file for file in side_files if file.path in beside),
                findings=(*describe_source(origin), *checkpoint.findings),
                unreached=origin.unreached,
            ),
            plan=replace(plan, shards=shards, sources=(saved.ref,), written=written, made=made),
            is_stated=all(file.sha256 or file.git_sha1 for file in files),
            peak_anon_bytes=cost.peak_anon_bytes,
            disk_bytes_written=sum(file.bytes for file in saved.files) + download_bytes(origin, files),
            original=original,
        )


def _cast(original: Content | None, saved: Content, dtype: str) -> Iterator[Change]:
    """Yield what a cast to `dtype` did to `original`. A tensor that its headers do not show counts as changed."""
    before = {tensor.name: tensor.dtype for tensor in original.tensors} if original else {}
    if changed := sum(before.get(tensor.name) != tensor.dtype for tensor in saved.tensors):
        yield cast_change(dtype, changed, len(saved.tensors))


def download_bytes(source: Files, files: Iterable[FileEntry]) -> int:
    """Return how many bytes `lay_out` downloads."""
    return sum(file.bytes for file in files if source.path(file.path) is None)


def lay_out(
    source: Files, files: Iterable[FileEntry], folder: Path, written: Mapping[str, bytes] | None = None
) -> Iterator[int]:
    """Fill the new `folder` with `files` and `written`; yield the size of each piece downloaded. Raises SourceError."""
    folder.mkdir()
    for file in files:
        if path := source.path(file.path):
            (folder / file.path).symlink_to(path)
        else:
            with open(folder / file.path, "wb") as out:
                yield from map(out.write, source.read(file.path, 0, file.bytes))
    for name, data in (written or {}).items():
        (folder / name).unlink(missing_ok=True)
        (folder / name).write_bytes(data)
