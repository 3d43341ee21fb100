"""A copy of a `.bin` file loads with the weights of the source, tied or not, as transformers itself loads both."""

import json
from collections.abc import Iterable
from copy import deepcopy
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedModel
from transformers.initialization import meta_device_safe_creation_ops

from sharding import job
from sharding.model_class.class_table import TABLE, tied_names, ties
from tests.folders import reshard, tensors, weights
from tests.lora import Tensors
from tests.model_class import table_maker
from tests.scenarios import architectures
from tests.scenarios.architectures import T5, Architecture

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
KINDS = ["llama", "qwen2", "gpt2", "opt", "bert", "roberta", "t5", "pop2piano", "bart", "marian", "llava"]
POP2PIANO = Architecture("speech", "Pop2PianoForConditionalGeneration", T5)
SAYS_IT = {"false": False, "true": True}


def save(kind: str, says: bool | None, folder: Path) -> type[PreTrainedModel]:
    """Save a model whose output head shares memory with its embeddings, and a config.json that `says` so or not."""
    model = architectures.build(kind, torch.float32, POP2PIANO if kind == "pop2piano" else None)
    embeddings = model.get_input_embeddings().weight
    state = {
        key: embeddings if tensor.shape == embeddings.shape and ("embed" in key or "head" in key) else tensor
        for key, tensor in {**model.state_dict(), "lm_head.weight": embeddings}.items()
        if key != "lm_head.weight" or hasattr(model, "lm_head") and hasattr(model.lm_head, "weight")
    }
    assert len({tensor.data_ptr() for tensor in state.values()}) < len(state)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    for part in (config, config.get("text_config", {})):
        part.pop("tie_word_embeddings", None)
        part |= {} if says is None else {"tie_word_embeddings": says}
    (folder / "config.json").write_text(json.dumps(config))
    torch.save({key: tensor.detach() for key, tensor in state.items()}, folder / "pytorch_model.bin")
    return type(model)


def loaded(cls: type[PreTrainedModel], folder: Path) -> tuple[Tensors, list[str]]:
    model, info = cls.from_pretrained(folder, output_loading_info=True)
    return dict(model.state_dict()), sorted(info["missing_keys"])


@pytest.mark.parametrize(
    ("kind", "says"), [*product(KINDS, ["nothing"]), *product(("llama", "bert", "t5", "marian", "llava"), SAYS_IT)]
)
def test_a_copy_loads_with_every_weight_of_the_source(kind: str, says: str, tmp_path: Path) -> None:
    cls = save(kind, SAYS_IT.get(says), tmp_path / "source")
    reshard(tmp_path / "source", tmp_path / "out", "1GB")
    (theirs, absent), (ours, lacking) = (loaded(cls, tmp_path / folder) for folder in ("source", "out"))
    assert lacking == absent == []
    assert theirs.keys() == ours.keys()
    assert [name for name in theirs if not torch.equal(theirs[name], ours[name])] == []
    # What is not tied, save_pretrained leaves out where it shares memory: its own result then loads at random. The
    # last three have some names of their own there.
    if (says == "true" or kind == "t5") and kind not in ("llava", "marian", "pop2piano"):
        cls.from_pretrained(tmp_path / "source").save_pretrained(tmp_path / "theirs")
        assert weights(tmp_path / "out") == weights(tmp_path / "theirs")


@pytest.mark.parametrize("config", [None, {}, {"model_type": "none-that-is-known"}, [], "text"])
def test_without_a_configuration_that_says_so_every_name_is_written(config: object, tmp_path: Path) -> None:
    one = torch.randn(3, 2)
    torch.save({"model.embed_tokens.weight": one, "lm_head.weight": one}, tmp_path / "pytorch_model.bin")
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    checkpoint = job.inspect(str(tmp_path))
    assert [tensor.name for tensor in checkpoint.tensors] == ["model.embed_tokens.weight", "lm_head.weight"]


def test_what_no_class_ties_again_is_written_under_every_name(tmp_path: Path) -> None:
    """As layers are that share their weights: a class would fill in the second at random."""
    one, head = torch.randn(3, 2), torch.randn(4, 2)
    state = {"layers.0.w1.weight": one, "layers.1.w1.weight": one, "lm_head.weight": head, "wte.weight": head}
    torch.save(state, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    names = [tensor.name for tensor in job.inspect(str(tmp_path)).tensors]
    assert names == ["layers.0.w1.weight", "layers.1.w1.weight", "wte.weight"]


def written(state: Tensors, config: dict[str, Any], folder: Path) -> dict[str, list[float]]:
    """The numbers of every tensor in a copy of a `.bin` file."""
    (folder / "in").mkdir(parents=True)
    torch.save(state, folder / "in/pytorch_model.bin")
    (folder / "in/config.json").write_text(json.dumps(config))
    reshard(folder / "in", folder / "out", "1GB")
    return {name: tensor.flatten().tolist() for name, tensor in tensors(folder / "out").items()}


def test_an_embedding_and_a_head_that_only_lie_in_one_memory_are_each_written(tmp_path: Path) -> None:
    """Other numbers of one storage, the same numbers in another order or shape: none of them is tied."""
    numbers = torch.arange(12.0)
    one = numbers[:4].view(2, 2)
    heads = {
        "lm_head.weight": numbers[4:8].view(2, 2),
        "a.lm_head.weight": one.t(),
        "b.lm_head.weight": numbers[:4].view(4, 1),
        "d.lm_head.weight": numbers[:6].view(2, 3)[:, :2],
    }
    state = {"transformer.wte.weight": one, **heads}
    found = written(state, {"model_type": "gpt2"}, tmp_path)
    assert found == {name: tensor.flatten().tolist() for name, tensor in state.items()}


def test_heads_that_share_their_memory_with_no_embedding_are_each_written(tmp_path: Path) -> None:
    one = torch.arange(4.0).view(2, 2)
    state = {"lm_head.weight": one, "score_head.weight": one, "wte.weight": one.clone(), "proj.weight": one}
    state |= {"layers.0.w1.weight": one, "layers.1.w1.weight": one}
    assert written(state, {"model_type": "gpt2"}, tmp_path) == dict.fromkeys(state, [0, 1, 2, 3])


def test_a_head_that_may_be_tied_is_united_only_where_the_configuration_in_memory_says_so(tmp_path: Path) -> None:
    one = torch.arange(4.0).view(2, 2)
    state = {"model.embed_tokens.weight": one, "lm_head.weight": one}
    cases = [(True, False, 1), (None, True, 1), (False, False, 2), (None, False, 2)]
    for number, (top, part, kept) in enumerate(cases):
        text = {"model_type": "llama", "tie_word_embeddings": part}
        config = {"model_type": "llava", "text_config": text, **({} if top is None else {"tie_word_embeddings": top})}
        assert len(written(state, config, tmp_path / str(number))) == kept


SAYS_SO = {"tie_word_embeddings": True}


@pytest.mark.parametrize(
    ("config", "is_tied"),
    [
        ({"model_type": "llama", **SAYS_SO}, True),
        ({"model_type": "llama"}, False),
        ({"model_type": "bigbird_pegasus", "architectures": ["BigBirdPegasusForConditionalGeneration"]}, True),
        ({"model_type": "llava", "text_config": {"model_type": "llama", **SAYS_SO}, **SAYS_SO}, True),
        # What the class does not tie, whatever its configuration says.
        ({"model_type": "bigbird_pegasus", "architectures": ["BigBirdPegasusForCausalLM"]}, False),
        ({"model_type": "luke", **SAYS_SO}, False),
        ({"model_type": "rembert", **SAYS_SO}, False),
        # What the class ties only in part: of one memory for more than that, the rest would be filled in at random.
        ({"model_type": "pop2piano", **SAYS_SO}, False),
        ({"model_type": "t5gemma", "decoder": {"model_type": "t5_gemma_module", **SAYS_SO}, **SAYS_SO}, False),
        ({"model_type": "blip", "text_config": {"model_type": "blip_text_model", **SAYS_SO}, **SAYS_SO}, False),
        ({"model_type": "blt", **SAYS_SO}, False),
        ({"model_type": "flava", **SAYS_SO}, False),
        ({"model_type": "nemotron_h", **SAYS_SO}, False),
        ({"model_type": "none-that-is-known", **SAYS_SO}, False),
        ({"model_type": "llama", "auto_map": {"AutoModelForCausalLM": "x.Y"}, **SAYS_SO}, False),
        ({"model_type": "vision-encoder-decoder", "decoder": {"model_type": "gpt2"}, **SAYS_SO}, True),
        ({"model_type": "vision-encoder-decoder", "decoder": {"model_type": "luke", **SAYS_SO}, **SAYS_SO}, False),
        ({"model_type": "vision-encoder-decoder", "decoder": {"model_type": "mine", **SAYS_SO}, **SAYS_SO}, False),
    ],
)
def test_only_what_is_known_to_be_tied_again_is_united(config: dict[str, Any], is_tied: bool) -> None:
    assert (ties(config) is True) is is_tied


def by_the_library(name: str, config: dict[str, Any]) -> tuple[bool, str] | None:
    """Whether transformers ties the output head of a class to its input embeddings, and what the head is called.

    None if it does not build the class.
    """
    cls = getattr(transformers, name)
    try:
        with torch.device("meta"), meta_device_safe_creation_ops():
            model = cls._from_config(cls.config_class.from_dict(config))
        model.tie_weights()
        head = model.get_output_embeddings()
        place = next(each for each, module in model.named_modules() if module is head)
        one, weight = model.get_input_embeddings().weight, head.weight
    except Exception:
        return None
    tied = model.get_expanded_tied_weights_keys(all_submodels=True)
    same = [each for each, tensor in model.named_parameters(remove_duplicate=False) if tensor is weight]
    is_tied = f"{place}.weight" in tied and len(same) > 1
    return (is_tied, f"{place}.weight") if is_tied == (one is weight) else None


def configurations(name: str) -> list[dict[str, Any]]:
    """Configurations of a class that say at the top, in `text_config`, in both or nowhere that its head is tied."""
    model = table_maker.built(getattr(transformers, name))
    assert model is not None
    config = json.loads(model.config.to_json_string())
    texts = [None, True, False] if isinstance(config.get("text_config"), dict) else [None]
    found = []
    for top, text in product([None, True, False], texts):
        one = deepcopy(config) | {"architectures": [name]}
        for part, says in ((one, top), (one.get("text_config"), text)):
            if isinstance(part, dict):
                part.pop("tie_word_embeddings", None)
                part |= {} if says is None else {"tie_word_embeddings": says}
        found.append(one)
    return found


def hold_to_the_library(names: Iterable[str]) -> int:
    """Compare what is known of classes with the library; return of how many configurations it was known."""
    known, wrong = 0, []
    for name in names:
        for config in configurations(name):
            answer, truth = ties(config), by_the_library(name, config)
            if answer is None or truth is None:
                continue
            known += 1
            heads = tied_names(config)[:1] if truth[0] else ()
            if answer is not truth[0] or heads not in ((), (truth[1],)):
                parts = (config, config.get("text_config", {}))
                wrong.append((name, [part.get("tie_word_embeddings") for part in parts], answer, heads, truth))
    assert wrong == []
    return known


SAMPLE = (
    "LlamaForCausalLM", "GPT2LMHeadModel", "T5ForConditionalGeneration", "BertForMaskedLM",
    "Gemma3ForConditionalGeneration", "Idefics3ForConditionalGeneration",
)  # fmt: skip


def test_whether_a_head_is_tied_is_as_the_library_says() -> None:
    assert hold_to_the_library(SAMPLE) > 25


@pytest.mark.thorough
def test_whether_any_head_is_tied_is_as_the_library_says() -> None:
    classes = json.loads(TABLE.read_text())["classes"]
    names = [name for name, entry in classes.items() if isinstance(entry, dict) and "ties" in entry]
    assert hold_to_the_library(names) > 600
