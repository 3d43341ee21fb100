"""Fill a new Hub with the samples."""

import hashlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TextIO

from sharding.localhub import commits, records
from sharding.localhub.blobs import read_file
from sharding.localhub.hub import Hub

OWNER = "samples"


def seed(hub: Hub, log: TextIO) -> None:
    """Create the sample repos that are missing. If any is, that takes about half a minute, torch and transformers."""
    # Each with the name in `samples.BUILDERS` of what makes its files. Lists show the newest first, so the sample to
    # try first is made last.
    wanted = {f"{hub.settings.users[0]}/llama-private": "llama", f"{OWNER}/llama-gated": "llama"}
    names = ("mistral-60m-lora", "t5-tiny-run", "t5-tiny-ranks", "qwen3-fp8", "gpt2-tied", "t5-tiny", "mistral-60m")
    wanted |= {f"{OWNER}/{name}": name for name in names}
    with hub.state.reading() as db:
        missing = [repo_id for repo_id in wanted if not records.find_repo(db, "model", *repo_id.split("/"))]
    if not missing:
        return
    with tempfile.TemporaryDirectory(prefix="samples-") as place:
        started = time.monotonic()
        # In another process: torch would stay in this one for as long as the Hub runs.
        # It imports this package, and nothing of that name in the current folder.
        path = [str(Path(__file__).parent.parent.parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(os.path.isabs, path))}
        subprocess.run([sys.executable, "-P", "-m", "sharding.demo.samples", place], check=True, env=env)
        print(f"samples built in {time.monotonic() - started:.0f} s", file=log, flush=True)
        for repo_id in missing:
            size_bytes = _add(hub, repo_id, Path(place, wanted[repo_id]))
            print(f"sample {repo_id}: {size_bytes / 1e6:.1f} MB", file=log, flush=True)


def _add(hub: Hub, repo_id: str, folder: Path) -> int:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    patterns = commits.lfs_patterns((folder / ".gitattributes").read_text())
    entries = [_entry(hub, path, path.relative_to(folder).as_posix(), patterns) for path in files]
    owner, name = repo_id.split("/")
    with hub.state.writing() as db:
        db.execute("INSERT OR IGNORE INTO accounts VALUES (?, 'org')", (OWNER,))
        repo = records.add_repo(db, "model", owner, name, repo_id.endswith("-private"), None)
        if repo_id.endswith("-gated"):
            db.execute("UPDATE repos SET gated = 'auto' WHERE number = ?", (repo.number,))
        commits.write_commit(db, repo, "main", None, owner, commits.Draft("Add the sample", entries))
    return sum(entry.size_bytes for entry in entries)


def _entry(hub: Hub, path: Path, name: str, patterns: tuple[str, ...]) -> records.Entry:
    """Keep a file where an upload by a client would put it."""
    size = path.stat().st_size
    if not commits.is_matched(name, patterns):
        return records.Entry(name, hub.blobs.put(path.read_bytes()), size, None, 0)
    if hub.xet:
        return records.lfs_entry(name, hub.xet.put(path), size)
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    hub.blobs.keep_stream(read_file(path), sha256, size)
    return records.lfs_entry(name, sha256, size)
