"""Show the page without a network, on a Hub on this machine with samples, to a demo user who is signed in."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from sharding.demo.whole_job import serve_hub

USER = "alice"
FOLDER = Path("demo/page/hub")
PORT = 7859  # Of the Hub, if it is free: what was proved of its repos holds for this address, after a restart too.


def main() -> None:
    print("Starting a Hub on this machine with sample models. The first start builds them …", flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the same as Ctrl-C
    with (
        suppress(KeyboardInterrupt),
        serve_hub(FOLDER, "--org", f"acme={USER},bob", "--samples", port=_port()) as address,
    ):
        print(f"The Hub is {address}. The page signs in as {USER}. Stop both with Ctrl-C.", flush=True)
        here = {
            "HF_ENDPOINT": address,
            "HF_TOKEN": f"hf_{USER}",
            "SHARD_FOLDER": str(FOLDER.absolute().parent / "desk"),
        }
        with subprocess.Popen([sys.executable, "app.py"], env={**os.environ, **here}) as page:
            try:
                page.wait()
            finally:
                page.terminate()


def _port() -> int:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", PORT))
        except OSError:
            return 0
    return PORT


if __name__ == "__main__":
    main()
