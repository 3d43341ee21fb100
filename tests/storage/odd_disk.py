"""A disk that lacks something, over FUSE: `python -m tests.storage.odd_disk WHAT BELOW PLACE` mounts it until it is unmounted.

It speaks the kernel's own protocol (`include/uapi/linux/fuse.h`, 7.31), so it needs no library: only Linux, and the right to
mount. Everything is kept in the folder BELOW. WHAT it lacks:

- `sync`: the sync of a folder, as older CIFS.
- `locks`: flock, as some network drives.
- `append`: it only writes new files, from their beginning to their end, as a bucket that rclone mounts: a file that is
  there can be opened for writing, but not written or closed, and one that is removed meanwhile is there again.
- `size`: files are at most `MOST_BYTES` long, as FAT32 has it for 4 GiB.
"""

import ctypes
import errno
import fcntl
import os
import shutil
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

MOST_BYTES = 150_000
_ATOMIC_TRUNC, _FLOCK = 1 << 3, 1 << 10
_SIZE, _MTIME = 1 << 3, 1 << 5  # what a SETATTR changes
_HEADER = struct.Struct("<IIQQIIII")


class Disk:
    """The answers to the kernel. Every method gets the node of a request and its body."""

    def __init__(self, lacks: str, below: str) -> None:
        self.lacks = lacks
        self.paths = {1: below}
        self.nodes = {below: 1}
        self.ends: dict[int, int] = {}  # by file handle: where the next byte of a new file is to be written
        self.opcodes: dict[int, Callable[[int, bytes], bytes]] = {
            **{1: self.lookup, 3: self.getattr, 4: self.setattr, 9: self.mkdir, 10: self.unlink, 11: self.unlink},
            **{12: self.rename, 14: self.open, 15: self.read, 16: self.write, 17: self.statfs, 18: self.release},
            **{20: self.nothing, 25: self.flush, 26: self.init, 27: lambda *_: bytes(16), 28: self.readdir},
            **{
                29: self.nothing,
                30: self.fsyncdir,
                32: self.setlk,
                33: self.setlk,
                35: self.create,
                45: lambda node, body: self.rename(node, body, 16),
            },
        }

    def init(self, _: int, body: bytes) -> bytes:
        flags = _ATOMIC_TRUNC | (_FLOCK if self.lacks == "locks" else 0)
        return struct.pack("<IIIIHHIIHHI7I", 7, 31, 65536, flags, 12, 9, 65536, 1, 0, 0, 0, *[0] * 7)

    def nothing(self, *_: object) -> bytes:
        return b""

    def unknown(self, *_: object) -> bytes:
        raise OSError(errno.ENOSYS, "no such operation")

    def below(self, node: int, name: bytes) -> str:
        return f"{self.paths[node]}/{os.fsdecode(name.rstrip(bytes(1)))}"

    def attributes(self, path: str) -> bytes:
        of = os.lstat(path)
        times = [getattr(of, f"st_{kind}time_ns") for kind in "amc"]
        return struct.pack(
            "<6Q10I",
            *(of.st_ino, of.st_size, of.st_blocks, *(time // 10**9 for time in times)),
            *(*(time % 10**9 for time in times), of.st_mode, of.st_nlink, of.st_uid, of.st_gid, 0, 4096, 0),
        )

    def entry(self, path: str) -> bytes:
        attributes = self.attributes(path)
        node = self.nodes.setdefault(path, len(self.paths) + 1)
        self.paths[node] = path
        return struct.pack("<4QII", node, 0, 0, 0, 0, 0) + attributes

    def lookup(self, node: int, body: bytes) -> bytes:
        return self.entry(self.below(node, body))

    def getattr(self, node: int, _: bytes) -> bytes:
        return struct.pack("<QII", 0, 0, 0) + self.attributes(self.paths[node])

    def setattr(self, node: int, body: bytes) -> bytes:
        valid, _, _, size, _, _, mtime, _, _, mtime_ns, *_ = struct.unpack("<II6Q8I", body)
        if valid & _SIZE:
            if self.lacks == "append" and size != os.path.getsize(self.paths[node]):
                raise PermissionError(errno.EPERM, "only whole files")
            os.truncate(self.paths[node], size)
        if valid & _MTIME:
            now = mtime * 10**9 + mtime_ns
            os.utime(self.paths[node], ns=(now, now))
        return self.getattr(node, b"")

    def mkdir(self, node: int, body: bytes) -> bytes:
        os.mkdir(path := self.below(node, body[8:]))
        return self.entry(path)

    def unlink(self, node: int, body: bytes) -> bytes:
        path = self.below(node, body)
        os.rmdir(path) if os.path.isdir(path) else os.unlink(path)
        self.nodes.pop(path, None)
        return b""

    def rename(self, node: int, body: bytes, skip: int = 8) -> bytes:
        (to,) = struct.unpack_from("<Q", body)
        old, new, _ = body[skip:].split(bytes(1), 2)
        before, after = self.below(node, old), self.below(to, new)
        os.rename(before, after)
        self.nodes.pop(after, None)
        for path, number in list(self.nodes.items()):
            if path == before or path.startswith(f"{before}/"):
                del self.nodes[path]
                self.paths[number] = after + path[len(before) :]
                self.nodes[self.paths[number]] = number
        return b""

    def open(self, node: int, body: bytes) -> bytes:
        (flags,) = struct.unpack_from("<I", body)
        handle = os.open(self.paths[node], flags & ~(os.O_APPEND | os.O_NOFOLLOW))
        return self.opened(handle, is_new=bool(flags & os.O_TRUNC))

    def opened(self, handle: int, is_new: bool = True) -> bytes:
        if is_new:
            self.ends[handle] = 0
        return struct.pack("<QII", handle, 0, 0)

    def create(self, node: int, body: bytes) -> bytes:
        flags, mode = struct.unpack_from("<II", body)
        handle = os.open(path := self.below(node, body[16:]), flags & ~os.O_APPEND | os.O_CREAT, mode)
        return self.entry(path) + self.opened(handle)

    def read(self, _: int, body: bytes) -> bytes:
        return os.pread(*(struct.unpack_from("<QQI", body)[place] for place in (0, 2, 1)))

    def write(self, _: int, body: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", body)
        data = body[40 : 40 + size]
        if self.lacks == "append" and offset != self.ends.get(handle):
            raise PermissionError(errno.EPERM, "only one byte after the other")
        if self.lacks == "size":
            data = data[: max(0, MOST_BYTES - offset)]
            if not data:
                raise OSError(errno.EFBIG, "too large")
        written = os.pwrite(handle, data, offset)
        self.ends[handle] = offset + written
        return struct.pack("<II", written, 0)

    def flush(self, _: int, body: bytes) -> bytes:
        (handle,) = struct.unpack_from("<Q", body)
        is_old = handle not in self.ends and fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
        if self.lacks == "append" and is_old:
            raise PermissionError(errno.EPERM, "only new files are written")
        return b""

    def release(self, node: int, body: bytes) -> bytes:
        (handle,) = struct.unpack_from("<Q", body)
        if self.lacks == "append" and handle in self.ends and not os.fstat(handle).st_nlink:
            shutil.copyfile(f"/proc/self/fd/{handle}", self.paths[node])
        self.ends.pop(handle, None)
        os.close(handle)
        return b""

    def fsyncdir(self, *_: object) -> bytes:
        if self.lacks == "sync":
            raise OSError(errno.EINVAL, "no such operation")
        return b""

    def setlk(self, *_: object) -> bytes:
        raise OSError(errno.ENOLCK, "no locks")

    def statfs(self, *_: object) -> bytes:
        of = os.statvfs(self.paths[1])
        counts = (of.f_blocks, of.f_bfree, of.f_bavail, of.f_files, of.f_ffree)
        return struct.pack("<5Q4I6I", *counts, of.f_bsize, of.f_namemax, of.f_frsize, 0, *[0] * 6)

    def readdir(self, node: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        listed = b""
        for number, name in enumerate(sorted(os.listdir(self.paths[node]))[offset:], offset + 1):
            text = os.fsencode(name)
            entry = struct.pack("<QQII", number, number, len(text), 0) + text
            entry += bytes(-len(entry) % 8)
            if len(listed) + len(entry) > size:
                break
            listed += entry
        return listed


def serve(disk: Disk, device: int) -> None:
    """Answer the kernel until somebody unmounts the disk."""
    while True:
        try:
            request = os.read(device, 1 << 20)
        except OSError as error:
            if error.errno == errno.ENODEV:
                return
            if error.errno in (errno.ENOENT, errno.EINTR):  # a request that was interrupted
                continue
            raise
        _, opcode, unique, node, *_ = _HEADER.unpack_from(request)
        if opcode in (2, 36, 42):  # FORGET, INTERRUPT and BATCH_FORGET get no answer
            continue
        answer, failure = b"", 0
        try:
            answer = disk.opcodes.get(opcode, disk.unknown)(node, request[_HEADER.size :])
        except OSError as error:
            failure = -(error.errno or errno.EIO)
        with suppress(FileNotFoundError):  # nobody waits for it any more
            os.write(device, struct.pack("<IiQ", 16 + len(answer), failure, unique) + answer)


def main(lacks: str, below: str, place: str) -> None:
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},allow_other"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"odd", os.fsencode(place), b"fuse.odd", 6, options.encode()):  # MS_NOSUID | MS_NODEV
        raise OSError(ctypes.get_errno(), "mount")
    print("ready", flush=True)
    serve(Disk(lacks, str(Path(below).resolve())), device)


if __name__ == "__main__":
    main(*sys.argv[1:])
