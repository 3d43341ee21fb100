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
from sharding.localhub.accounts import Caller
from sharding.localhub.blobs import read_file
from sharding.localhub.hub import Hub
from sharding.localhub.repos import create_repo

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
    large = {path for path in files if commits.is_matched(path.name, patterns)}
    stored = {path: _store(hub, path) for path in large}
    owner = repo_id.split("/")[0]
    caller = Caller(owner, "write", namespaces=frozenset({owner}))
    with hub.state.writing() as db:
        db.execute("INSERT OR IGNORE INTO accounts VALUES (?, 'org')", (OWNER,))
        repo = create_repo(hub, db, caller, "model", repo_id, repo_id.endswith("-private"))
        if repo_id.endswith("-gated"):
            db.execute("UPDATE repos SET gated = 'auto' WHERE number = ?", (repo.number,))
        entries = []
        for path in files:
            name, size = path.relative_to(folder).as_posix(), path.stat().st_size
            if path in large:
                records.add_object(db, repo.number, stored[path], size)
                entries.append(records.lfs_entry(name, stored[path], size))
            else:
                entries.append(records.Entry(name, hub.blobs.put(path.read_bytes()), size, None, 0))
        head = records.find_head(db, repo, "main")
        commits.write_commit(db, repo, "main", head, owner, commits.Draft("Add the sample", entries))
    return sum(entry.size_bytes for entry in entries)


def _store(hub: Hub, path: Path) -> str:
    """Keep a large file where an upload by a client would put it; return its SHA-256."""
    if hub.xet:
        return hub.xet.put([path])[0].sha256
    digest = hashlib.sha256()
    for chunk in read_file(path):
        digest.update(chunk)
    sha256 = digest.hexdigest()
    hub.blobs.keep_stream(read_file(path), sha256, path.stat().st_size)
    return sha256
