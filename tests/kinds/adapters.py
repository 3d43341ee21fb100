"""What peft loads: adapters alone, in folders of their own, and beside the model that they are for."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests import models
from tests.kinds.kind import Kind, State

ADAPTER, CONFIG = "adapter_model.safetensors", "adapter_config.json"
INDEX = "model.safetensors.index.json"
RANK, LAYERS = 16, 4
TARGETS = {"q_proj": (32, 32), "v_proj": (32, 32)}
BASE = "acme/tiny-llama"
PLACE = "speech-lora"


def _base() -> Any:
    return models.build("llama", torch.float32, layers=LAYERS)


def save_base(folder: Path) -> None:
    """Save the model that the adapters are for, in one file."""
    _base().save_pretrained(folder)


def _adapted(*names: str) -> Any:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=RANK,
        target_modules=list(TARGETS),
        base_model_name_or_path=BASE,
        task_type="CAUSAL_LM",
        init_lora_weights=False,  # else half of them are zero
    )
    base = _base()
    base.name_or_path = BASE
    model = get_peft_model(base, config, adapter_name=names[0])
    for name in names[1:]:
        model.add_adapter(name, config)
    return model


def save(folder: Path) -> None:
    _adapted("default").save_pretrained(folder)


def save_several(folder: Path) -> None:
    """Save adapters of two names: peft gives each a folder."""
    _adapted("query", "document").save_pretrained(folder)


def save_beside(folder: Path, place: str = "") -> None:
    """Save a model and an adapter in one repo, the latter at `place`."""
    save_base(folder)
    _adapted("default").save_pretrained(folder / place)


def write(folder: Path, seed: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    weights = {}
    for layer in range(LAYERS):
        for name, (rows, columns) in TARGETS.items():
            place = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{place}.lora_A.weight"] = torch.randn(RANK, columns)
            weights[f"{place}.lora_B.weight"] = torch.randn(rows, RANK)
    save_file(weights, folder / ADAPTER, metadata={"format": "pt"})
    config = {"peft_type": "LORA", "base_model_name_or_path": BASE, "r": RANK, "target_modules": list(TARGETS)}
    (folder / CONFIG).write_text(json.dumps(config))
    (folder / "README.md").write_text(f"---\nbase_model: {BASE}\nlibrary_name: peft\n---\n")


def write_several(folder: Path, *places: str) -> None:
    """Write adapters at `places`, and the card that peft writes above them."""
    for seed, place in enumerate(places):
        write(folder / place, seed)
        (folder / place / "README.md").unlink()
    (folder / "README.md").write_text(f"---\nbase_model: {BASE}\nlibrary_name: peft\n---\n")


def write_beside(folder: Path, place: str = "") -> None:
    """Write a model and an adapter in one repo, the latter at `place`."""
    save_base(folder)
    write(folder / place)


def _loaded(folder: Path, *places: str) -> State:
    """Return the weights of a model, into which peft has put the adapters at `places`."""
    from peft import PeftModel

    first, *others = places or ("",)
    model = PeftModel.from_pretrained(_base(), folder, adapter_name=first or "root", subfolder=first or None)
    for place in others:
        model.load_adapter(folder, adapter_name=place, subfolder=place)
    return model.state_dict()  # type: ignore[no-any-return]


def _complete(folder: Path) -> State:
    """Return the weights of a model that is loaded with the adapter in its folder, as transformers does with peft."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder).state_dict()  # type: ignore[no-any-return]


def _with_adapter(folder: Path) -> State:
    """Return the weights of a model to which transformers has added the adapter at `PLACE`."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    model.load_adapter(str(folder), adapter_kwargs={"subfolder": PLACE})
    return model.state_dict()  # type: ignore[no-any-return]


_PEFT = partial(Kind, library="peft")

KINDS = {
    "PEFT adapter": _PEFT(save, _loaded, write=write, whole=(ADAPTER,), finding="kept-whole"),
    "PEFT adapter, several in folders": _PEFT(
        save_several,
        lambda folder: _loaded(folder, "query", "document"),
        write=lambda folder: write_several(folder, "query", "document"),
        whole=(f"query/{ADAPTER}", f"document/{ADAPTER}"),
        finding="kept-whole",
    ),
    "PEFT adapter beside a model": _PEFT(
        save_beside, _complete, write=write_beside, whole=(ADAPTER,), finding="kept-whole", cut=(INDEX,)
    ),
    "adapter in a folder beside a model": _PEFT(
        partial(save_beside, place=PLACE),
        _with_adapter,
        write=partial(write_beside, place=PLACE),
        whole=(f"{PLACE}/{ADAPTER}",),
        cut=(INDEX,),
    ),
}
