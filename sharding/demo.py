"""Show the whole job on a small model: build it, shard it, load both copies, let them generate."""

import subprocess
import sys
from pathlib import Path
from shutil import rmtree

from sharding.localhub.samples import build_mistral

SHARD_SIZE = "10MB"
PROMPT = "Return the number of"
NEW_TOKENS = 12


def main() -> None:
    """Work in the folder `demo`; exit with 1 if the two copies disagree."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    original, sharded = Path("./demo/mistral-60m"), Path("./demo/mistral-60m-sharded")
    rmtree("demo", ignore_errors=True)
    print(f"Building {original}: a Mistral with random weights in two files …", flush=True)
    build_mistral(original)
    command = ["shard", f"./{original}", f"./{sharded}", "--max-shard-size", SHARD_SIZE]
    print(f"\n$ shard-my-repo {' '.join(command)}", flush=True)
    subprocess.run([sys.executable, "-m", "sharding", *command], check=True)
    print(f"\nLoading both with transformers, {NEW_TOKENS} tokens from each after {PROMPT!r}:")
    texts = [_generate(folder) for folder in (original, sharded)]
    for folder, text in zip((original, sharded), texts, strict=True):
        print(f"  {folder.name:<22} {text!r}")
    print("They agree." if texts[0] == texts[1] else "They differ!")
    sys.exit(texts[0] != texts[1])


def _generate(folder: Path) -> str:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    inputs = tokenizer(PROMPT, return_tensors="pt", return_token_type_ids=False)
    (tokens,) = model.generate(**inputs, max_new_tokens=NEW_TOKENS, do_sample=False)
    text: str = tokenizer.decode(tokens)
    return text


if __name__ == "__main__":
    main()
