"""Write the code that loads a checkpoint with its library. Pure."""

import re
import shlex
from collections.abc import Mapping

from sharding.core.hints import PipelineCut
from sharding.core.options import Request
from sharding.core.values import Library
from sharding.formats.gguf import parts_of, tag_of
from sharding.formats.names import SAFETENSORS
from sharding.report.report import decided_by
from sharding.report.schema import Report

COLAB = "Colab cell"  # The name of the code for a notebook.
_KNOWN_ADAPTERS = ("pytorch_lora_weights", "learned_embeds")  # Names that diffusers looks for if you give none.
_CLASS = re.compile(r"[A-Za-z_]\w{0,100}", re.ASCII)
_AUTO = {
    "ForCausalLM": "AutoModelForCausalLM",
    "LMHeadModel": "AutoModelForCausalLM",
    "ForSequenceClassification": "AutoModelForSequenceClassification",
    "ForMaskedLM": "AutoModelForMaskedLM",
}
_WRITES = re.compile(r"(ForCausalLM|LMHeadModel|(T5|Bart|Pegasus)ForConditionalGeneration)$")  # Of models that write.
_SENTENCE = """\
words = tokenizer("Once upon a time", return_tensors="pt").input_ids.to(model.device)
print(tokenizer.decode(model.generate(words, max_new_tokens=40)[0], skip_special_tokens=True))
"""
_COUNT = 'f"{model.num_parameters():,} parameters on {model.device}"\n'
_PLACES = {
    "UNet": "diffusion_models",
    "Transformer2DModel": "diffusion_models",
    "Autoencoder": "vae",
    "ControlNet": "controlnet",
    "CLIPVision": "clip_vision",
    "CLIPText": "text_encoders",
    "T5Encoder": "text_encoders",
}
"""Parts of names of classes, and the folder in which ComfyUI looks for their weights, below `models`."""


def loading_code(place: str, library: Library, architecture: str | None, variant: str = "", base: str = "model") -> str:
    """Return code that loads the model at `place`. `base` is the name of its weight files, without number and ending.

    >>> print(loading_code("me/small", "diffusers", "StableDiffusionPipeline", "fp16"))
    from diffusers import DiffusionPipeline
    <BLANKLINE>
    pipeline = DiffusionPipeline.from_pretrained('me/small', variant='fp16')
    """
    named = architecture if architecture and _CLASS.fullmatch(architecture) else None
    with_variant = f", variant={variant!r}" if variant else ""
    match library:
        case "transformers":
            model = named or "AutoModel"
            call = f'model = {model}.from_pretrained({place!r}{with_variant}, dtype="auto")'
        case "diffusers" if named is None and base not in ("model", "diffusion_pytorch_model"):
            return _adapter_code(place, base)
        case "diffusers":
            model = named if named and not named.endswith("Pipeline") else "DiffusionPipeline"
            result = "pipeline" if model == "DiffusionPipeline" else "model"
            call = f"{result} = {model}.from_pretrained({place!r}{with_variant})"
        case "sentence-transformers":
            model = "SentenceTransformer"
            call = f"model = SentenceTransformer({place!r})"
        case "peft":
            model = named if named and named.startswith("AutoPeftModel") else "AutoPeftModel"
            call = f"model = {model}.from_pretrained({place!r})"
        case _:
            return _other_code(place, library, base, variant)
    return f"from {library.replace('-', '_')} import {model}\n\n{call}"


def _adapter_code(place: str, base: str) -> str:
    method = "load_textual_inversion" if base == "learned_embeds" else "load_lora_weights"
    name = other = ""
    if base not in _KNOWN_ADAPTERS:
        name = f", weight_name={base + SAFETENSORS!r}"
        other = "\n# For a whole model, use from_single_file of its pipeline's class instead."
    return f"""\
from diffusers import DiffusionPipeline

# the model that these weights were trained for
pipeline = DiffusionPipeline.from_pretrained("owner/base-model")
pipeline.{method}({place!r}{name}){other}"""


def _other_code(place: str, library: Library, base: str, variant: str) -> str:
    """Return code that loads the model at `place` with any other library, or only its weights if none is known."""
    is_folder = place.startswith((".", "/", "~"))
    at = f"{'local-dir' if is_folder else 'hf-hub'}:{place}"
    folder = repr(place) if is_folder else f"snapshot_download({place!r})"
    load = "" if is_folder else "from huggingface_hub import snapshot_download\n"
    files = f"{base}{'.' if variant else ''}{variant}*{SAFETENSORS}"
    first = "# MyModel is the class of the model: class MyModel(torch.nn.Module, PyTorchModelHubMixin)\n"
    codes: dict[Library, str] = {
        "timm": f"import timm\n\nmodel = timm.create_model({at!r}, pretrained=True)",
        "open_clip": f"import open_clip\n\nmodel, _, preprocess = open_clip.create_model_and_transforms({at!r})",
        "spacy": f"{load}import spacy\n\nnlp = spacy.load({folder})",
        "pytorch_model_hub_mixin": f"{first}model = MyModel.from_pretrained({place!r})",
    }
    usual = f"from pathlib import Path\n\n{load}from safetensors.torch import load_file\n\nweights = {{}}\n"
    return codes.get(library, f"{usual}for file in Path({folder}).glob({files!r}):\n    weights |= load_file(file)")


def loading_snippets(
    repo_id: str, architecture: str | None, library: Library = "transformers", variant: str = "", base: str = "model"
) -> Mapping[str, str]:
    """Return code that loads the model in `repo_id` onto any devices there are, by the name of the tool.

    >>> print(loading_snippets("me/small", "LlamaForCausalLM")["transformers"].splitlines()[0])
    from transformers import AutoModelForCausalLM, AutoTokenizer
    """
    if library != "transformers" or variant:
        return {library: loading_code(repo_id, library, architecture, variant, base) + "\n"}
    model = _class_of(architecture)
    load = f"""\
from transformers import {", ".join(sorted({model, "AutoTokenizer"}))}

model = {model}.from_pretrained({repo_id!r}, dtype="auto", device_map="auto")
tokenizer = AutoTokenizer.from_pretrained({repo_id!r})
"""
    empty = f"{model}(config).to(config.dtype)"
    if model.startswith("Auto"):
        empty = f"{model}.from_config(config, dtype=config.dtype)"
    dispatch = f"""\
from accelerate import init_empty_weights, load_checkpoint_and_dispatch
from huggingface_hub import snapshot_download
from transformers import {", ".join(sorted({model, "AutoConfig"}))}

folder = snapshot_download({repo_id!r})
config = AutoConfig.from_pretrained(folder)
with init_empty_weights():
    model = {empty}
model.tie_weights()
model = load_checkpoint_and_dispatch(model, folder, device_map="auto")
"""
    last = _SENTENCE if writes(architecture) else _COUNT
    cell = f"!pip install -qU transformers accelerate\n{load}{last}"
    return {"transformers": load, "accelerate": dispatch, COLAB: cell}


def gguf_snippets(report: Report, place: str) -> Mapping[str, str]:
    """Return the commands that load the GGUF models at `place`, by tool; none for other formats. ollama pulls a model
    from a repo only if it is one file, and reads no revision."""
    if report.source.library != "llama.cpp":
        return {}
    is_folder = place.startswith((".", "/", "~"))
    repo, lines = place.partition("@")[0], dict[str, list[str]]()
    for shard in report.plan.shards:
        name, number, count = parts_of(shard.file) or (shard.file, 1, 1)
        at = f"{repo}:{tag_of(name)}".removesuffix(":")
        if number == 1:
            serve = f"-m {shlex.quote(f'{place}/{shard.file}')}" if is_folder else f"-hf {shlex.quote(at)}"
            lines.setdefault("llama.cpp", []).append(f"llama-server {serve}\n")
            if count == 1 and not is_folder:
                lines.setdefault("ollama", []).append(f"ollama pull {shlex.quote(f'hf.co/{at}')}\n")
    return {tool: "".join(commands) for tool, commands in sorted(lines.items(), reverse=True)}


def writes(architecture: str | None) -> bool:
    """Return whether a model of the class `architecture` continues a text."""
    return bool(_WRITES.search(architecture or ""))


def pipeline_snippets(report: Report, place: str) -> Mapping[str, str]:
    """Return the script and the commands that run the model at `place` as a pipeline. Empty if it is cut otherwise."""
    if not (cut := report.plan.pipeline):
        return {}
    return {"pipeline.py": _script(report, cut, place), "on each machine": _commands(report, len(cut.layers), place)}


def _script(report: Report, cut: PipelineCut, place: str) -> str:
    ranks, layers = len(cut.layers), [tuple(part) for part in cut.layers]
    model = _class_of(report.source.architecture)
    part = report.source.variant
    variant = f"variant={part!r}, " if part else ""
    if report.plan.rank is None:
        variant = "variant=" + (f"{part + '-'!r} + " if part else "") + f"f\"rank{{os.environ['RANK']}}-of-{ranks}\", "
    return f"""\
import os

import torch.distributed
from transformers import {", ".join(sorted({model, "AutoTokenizer"}))}
from transformers.distributed import DistributedConfig
from transformers.distributed.pipeline_parallel import PipelineStage

stage = PipelineStage.__new__(PipelineStage)
stage.pp_size = {ranks}
if [stage.layer_range_for_rank(rank, {layers[-1][1]}) for rank in range({ranks})] != {layers}:
    raise SystemExit("These files are for transformers {cut.transformers}. This version cuts elsewhere.")
pipeline = DistributedConfig(pp_size={ranks})
model = {model}.from_pretrained({place!r}, {variant}dtype="auto", distributed_config=pipeline)
tokenizer = AutoTokenizer.from_pretrained({place!r})
tokens = model.generate(**tokenizer("Hello", return_tensors="pt"), max_new_tokens=20, do_sample=False)
print(tokenizer.decode(tokens[0]))
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""


def _commands(report: Report, ranks: int, place: str) -> str:
    start = f"torchrun --nnodes {ranks} --nproc-per-node 1 --node-rank RANK --master-addr FIRST_MACHINE"
    start += " --master-port 29500 pipeline.py\n"
    if report.plan.rank is not None or not report.destination.is_pinned:
        return start
    first = report.plan.stages[0]
    files = dict.fromkeys(("*.json", "token*", *first.files, *(tied.file for tied in first.also_needs)))
    include = " ".join(f"--include {shlex.quote(file)}" for file in files)
    return (
        "# pipeline.py downloads the files of its own rank. To get them before, run one of these (here for rank 0):\n"
        f"shard-my-repo shard {place} ./part --strategy pp:{ranks} --rank 0\n"
        f"hf download {place} {include}\n\n{start}"
    )


def download_snippet(report: Report, place: str) -> Mapping[str, str]:
    """Return the command that downloads the result at `place`, and for one file the folder in which ComfyUI looks."""
    repo, _, revision = place.partition("@")
    name = repo.rpartition("/")[2]
    at = f" --revision {shlex.quote(revision)}" if revision else ""
    whole = f"hf download {shlex.quote(repo)}{at} --local-dir {shlex.quote(name)}\n"
    if len(report.plan.shards) > 1:
        return {"download": whole}
    (shard,) = report.plan.shards
    file = f"hf download {shlex.quote(repo)} {shlex.quote(shard.file)}{at} --local-dir"
    known = [folder for part, folder in _PLACES.items() if part in (report.source.architecture or "")]
    single = [f"# ComfyUI looks for it here:\n{file} ComfyUI/models/{known[0]}"] if known else []
    single += [f"# The weights alone, for tools that take the path of one file:\n{file} {shlex.quote(name)}"]
    return {"download": "\n\n".join([f"# The whole repo:\n{whole.rstrip()}", *single]) + "\n"}


def how_to_check(report: Report, place: str) -> Mapping[str, str]:
    """Return the command that compares the result at `place` with its source. Empty if nobody else can."""
    if report.needs_folder or report.plan.rank is not None:
        return {}
    source, options = decided_by(report)
    words = ["shard-my-repo", "verify", source, place, *Request(source, place, options).words("verify")]
    return {"check every byte": shlex.join(words) + "\n"}


def _class_of(architecture: str | None) -> str:
    """Return the class to load with: an Auto class if there is one, else `architecture` itself."""
    if architecture is None or not re.fullmatch(r"[A-Z][A-Za-z0-9]{2,80}", architecture):
        return "AutoModel"
    return next((auto for task, auto in _AUTO.items() if architecture.endswith(task)), architecture)
