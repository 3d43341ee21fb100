"""Tensors are chosen, left out, renamed and filled in by name, and every byte of them is one that was there."""

import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import torch

from sharding import job
from sharding.core.errors import ShardingError, SourceError
from tests.commands import invoke
from tests.folders import tensors
from tests.planning.alike.models import Tensors, build, configure, edit, published, shard, unlike
from tests.quantized import save_fp8

Folders = tuple[Path, Path]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """A model, and one with more tensors than it, all of other numbers."""
    folder = tmp_path_factory.mktemp("selected")
    mine, source = published(build("gemma3", 1), folder / "mine"), published(build("gemma3"), folder / "source")
    edit(source, lambda state: state | {f"mtp.{n}.weight": torch.randn(3, 4).bfloat16() for n in range(3)})
    return mine, source


def expected(
    state: Tensors, only: list[str], drop: list[str], renames: list[tuple[str, str]], fill: list[str], source: Tensors
) -> Tensors:
    """What is asked for, plainly: only, then drop, then rename; what is then missing comes from elsewhere."""
    kept = [name for name in state if not only or any(fnmatchcase(name, glob) for glob in only)]
    kept = [name for name in kept if not any(fnmatchcase(name, glob) for glob in drop)]
    made = {}
    for name in kept:
        old, new = next((pair for pair in renames if name.startswith(pair[0])), ("", ""))
        made[new + name.removeprefix(old)] = state[name]
    return {name: source[name] for name in source if any(fnmatchcase(name, glob) for glob in fill)} | made


TEXT, TOWER = "language_model.*", "vision_tower.*"
CHOICES: dict[str, dict[str, list[Any]]] = {
    "only": {"only": [TEXT]},
    "two of them": {"only": [TEXT, "multi_modal_projector.*"]},
    "drop": {"drop": [TOWER]},
    "only, then drop": {"only": [TEXT], "drop": ["*.layers.1.*", "*norm*"]},
    "a star crosses dots, a set does not": {"drop": ["*layers.[1-9].*"]},
    "rename": {"renames": [("language_model.", "text.")]},
    "the first that fits": {"renames": [("language_model.model.", "a."), ("language_model.", "b.")]},
    "a prefix taken off": {"only": [TEXT], "renames": [("language_model.", "")]},
    "fill": {"fill": ["mtp.*"]},
    "mine wins": {"fill": ["*"]},
    "fill what was dropped": {"drop": [TOWER], "fill": [TOWER]},
    "all at once": {
        "only": [TEXT, TOWER], "drop": ["*.layers.0.*"], "renames": [("language_model.", "lm.")], "fill": ["mtp.[01].*"],
    },
}  # fmt: skip


@pytest.mark.parametrize("case", CHOICES)
def test_only_then_drop_then_rename_and_what_is_missing_comes_from_elsewhere(
    case: str, pair: Folders, tmp_path: Path
) -> None:
    mine, source = pair
    asked = {"only": [], "drop": [], "renames": [], "fill": [], **CHOICES[case]}
    choices: dict[str, Any] = {key: ",".join(asked[key]) for key in ("only", "drop", "fill") if asked[key]}
    if asked["renames"]:
        choices["rename"] = ",".join(f"{old}={new}" for old, new in asked["renames"])
    if asked["fill"]:
        choices["fill_from"] = source
    report = shard(mine, tmp_path / "out", **choices)
    wanted = expected(tensors(mine), **asked, source=tensors(source))
    assert unlike(tensors(tmp_path / "out"), wanted) == {}
    told = {change.kind: change for change in report.plan.made}
    dropped = sum(int(change.details.get("dropped", "0").split()[0]) for change in told.values())
    filled = told["fill"].changed if "fill" in told else 0
    assert len(wanted) == len(tensors(mine)) - dropped + filled and ("only" in told) is bool(asked["only"])
    counts = {kind: int(change.done.split()[1]) for kind, change in told.items()}
    assert counts.get("only", 0) + counts.get("drop", 0) == dropped and counts.get("fill", 0) == filled
    assert counts.get("rename", 0) == len(wanted.keys() - tensors(source).keys())
    *_, verified = job.verify(str(mine), str(tmp_path / "out"), **{k: str(v) for k, v in choices.items()})
    assert verified.verification.identical  # type: ignore[union-attr]


def test_on_the_command_line_each_list_may_be_repeated(pair: Folders, tmp_path: Path) -> None:
    lists = ["--only", TEXT, "--only", TOWER, "--drop", "*norm*", "--drop", "*.layers.0.*"]
    lists += ["--rename", "language_model.=a.", "--rename", "vision_tower.=b."]
    done = invoke(
        "shard", pair[0], tmp_path / "out", *lists, "--fill", "mtp.0.*", "--fill", "mtp.1.*", "--from", pair[1]
    )
    assert done.exit_code == 0, done.output
    renames = [("language_model.", "a."), ("vision_tower.", "b.")]
    globs = [TEXT, TOWER], ["*norm*", "*.layers.0.*"], renames, ["mtp.0.*", "mtp.1.*"]
    assert unlike(tensors(tmp_path / "out"), expected(tensors(pair[0]), *globs, tensors(pair[1]))) == {}


REFUSED: dict[str, dict[str, str]] = {
    "only finds nothing": {"only": "nowhere.*"},
    "one of them finds nothing": {"only": f"{TEXT},nowhere.*"},
    "drop finds nothing": {"drop": "nowhere.*"},
    "another case": {"drop": "Vision_tower.*"},
    "rename finds nothing": {"rename": "nowhere.=a."},
    "fill finds nothing": {"fill": "nowhere.*", "fill_from": ""},
    "nothing is left": {"drop": "*"},
    "two with one name": {"rename": "language_model.model.layers.0=language_model.model.layers.1"},
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_finds_nothing_or_gives_nothing_is_refused(case: str, pair: Folders, tmp_path: Path) -> None:
    choices: dict[str, Any] = dict(REFUSED[case])
    if "fill_from" in choices:
        choices["fill_from"] = pair[1]
    with pytest.raises(ShardingError) as refusal:
        shard(pair[0], tmp_path / "out", **choices)
    said = f"{refusal.value.message} {refusal.value.hint}"
    assert "nowhere" in said or "nowhere" not in str(choices)
    assert not (tmp_path / "out").exists()


def test_what_is_filled_fits_or_is_refused_together(pair: Folders, tmp_path: Path) -> None:
    """Weights in FP8 without their scales mean nothing under a configuration that knows of neither."""
    source = save_fp8("qwen3", tmp_path / "fp8")
    with pytest.raises(SourceError, match="quantized|scale"):
        shard(pair[0], tmp_path / "out", fill="model.layers.0.self_attn.q_proj.weight", fill_from=source)


@pytest.mark.parametrize("asked", ["experts", "text_only", "fill"])
def test_quantized_weights_keep_their_form(asked: str, pair: Folders, tmp_path: Path) -> None:
    """Scales would stay behind, or config.json would call ordinary weights quantized."""
    source = save_fp8("deepseek_v3", tmp_path / "fp8")
    config = configure(source)
    if asked == "text_only":
        of_all = ("architectures", "quantization_config")
        text = {key: value for key, value in config.items() if key not in of_all}
        (source / "config.json").write_text(json.dumps({**{key: config[key] for key in of_all}, "text_config": text}))
    choices = {"experts": {"experts": "fused"}, "fill": {"fill": "mtp.*", "fill_from": pair[1]}}
    with pytest.raises(SourceError, match="These weights are quantized"):
        shard(source, tmp_path / "out", "9MB", **choices.get(asked, {"text_only": True}))
