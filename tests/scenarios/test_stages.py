"""A forward pass goes through a pipeline from machine to machine, each with the files of its own stage only."""

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from sharding import job
from sharding.cli.terminal import Terminal
from sharding.core.options import Options
from sharding.core.values import Stage
from sharding.desk.forecast import Forecast
from sharding.page import panels
from sharding.page.result_panels import details_panel
from sharding.report.schema import PlanSummary, Report, parse_report
from sharding.verify.trust import Trust
from tests import models
from tests.scenarios import architectures

Held = dict[str, torch.Tensor]


def download(folder: Path, stage: Stage) -> Held:
    """What a machine holds that has loaded the files of its stage, and the tensors that it needs of other stages."""
    held = {name: tensor for file in stage.files for name, tensor in load_file(folder / file).items()}
    for tied in stage.also_needs:
        with safe_open(folder / tied.file, "pt") as file:
            held[tied.tensor] = file.get_tensor(tied.tensor)
    return held


def calls(model: PreTrainedModel) -> list[list[str]]:
    """The parameters of each module itself, by every name that it has, in the order of one forward pass."""
    named: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        named.setdefault(id(parameter), []).append(name)
    called: list[list[str]] = []

    def note(module: torch.nn.Module, _: Any) -> None:
        called.extend(named[id(parameter)] for parameter in module.parameters(recurse=False))

    hooks = [module.register_forward_pre_hook(note) for module in model.modules()]
    architectures.outputs(model)
    for hook in hooks:
        hook.remove()
    return called


def is_held(model: PreTrainedModel, names: list[str], held: Held) -> bool:
    """Whether a parameter with these names can be loaded from what is `held`, by any of them, and is the model's."""
    if set(names) & set(model._keys_to_ignore_on_save or ()):  # computed, and in no file
        return True
    for name in names:
        saved = revert_weight_conversion(model, {name: model.get_parameter(name).data})
        if saved.keys() <= held.keys():
            assert all(torch.equal(held[stored], tensor) for stored, tensor in saved.items())
            return True
    return False


def first_missing(model: PreTrainedModel, machines: list[Held]) -> list[str]:
    """The first parameter that a forward pass needs when no machine has it any more; [] where it goes through.

    A pass begins on the first machine, and goes on to the next, never back, where something is not there.
    """
    at = 0
    for names in calls(model):
        while not is_held(model, names, machines[at]):
            at += 1
            if at == len(machines):
                return names
    return []


def cut(source: Path, out: Path, stages: int) -> PlanSummary:
    """The plan by which `source` was cut into `stages` in `out`."""
    *_, report = job.shard(str(source), str(out), Options("20kB", strategy=f"stages:{stages}"))
    assert isinstance(report, Report) and report.verification.identical
    return report.plan


# Norms and heads, embeddings alone, all of an encoder and a decoder: what the machine of another stage has of the rest.
TIED = {
    "gpt2": [("transformer.wte.weight", ("lm_head.weight",))],
    "gemma2": [("model.embed_tokens.weight", ("lm_head.weight",))],
    "opt": [("model.decoder.embed_tokens.weight", ("lm_head.weight",))],
    "mamba": [("backbone.embeddings.weight", ("lm_head.weight",))],
    "distilbert": [("distilbert.embeddings.word_embeddings.weight", ("vocab_projector.weight",))],
    "electra": [("electra.embeddings.word_embeddings.weight", ("generator_lm_head.weight",))],
    "modernbert": [("model.embeddings.tok_embeddings.weight", ("decoder.weight",))],
    "t5": [("shared.weight", ("decoder.embed_tokens.weight",)), ("shared.weight", ("lm_head.weight",))],
    "bart": [("model.shared.weight", ("model.decoder.embed_tokens.weight",)), ("model.shared.weight", ("lm_head.weight",))],
    "marian": [("model.shared.weight", ("model.decoder.embed_tokens.weight",)), ("model.shared.weight", ("lm_head.weight",))],
    "whisper": [("model.decoder.embed_tokens.weight", ("proj_out.weight",))],
}  # fmt: skip
UNTIED = ("llama", "mixtral", "gpt_neox")


@pytest.mark.parametrize("name", [*TIED, *UNTIED])
def test_a_forward_pass_finds_every_weight_in_the_files_that_a_stage_claims(name: str, tmp_path: Path) -> None:
    model = architectures.build(name)
    model.save_pretrained(tmp_path / "in")
    stages = cut(tmp_path / "in", tmp_path / "out", 3).stages
    assert first_missing(model, [download(tmp_path / "out", stage) for stage in stages]) == []
    assert [(tied.tensor, tied.used_as) for stage in stages for tied in stage.also_needs] == TIED.get(name, [])
    own = [download(tmp_path / "out", replace(stage, also_needs=())) for stage in stages]
    assert first_missing(model, own)[-1:] == [names[0] for _, names in TIED.get(name, [])][-1:]
    assert sum(stage.bytes for stage in stages) == sum(load.nbytes for part in own for load in part.values())


def test_a_head_that_is_stored_beside_the_embeddings_is_in_the_files_of_its_own_stage(tmp_path: Path) -> None:
    """As some save it, although it is tied."""
    model = models.build("llama-tied", layers=3)
    model.save_pretrained(tmp_path / "in")
    file = tmp_path / "in/model.safetensors"
    stored = load_file(file)
    save_file({**stored, "lm_head.weight": stored["model.embed_tokens.weight"].clone()}, file, {"format": "pt"})
    plan = cut(tmp_path / "in", tmp_path / "out", 2)
    assert [stage.also_needs for stage in plan.stages] == [(), ()]
    assert plan.weight_map["lm_head.weight"] in plan.stages[1].files


def test_names_without_the_prefix_of_the_base_model_are_understood(tmp_path: Path) -> None:
    """As the first repos of GPT-2 have them."""
    models.build("gpt2", layers=3).save_pretrained(tmp_path / "in")
    file = tmp_path / "in/model.safetensors"
    save_file({n.removeprefix("transformer."): tensor for n, tensor in load_file(file).items()}, file, {"format": "pt"})
    (needed,) = cut(tmp_path / "in", tmp_path / "out", 2).stages[1].also_needs
    assert (needed.tensor, needed.used_as) == ("wte.weight", ("lm_head.weight",))


def written(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def custom(folder: Path, **config: Any) -> Path:
    """A model with tied embeddings whose class is in no library, as `config` describes it."""
    models.build("llama-tied", layers=3).save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"architectures": ["OwnForCausalLM"], **config}))
    return folder


def test_where_the_class_is_unknown_the_configuration_is_believed_and_that_is_said(tmp_path: Path) -> None:
    plan = cut(custom(tmp_path / "in", tie_word_embeddings=True), tmp_path / "out", 2)
    ((), (needed,)) = [stage.also_needs for stage in plan.stages]
    assert (needed.tensor, needed.used_as) == ("model.embed_tokens.weight", ("lm_head.weight",))
    assert needed.file in plan.stages[0].files
    assert "Only config.json says" in {finding.code: finding.message for finding in plan.findings}["tied-by-config"]


@pytest.mark.parametrize("said", [{}, {"tie_word_embeddings": False}, {"tie_word_embeddings": "true"}])
def test_nothing_is_guessed_where_the_configuration_does_not_say_that_embeddings_are_tied(
    said: dict[str, Any], tmp_path: Path
) -> None:
    plan = cut(custom(tmp_path / "in", **said), tmp_path / "out", 2)
    assert [stage.also_needs for stage in plan.stages] == [(), ()]
    assert "tied-by-config" not in {finding.code for finding in plan.findings}


def test_what_a_stage_also_needs_is_told_wherever_stages_are_shown(tmp_path: Path) -> None:
    models.build("llama-tied", layers=3).save_pretrained(tmp_path / "in")
    plan = cut(tmp_path / "in", tmp_path / "out", 2)
    file = plan.weight_map["model.embed_tokens.weight"]
    expected = {"tensor": "model.embed_tokens.weight", "file": file, "used_as": ["lm_head.weight"]}
    told = (tmp_path / "out/sharding_report.json").read_text()
    assert [stage["also_needs"] for stage in json.loads(told)["plan"]["stages"]] == [[], [expected]]
    card = (tmp_path / "out/README.md").read_text()
    assert f"- Stage 2 needs `{file}` as well: model.embed\\_tokens.weight in it is lm\\_head.weight too." in card
    _, planned = job.plan(str(tmp_path / "in"), Options("20kB", strategy="stages:2"))
    before, after = (
        panels.shards_panel(planned, Forecast(1.0, True, 1, 0, "")),
        details_panel(parse_report(told), "me/copy", None, Trust("claims", ())),
    )
    assert f"and {file}: model.embed_tokens.weight in it is lm_head.weight too" in before
    assert f"and {file}: model.embed_tokens.weight in it is lm_head.weight too" in after
    results = Console(file=StringIO(), width=200)
    Terminal(results, results).plan(planned)
    assert f"Stage 2 needs {file} as well: model.embed_tokens.weight in it is lm_head.weight too." in written(results)
