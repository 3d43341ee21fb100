"""Show the page as a visitor sees it, without a network: a loopback Hub with samples, and a demo user signed in."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from sharding.demo.whole_job import serve_hub

USER = "alice"
FOLDER = Path("demo/hub")


def main() -> None:
    """Serve both until Ctrl-C."""
    print("Starting a Hub on this machine with sample models; the first time it builds them …", flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # which interrupts, as Ctrl-C does
    with suppress(KeyboardInterrupt), serve_hub(FOLDER, "--org", f"acme={USER},bob") as address:
        print(f"The Hub is {address}. The page signs in as {USER}; stop both with Ctrl-C.", flush=True)
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


if __name__ == "__main__":
    main()
