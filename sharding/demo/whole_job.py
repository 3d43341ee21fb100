"""Show the whole job without a network: a sample model on a Hub on this machine is sharded, downloaded and loaded."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from typing import Any

from sharding.demo.samples import build_mistral

SOURCE, DESTINATION = "samples/mistral-60m", "demo/mistral-60m-sharded"
SHARD_SIZE = "10MB"
PROMPT = "Beautiful is better than"
NEW_TOKENS = 14
NEXT = """
Go on with one of these. The first copies that model again, from folder to folder. The second opens the page.
  .venv/bin/python -m sharding shard ./demo/mistral-60m ./demo/mine --max-shard-size 20MB
  make run"""
USER = "demo"


def main() -> None:
    """Work in the folder `demo`, beside other demos. Exit with 1 if original and copy write different texts."""
    place = Path("demo")
    own = place / "whole-job"  # what the Hub and its client keep
    for folder in (own, *(place / repo_id.split("/")[1] for repo_id in (SOURCE, DESTINATION))):
        rmtree(folder, ignore_errors=True)
    with serve_sample(own) as endpoint:
        shard(own, endpoint, DESTINATION, "--max-shard-size", SHARD_SIZE)
        print("\nDownloading both with huggingface_hub …", flush=True)
        folders = [download(repo_id, place, endpoint) for repo_id in (SOURCE, DESTINATION)]
    print(f"Loading both with transformers. Each writes {NEW_TOKENS} tokens after {PROMPT!r}:")
    texts = [generate(folder) for folder in folders]
    for folder, text in zip(folders, texts, strict=True):
        print(f"  ./{str(folder):<27} {text!r}")
    agree = texts[0] == texts[1]
    print(f"They agree. The Hub has stopped.\n{NEXT}" if agree else "They differ!")
    sys.exit(not agree)


@contextmanager
def serve_sample(place: Path) -> Iterator[str]:
    """Build `SOURCE` alone, serve it from a Hub on this machine, yield its address, and stop the Hub at the end."""
    os.environ.setdefault("HF_XET_LOG_DEST", os.devnull)
    from huggingface_hub import HfApi

    owner, name = SOURCE.split("/")
    print("Starting a Hub on this machine with a sample model …", flush=True)
    folder = build_mistral(place / "built" / name)
    with serve_hub(place / "hub", "--user", USER, "--user", owner) as endpoint:
        api = HfApi(endpoint, f"hf_{owner}")
        api.create_repo(SOURCE)
        api.upload_folder(repo_id=SOURCE, folder_path=folder)
        yield endpoint


@contextmanager
def serve_hub(folder: Path, *options: str, port: int = 0) -> Iterator[str]:
    command = [sys.executable, "-m", "sharding", "localhub", "--port", str(port), "--folder", str(folder), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as hub:
        assert hub.stdout
        try:
            word, _, address = hub.stdout.readline().strip().partition(" ")
            if word != "ready":
                sys.exit("The Hub did not start. Its message stands above.")
            yield address
        finally:
            hub.terminate()


def shard(place: Path, endpoint: str, *arguments: str) -> None:
    command = ["shard", SOURCE, *arguments]
    print(f"\n$ HF_ENDPOINT={endpoint} HF_TOKEN=hf_{USER} shard-my-repo {' '.join(command)}", flush=True)
    env = {**os.environ, "HF_ENDPOINT": endpoint, "HF_TOKEN": f"hf_{USER}", "HF_HOME": str(place / "home")}
    subprocess.run([sys.executable, "-m", "sharding", *command], env=env, check=True)


def download(repo_id: str, place: Path, endpoint: str) -> Path:
    """Download a repo from the Hub at `endpoint` into a folder of `place`; return that folder."""
    from huggingface_hub import snapshot_download

    folder = place / repo_id.split("/")[1]
    snapshot_download(repo_id, local_dir=folder, endpoint=endpoint, token=f"hf_{USER}")
    return folder


def generate(folder: Path, **options: Any) -> str:
    """Return `PROMPT` and what the model in `folder` writes after it; `options` are for `from_pretrained`."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, **options)
    inputs = tokenizer(PROMPT, return_tensors="pt", return_token_type_ids=False)
    (tokens,) = model.generate(**inputs, max_new_tokens=NEW_TOKENS, do_sample=False)
    text: str = tokenizer.decode(tokens)
    return text


if __name__ == "__main__":
    main()
