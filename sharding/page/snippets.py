"""Write the few lines that load a sharded checkpoint. Pure."""

import re
from collections.abc import Mapping

from sharding.loading import loading_code
from sharding.values import Library


def loading_snippets(
    repo_id: str, architecture: str | None, library: Library = "transformers", variant: str = ""
) -> Mapping[str, str]:
    """Return code to copy, by the name of the tool, that loads the model in `repo_id` onto what there is.

    >>> print(loading_snippets("me/small", "LlamaForCausalLM")["transformers"].splitlines()[0])
    from transformers import AutoModelForCausalLM, AutoTokenizer
    """
    if library != "transformers" or variant:
        return {library: loading_code(repo_id, library, architecture, variant) + "\n"}
    model = _class_of(architecture)
    return {
        "transformers": f"""\
from transformers import {", ".join(sorted({model, "AutoTokenizer"}))}

model = {model}.from_pretrained({repo_id!r}, dtype="auto", device_map="auto")
tokenizer = AutoTokenizer.from_pretrained({repo_id!r})
""",
        "accelerate": f"""\
from accelerate import init_empty_weights, load_checkpoint_and_dispatch
from huggingface_hub import snapshot_download
from transformers import {", ".join(sorted({model, "AutoConfig"}))}

folder = snapshot_download({repo_id!r})
config = AutoConfig.from_pretrained(folder)
with init_empty_weights():
    model = {_from_config(model)}
model.tie_weights()
model = load_checkpoint_and_dispatch(model, folder, device_map="auto")
""",
        "Colab cell": f"""\
!pip install -q transformers accelerate
from transformers import {model}

model = {model}.from_pretrained({repo_id!r}, dtype="auto", device_map="auto")
f"{{model.num_parameters():,}} parameters on {{model.device}}"
""",
    }


def _class_of(architecture: str | None) -> str:
    """Return the class to load with: an Auto class where there is one, else the architecture's own."""
    if architecture is None or not re.fullmatch(r"[A-Z][A-Za-z0-9]{2,80}", architecture):
        return "AutoModel"
    for task, auto in _AUTO.items():
        if architecture.endswith(task):
            return auto
    return architecture


def _from_config(model: str) -> str:
    if model.startswith("Auto"):
        return f"{model}.from_config(config, dtype=config.dtype)"
    return f"{model}(config).to(config.dtype)"


_AUTO = {
    "ForCausalLM": "AutoModelForCausalLM",
    "LMHeadModel": "AutoModelForCausalLM",
    "ForSequenceClassification": "AutoModelForSequenceClassification",
    "ForMaskedLM": "AutoModelForMaskedLM",
}
