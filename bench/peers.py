"""What the others do, each as one process: load and save a model, read headers, upload and download a repo."""

import argparse
from pathlib import Path


def load_and_save_with_accelerate(source: Path, destination: Path, max_shard_size: str) -> None:
    """Cast to fp16 and save as the tutorials do: from_pretrained, then Accelerator.save_model."""
    import torch
    from accelerate import Accelerator  # type: ignore[import-untyped]
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float16)
    Accelerator().save_model(model, destination, max_shard_size=max_shard_size)


def load_and_save_with_transformers(source: Path, destination: Path, max_shard_size: str) -> None:
    """Keep the dtype: from_pretrained, then save_pretrained."""
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(source).save_pretrained(destination, max_shard_size=max_shard_size)


def load_cast_and_save(source: Path, destination: Path, max_shard_size: str) -> None:
    """Load as stored, cast the whole model to fp16, save it."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(source).to(torch.float16)
    model.save_pretrained(destination, max_shard_size=max_shard_size)


def read_headers(source: Path) -> dict[str, list[int]]:
    """Return the shape of every tensor in a folder, by name, as safetensors reads it."""
    from safetensors import safe_open

    shapes: dict[str, list[int]] = {}
    for path in sorted(source.glob("*.safetensors")):
        with safe_open(path, framework="np") as file:
            shapes.update((name, file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    return shapes


def upload(folder: Path, repo_id: str) -> None:
    """Upload a folder to a new repo, as the Hub's library does it."""
    from huggingface_hub import HfApi

    HfApi().create_repo(repo_id)
    HfApi().upload_folder(repo_id=repo_id, folder_path=folder)


def download(repo_id: str, folder: Path) -> None:
    """Download a repo into a folder, as the Hub's library does it."""
    from huggingface_hub import snapshot_download

    snapshot_download(repo_id, local_dir=folder)


def main() -> None:
    """Do one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["accelerate", "transformers", "cast", "headers", "upload", "download"])
    parser.add_argument("source", type=Path)
    parser.add_argument("destination", type=Path, nargs="?")
    parser.add_argument("--max-shard-size", default="200MB")
    arguments = parser.parse_args()
    match arguments.what:
        case "accelerate":
            load_and_save_with_accelerate(arguments.source, arguments.destination, arguments.max_shard_size)
        case "transformers":
            load_and_save_with_transformers(arguments.source, arguments.destination, arguments.max_shard_size)
        case "cast":
            load_cast_and_save(arguments.source, arguments.destination, arguments.max_shard_size)
        case "headers":
            print(len(read_headers(arguments.source)))
        case "upload":
            upload(arguments.source, str(arguments.destination))
        case "download":
            download(str(arguments.source), arguments.destination)


if __name__ == "__main__":
    main()
