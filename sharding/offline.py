"""Show the page as a visitor sees it, without a network: a loopback Hub with samples, and a demo user signed in."""

import os
import subprocess
import sys
from pathlib import Path

USER = "alice"
FOLDER = Path("demo/hub")


def main() -> None:
    """Serve both until Ctrl-C."""
    hub = [sys.executable, "-m", "sharding.localhub", "--folder", str(FOLDER), "--samples", "--org", f"acme={USER},bob"]
    print("Starting a Hub on this machine with sample models; the first time it builds them …", flush=True)
    with subprocess.Popen(hub, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        try:
            address = next(line.split()[1] for line in server.stdout if line.startswith("ready "))
            print(f"The Hub is {address}. The page signs in as {USER}; stop both with Ctrl-C.", flush=True)
            here = {
                "HF_ENDPOINT": address,
                "HF_TOKEN": f"hf_{USER}",
                "SHARD_FOLDER": str(FOLDER.absolute().parent / "desk"),
            }
            subprocess.run([sys.executable, "app.py"], env={**os.environ, **here}, check=False)
        except KeyboardInterrupt:
            pass
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
