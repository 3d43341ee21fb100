"""A merge is a job like any other: proved, reported, resumed, kept private, and done on several machines."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from sharding import job
from sharding.cli.commands import app
from sharding.core.errors import DestinationError, SourceError, UsageError
from sharding.core.events import ShardFinished
from sharding.core.options import Options, Request
from sharding.core.verification import Verification
from sharding.planning.plan import identify_plan
from sharding.recipes import product
from tests.folders import finish, tensors
from tests.hubs import TOKEN, download, files_of, push, shard
from tests.localhub.conftest import Server
from tests.lora import WEIGHTS, Case, Tensors, edited, save_adapter, save_base
from tests.promises import promise

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")

NUMBERS = count(1)
Folders = tuple[Path, Path]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """A base and its adapter."""
    place = tmp_path_factory.mktemp("merge")
    base = save_base(Case(), place / "base")
    (base / "README.md").write_text(
        "---\nlicense: mit\nbase_model: someone/else\nbase_model_relation: quantized\n---\n"
    )
    return base, save_adapter(Case(), base, place / "adapter")


@pytest.fixture(scope="module")
def hub(served: Callable[..., Server]) -> Server:
    return served("--user", "alice")


@pytest.fixture
def repos(hub: Server, folders: Folders) -> tuple[str, str]:
    """The same on a Hub, the adapter in a folder of its repo."""
    base, adapter = folders
    number = next(NUMBERS)
    push(hub, base, f"alice/base-{number}")
    lora = f"alice/lora-{number}"
    hub.api().create_repo(lora)
    hub.api().upload_folder(repo_id=lora, folder_path=adapter, path_in_repo="small")
    return f"alice/base-{number}", f"{lora}/small"


@pytest.fixture
def other_order(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Another machine: sums are added up from the last product to the first."""
    usual = product._best()

    def backwards(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        result: np.ndarray = usual(np.ascontiguousarray(first[:, ::-1]), np.ascontiguousarray(second[::-1]))
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(product, "_best", lambda: backwards)
        yield patch


def merge(base: Path, adapter: Path, out: Path, **more: object) -> dict[str, bytes]:
    finish(job.shard(str(base), str(out), Options("30kB", adapter=str(adapter)), **more))  # type: ignore[arg-type]
    return {path.name: path.read_bytes() for path in out.glob("*.safetensors")}


def verified(base: Path | str, copy: Path | str, **more: object) -> Verification:
    *_, last = job.verify(str(base), str(copy), **more)  # type: ignore[arg-type]
    return last.verification  # type: ignore[union-attr]


def test_a_merge_from_hub_to_hub_says_what_it_was_made_of(
    hub: Server, repos: tuple[str, str], folders: Folders, tmp_path: Path
) -> None:
    base, adapter = repos
    target = f"alice/merged-{next(NUMBERS)}"
    report = shard(hub, base, target, Options("30kB", adapter=adapter))
    commits = [hub.api().repo_info(name).sha for name in (base, adapter.rpartition("/")[0])]
    made = report.plan.merged
    assert report.source.revision == commits[0] and made is not None
    assert (made.adapter.repo_id, made.adapter.revision) == (adapter.rpartition("/")[0], commits[1])
    assert made.file == f"small/{WEIGHTS}"
    assert made.sha256 == hashlib.sha256((folders[1] / WEIGHTS).read_bytes()).hexdigest()
    assert (made.changed, made.tensors) == (14, 29)
    assert report.verification.identical and report.verification.merged == made
    assert "the hash that the Hub states" in report.verification.method
    result = download(hub, target, tmp_path / "result")
    assert merge(*folders, tmp_path / "here") == {path.name: path.read_bytes() for path in result.glob("*.safetensors")}
    digests = json.loads((result / "sharding_digests.json").read_text())
    assert len(digests["made"]) == 14
    assert all(f"small/{WEIGHTS}" in sentence for sentence in digests["made"].values())
    card = (result / "README.md").read_text()
    metadata = yaml.safe_load(card.split("---")[1])
    assert (metadata["base_model"], metadata["base_model_relation"]) == (base, "finetune")
    assert all(commit[:12] in card for commit in commits) and made.sha256 in card
    assert not [file for file in files_of(hub, target) if "adapter" in file]


def test_its_card_tells_how_to_check_it_and_that_command_finds_it_equal(hub: Server, repos: tuple[str, str]) -> None:
    base, adapter = repos
    target = f"alice/merged-{next(NUMBERS)}"
    report = shard(hub, base, target, Options("30kB", adapter=adapter))
    made = report.plan.merged
    assert made is not None
    outcome = verified(f"{base}@{report.source.revision}", target, adapter=made.path, endpoint=hub.address, token=TOKEN)
    assert outcome.identical and outcome.merged == made and not outcome.within


def test_a_merge_on_another_machine_is_within_the_tolerance_and_never_called_identical(
    folders: Folders, tmp_path: Path, other_order: pytest.MonkeyPatch
) -> None:
    base = save_base(Case(dtype="fp32"), tmp_path / "base")
    adapter = save_adapter(Case(dtype="fp32"), base, tmp_path / "adapter")
    # As large as those of a usual adapter: a hundredth of the weights.
    edited(lambda held: {name: tensor * 0.1 for name, tensor in held.items()})(adapter)
    merge(base, adapter, tmp_path / "out")
    other_order.undo()
    outcome = verified(base, tmp_path / "out", adapter=str(adapter))
    assert outcome.within > 0 and outcome.holds and not outcome.identical
    told = f"bit-equal tensors: {29 - outcome.within}, within the tolerance of a merge: {outcome.within}"
    assert told in outcome.method


def test_an_honest_merge_in_fp32_whose_change_is_larger_than_the_weights_is_never_called_wrong(
    tmp_path: Path, other_order: pytest.MonkeyPatch
) -> None:
    base = save_base(Case(dtype="fp32"), tmp_path / "base")
    adapter = save_adapter(Case(dtype="fp32"), base, tmp_path / "adapter")
    merge(base, adapter, tmp_path / "out")
    other_order.undo()
    outcome = verified(base, tmp_path / "out", adapter=str(adapter))
    assert not outcome.mismatches and outcome.undecided and not outcome.holds


@pytest.mark.parametrize("name", ["model.layers.0.mlp.up_proj.weight", "model.norm.weight"])
def test_a_number_beyond_the_tolerance_is_a_difference(name: str, folders: Folders, tmp_path: Path) -> None:
    base, adapter = folders
    finish(job.shard(str(base), str(tmp_path / "out"), Options("1GB", adapter=str(adapter))))
    spoil(tmp_path / "out", name)
    outcome = verified(base, tmp_path / "out", adapter=str(adapter))
    assert [mismatch.tensor for mismatch in outcome.mismatches] == [name] and not outcome.holds


def spoil(folder: Path, name: str) -> None:
    """Add an eighth to one number of a tensor."""

    def change(held: dict[str, object]) -> dict[str, object]:
        tensor = held[name].clone()  # type: ignore[attr-defined]
        tensor.view(-1)[0] += 0.125
        return {**held, name: tensor}

    edited(change, "model.safetensors")(folder)  # type: ignore[arg-type]


@promise("docs/security.md#make-what-cannot-be-told-look")
@pytest.mark.parametrize(
    ("size", "sign", "gives"), [(1e4, -1, "sums"), (1e25, -1, "no numbers"), (1e25, 1, "infinities")]
)
def test_an_adapter_whose_terms_cancel_or_overflow_does_not_widen_the_tolerance(
    size: float, sign: int, gives: str, tmp_path: Path
) -> None:
    base = save_base(Case(dtype="bf16"), tmp_path / "base")
    adapter = save_adapter(Case(dtype="bf16"), base, tmp_path / "adapter")
    query = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"

    def widen(held: Tensors) -> Tensors:
        for name, signs in ((query.format("A"), (1, 1)), (query.format("B"), (1, sign))):
            held[name].zero_()
            rows = held[name] if "lora_A" in name else held[name].T
            rows[0], rows[1] = size * signs[0], size * signs[1]
        return held

    edited(widen)(adapter)
    options = Options("1GB", adapter=str(adapter), allow_overflow=True)
    report = finish(job.shard(str(base), str(tmp_path / "out"), options))
    name = "model.layers.0.self_attn.q_proj.weight"
    made = tensors(tmp_path / "out")[name]
    assert made.isfinite().all() if gives == "sums" else made.isnan().any() == (gives == "no numbers")
    assert made.isinf().any() == (gives == "infinities")
    edited(lambda held: {**held, name: held[name].new_ones(held[name].shape)}, "model.safetensors")(tmp_path / "out")
    outcome = verified(base, tmp_path / "out", adapter=str(adapter))
    if gives == "sums":  # and the merge has said so
        assert (outcome.mismatches, outcome.undecided) == ((), 1) and outcome.is_undecided
        assert [name in one.message for one in report.plan.findings if one.code == "cannot-be-judged"] == [True]
    else:
        assert [mismatch.tensor for mismatch in outcome.mismatches] == [name] and not outcome.undecided
    assert not outcome.holds and not outcome.identical
    said = CliRunner().invoke(app, ["verify", str(base), str(tmp_path / "out"), "--adapter", str(adapter)])
    told = " ".join(said.output.split())
    assert said.exit_code == 1 and ("It cannot be told whether 1 merged tensor is right" in told) == (gives == "sums")
    assert ("Different:" in told) == (gives != "sums") and "Identical" not in told


def test_a_copy_of_the_base_is_not_the_merged_model(folders: Folders) -> None:
    base, adapter = folders
    outcome = verified(base, base, adapter=str(adapter))
    assert len(outcome.mismatches) == 14 and not outcome.holds


def test_a_killed_merge_goes_on_where_it_was(folders: Folders, tmp_path: Path) -> None:
    base, adapter = folders
    whole = merge(base, adapter, tmp_path / "whole")
    events = job.shard(str(base), str(tmp_path / "out"), Options("30kB", adapter=str(adapter)))
    for event in events:
        if isinstance(event, ShardFinished):
            break
    events.close()
    again = list(job.shard(str(base), str(tmp_path / "out"), Options("30kB", adapter=str(adapter))))
    assert any(isinstance(event, ShardFinished) and event.kept for event in again)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*.safetensors")} == whole


def test_another_adapter_under_the_same_name_is_noticed_when_a_merge_goes_on(folders: Folders, tmp_path: Path) -> None:
    base, adapter = folders[0], Path(shutil.copytree(folders[1], tmp_path / "adapter"))
    events = job.shard(str(base), str(tmp_path / "out"), Options("30kB", adapter=str(adapter)))
    for event in events:
        if isinstance(event, ShardFinished):
            break
    events.close()
    stamp = (adapter / WEIGHTS).stat()
    edited(lambda held: {name: tensor * 2 for name, tensor in held.items()})(adapter)
    os.utime(adapter / WEIGHTS, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # same name, size and time
    again = list(job.shard(str(base), str(tmp_path / "out"), Options("30kB", adapter=str(adapter))))
    assert not any(isinstance(event, ShardFinished) and event.kept for event in again)
    ours = {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*.safetensors")}
    assert ours == merge(base, adapter, tmp_path / "fresh")


def test_a_new_commit_of_the_adapter_gives_another_plan(hub: Server, repos: tuple[str, str], folders: Folders) -> None:
    base, adapter = repos
    plans = []
    for _ in range(2):
        _, plan = job.plan(base, Options("30kB", adapter=adapter), endpoint=hub.address, token=TOKEN)
        plans.append(identify_plan(plan))
        weights = edited(lambda held: {name: tensor * 2 for name, tensor in held.items()})
        weights(folders[1])
        hub.api().upload_file(
            path_or_fileobj=folders[1] / WEIGHTS, path_in_repo=f"small/{WEIGHTS}", repo_id=adapter.rpartition("/")[0]
        )
    assert plans[0] != plans[1]


def test_a_merge_with_a_private_adapter_is_private(hub: Server, folders: Folders) -> None:
    base, adapter = (f"alice/{kind}-{next(NUMBERS)}" for kind in ("base", "secret-lora"))
    push(hub, folders[0], base)
    push(hub, folders[1], adapter, private=True)
    target = f"alice/merged-{next(NUMBERS)}"
    with pytest.raises(DestinationError, match=adapter):
        shard(hub, base, target, Options("30kB", adapter=adapter), private=False)
    shard(hub, base, target, Options("30kB", adapter=adapter))
    assert hub.api().repo_info(target).private


def test_an_adapter_beside_the_base_is_not_copied_because_it_would_be_loaded_once_more(
    folders: Folders, tmp_path: Path
) -> None:
    both = Path(shutil.copytree(folders[0], tmp_path / "both"))
    shutil.copytree(folders[1], both, dirs_exist_ok=True)
    report = finish(job.shard(str(both), str(tmp_path / "out"), Options("30kB", adapter=str(folders[1]))))
    assert not list((tmp_path / "out").glob("adapter_*"))
    assert any("adapter_model.safetensors" in finding.message for finding in report.plan.findings)


def test_the_destination_may_not_be_the_folder_of_the_adapter(folders: Folders, tmp_path: Path) -> None:
    adapter = Path(shutil.copytree(folders[1], tmp_path / "adapter"))
    for place in (adapter, adapter / "out", tmp_path):
        with pytest.raises(DestinationError):
            finish(job.shard(str(folders[0]), str(place), Options("30kB", adapter=str(adapter)), overwrite=True))


@pytest.mark.parametrize(
    "others", [{"base": "alice/x"}, {"dequantize": True}, {"engine": "classic"}, {"compare_rounds": 1}]
)
def test_what_does_not_go_with_an_adapter_is_refused_before_anything_is_read(others: dict[str, object]) -> None:
    request = Request.of("nowhere/x", "nowhere/y", {"adapter": "nowhere/z", **others})
    with pytest.raises(UsageError):
        finish(job.run(request))


def test_quick_cannot_judge_a_merge(folders: Folders) -> None:
    with pytest.raises(UsageError):
        verified(folders[0], folders[0], adapter=str(folders[1]), quick=True)


def test_no_repo_of_that_name_is_an_error_that_names_the_adapter(hub: Server, repos: tuple[str, str]) -> None:
    with pytest.raises(SourceError, match="alice/nothing-there"):
        job.plan(repos[0], Options(adapter="alice/nothing-there"), endpoint=hub.address, token=TOKEN)


def test_sums_too_large_for_fp16_stop_a_merge_unless_that_is_allowed(folders: Folders, tmp_path: Path) -> None:
    case = Case(dtype="fp16")
    base = save_base(case, tmp_path / "base")
    adapter = save_adapter(case, base, tmp_path / "adapter")
    edited(lambda held: {name: tensor * 3000 for name, tensor in held.items()})(adapter)
    with pytest.raises(SourceError, match="would make .* finite numbers of .* infinite"):
        merge(base, adapter, tmp_path / "out")
    options = Options("1GB", adapter=str(adapter), allow_overflow=True)
    report = finish(job.shard(str(base), str(tmp_path / "out"), options))
    counted = {name: int(tensor.isinf().sum()) for name, tensor in tensors(tmp_path / "out").items()}
    assert report.overflowed == {name: number for name, number in counted.items() if number}
