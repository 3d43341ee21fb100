"""What the others do, each as one process: load, merge and save a model, read headers, upload and download a repo."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel


_TORCH = {"keep": "auto", "fp16": "float16", "bf16": "bfloat16"}


def load(source: Path, dtype: str) -> "PreTrainedModel":
    """Load a model as the tutorials do, kept as it is stored or cast to a dtype."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(source, dtype=_TORCH[dtype])


def save_with_accelerate(source: Path, destination: Path, max_shard_size: str, dtype: str) -> None:
    """Load, then Accelerator.save_model."""
    from accelerate import Accelerator  # type: ignore[import-untyped]

    Accelerator().save_model(load(source, dtype), destination, max_shard_size=max_shard_size)


def save_with_transformers(source: Path, destination: Path, max_shard_size: str, dtype: str) -> None:
    """Load, then save_pretrained."""
    load(source, dtype).save_pretrained(destination, max_shard_size=max_shard_size)


def save_with_hub(source: Path, destination: Path, max_shard_size: str, dtype: str) -> None:
    """Load, then huggingface_hub.save_torch_state_dict."""
    from huggingface_hub import save_torch_state_dict

    destination.mkdir(parents=True)
    save_torch_state_dict(load(source, dtype).state_dict(), destination, max_shard_size=max_shard_size)


def load_dequantized_and_save(source: Path, destination: Path, max_shard_size: str) -> None:
    """Load a model in FP8 dequantized to bf16, and save it so."""
    import torch
    from transformers import AutoModelForCausalLM, FineGrainedFP8Config

    asked = FineGrainedFP8Config(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(source, quantization_config=asked, dtype=torch.bfloat16)
    del model._weight_conversions  # by which save_pretrained (5.23) would quantize it again
    model.save_pretrained(destination, max_shard_size=max_shard_size)


def convert(source: Path, destination: Path) -> None:
    """Dequantize a folder with the converter of compressed-tensors, which keeps the cuts into files."""
    from compressed_tensors.entrypoints.convert import convert_checkpoint
    from compressed_tensors.entrypoints.convert.converters import CompressedTensorsDequantizer

    convert_checkpoint(source, destination, CompressedTensorsDequantizer(source))


def merge_and_save(base: Path, adapter: Path, destination: Path, max_shard_size: str) -> None:
    """Load a model, load an adapter on top, merge both in memory and save the result."""
    from peft import PeftModel

    merged = PeftModel.from_pretrained(load(base, "keep"), adapter).merge_and_unload()
    merged.save_pretrained(destination, max_shard_size=max_shard_size)


def consolidate(source: Path, destination: Path, max_shard_size: str) -> None:
    """Put rank-sharded files together, each tensor into the file that the Hub's splitter gives it."""
    from huggingface_hub import split_state_dict_into_shards_factory
    from torch.distributed.checkpoint import HuggingFaceStorageReader
    from torch.distributed.checkpoint._consolidate_hf_safetensors import consolidate_safetensors_files

    sizes = {
        name: entry.size.numel() * entry.properties.dtype.itemsize
        for name, entry in HuggingFaceStorageReader(str(source)).read_metadata().state_dict_metadata.items()
    }
    split = split_state_dict_into_shards_factory(
        sizes,
        get_storage_size=lambda size: size,
        get_storage_id=lambda _: None,
        filename_pattern="{suffix}",
        max_shard_size=max_shard_size,
    )
    groups = enumerate(split.filename_to_tensors.values(), start=1)
    numbers = {name: number for number, names in groups for name in names}
    destination.mkdir(parents=True)
    consolidate_safetensors_files(str(source), str(destination), numbers, num_threads=2)


def save_from_dcp(source: Path, base: Path, destination: Path, max_shard_size: str) -> None:
    """Put `.distcp` files together with torch into one file, load that into a model of `base`, save it."""
    import torch
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
    from transformers import AutoConfig, AutoModelForCausalLM

    whole = destination.parent / "whole.pt"
    dcp_to_torch_save(source, whole)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(base))
    model.load_state_dict(torch.load(whole, weights_only=True), strict=False, assign=True)
    model.tie_weights()
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
    parser.add_argument(
        "what",
        choices=[
            "accelerate", "transformers", "hub", "dequantize", "consolidate", "torch-save", "headers", "upload",
            "download", "merge", "convert",
        ],
    )  # fmt: skip
    parser.add_argument("source", type=Path)
    parser.add_argument("destination", type=Path, nargs="?")
    parser.add_argument("--max-shard-size", default="200MB")
    parser.add_argument("--base", type=Path)
    parser.add_argument("--adapter", type=Path)
    parser.add_argument("--dtype", choices=list(_TORCH), default="keep")
    arguments = parser.parse_args()
    match arguments.what:
        case "accelerate":
            save_with_accelerate(arguments.source, arguments.destination, arguments.max_shard_size, arguments.dtype)
        case "transformers":
            save_with_transformers(arguments.source, arguments.destination, arguments.max_shard_size, arguments.dtype)
        case "hub":
            save_with_hub(arguments.source, arguments.destination, arguments.max_shard_size, arguments.dtype)
        case "dequantize":
            load_dequantized_and_save(arguments.source, arguments.destination, arguments.max_shard_size)
        case "convert":
            convert(arguments.source, arguments.destination)
        case "consolidate":
            consolidate(arguments.source, arguments.destination, arguments.max_shard_size)
        case "torch-save":
            save_from_dcp(arguments.source, arguments.base, arguments.destination, arguments.max_shard_size)
        case "merge":
            merge_and_save(arguments.source, arguments.adapter, arguments.destination, arguments.max_shard_size)
        case "headers":
            print(len(read_headers(arguments.source)))
        case "upload":
            upload(arguments.source, str(arguments.destination))
        case "download":
            download(str(arguments.source), arguments.destination)


if __name__ == "__main__":
    main()
