"""A merge is a job like any other: proved, reported, and done on several machines."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from sharding import job
from sharding.core.errors import SourceError, UsageError
from sharding.core.options import Options
from sharding.core.origin import Place
from sharding.planning.plan import identify_plan
from sharding.recipes import product
from tests.commands import invoke
from tests.folders import compared, finish, kept, tensors, until_shard, weights
from tests.hubs import TOKEN, download, files_of, push, shard
from tests.inhouse import InHouse
from tests.lora import MODEL, WEIGHTS, Case, Tensors, each_one, edited, save_both
from tests.promises import promise

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")

Folders = tuple[Path, Path]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """A base and its adapter."""
    base, adapter = save_both(Case(), tmp_path_factory.mktemp("merge"))
    said = "---\nlicense: mit\nbase_model: someone/else\nbase_model_relation: quantized\n---\n"
    (base / "README.md").write_text(said)
    return base, adapter


@pytest.fixture
def repos(hub: InHouse, folders: Folders, name: str) -> tuple[str, str]:
    """The same on a Hub, the adapter in a folder of its repo."""
    base, adapter = folders
    hub.api().create_repo(f"{name}-lora")
    hub.api().upload_folder(repo_id=f"{name}-lora", folder_path=adapter, path_in_repo="small")
    return push(hub, base, f"{name}-base"), f"{name}-lora/small"


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


def merge(base: Path, adapter: Path, out: Path) -> dict[str, bytes]:
    finish(job.shard(str(base), str(out), Options("30kB", adapter=str(adapter))))
    return weights(out)


def doubled(_: str, tensor: torch.Tensor) -> torch.Tensor:
    return tensor * 2


def test_a_merge_from_hub_to_hub_says_what_it_was_made_of_and_verify_finds_it_equal(
    hub: InHouse, repos: tuple[str, str], folders: Folders, name: str, tmp_path: Path
) -> None:
    base, adapter = repos
    report = shard(hub, base, name, Options("30kB", adapter=adapter))
    commits = [hub.api().repo_info(name).sha for name in (base, adapter.rpartition("/")[0])]
    (made,) = report.plan.made
    assert report.source.revision == commits[0] and made.by is not None
    assert made.by == Place("hub", adapter.rpartition("/")[0], commits[1] or "", "small/", "adapter")
    sha256 = hashlib.sha256((folders[1] / WEIGHTS).read_bytes()).hexdigest()
    assert (made.changed, made.of, made.evidence) == (14, 29, f"{WEIGHTS} {sha256}")
    assert report.verification.identical and report.verification.made == (made,)
    assert "the hash that the Hub states" in report.verification.method
    result = download(hub, name, tmp_path / "result")
    assert merge(*folders, tmp_path / "here").items() <= weights(result).items()
    digests = json.loads((result / "sharding_digests.json").read_text())
    assert len(digests["made"]) == 14
    assert all(WEIGHTS in sentence for sentence in digests["made"].values())
    card = (result / "README.md").read_text()
    metadata = yaml.safe_load(card.split("---")[1])
    assert (metadata["base_model"], metadata["base_model_relation"]) == (base, "finetune")
    assert all(commit[:12] in card for commit in commits) and sha256 in card
    assert not [file for file in files_of(hub, name) if "adapter" in file]
    outcome = compared(f"{base}@{commits[0]}", name, adapter=made.by.text, endpoint=hub.address, token=TOKEN)
    assert outcome.identical and outcome.made == (made,) and not outcome.within


@pytest.mark.parametrize("is_usual", [True, False])
def test_a_merge_on_another_machine_is_within_the_tolerance_or_undecided_and_never_called_identical_nor_wrong(
    is_usual: bool, tmp_path: Path, other_order: pytest.MonkeyPatch
) -> None:
    base, adapter = save_both(Case(dtype="fp32"), tmp_path)
    # A usual adapter is a hundredth of the weights. This one would be larger than they are.
    each_one(lambda _, tensor: tensor * (0.1 if is_usual else 1))(adapter)
    merge(base, adapter, tmp_path / "out")
    other_order.undo()
    outcome = compared(base, tmp_path / "out", adapter=str(adapter))
    assert not outcome.mismatches and not outcome.identical
    assert (outcome.holds, bool(outcome.undecided)) == (is_usual, not is_usual)
    told = f"bit-equal tensors: {29 - outcome.within}, within the tolerance: {outcome.within}"
    assert not is_usual or (outcome.within > 0 and told in outcome.method)


@pytest.mark.parametrize("name", ["model.layers.0.mlp.up_proj.weight", "model.norm.weight"])
def test_a_number_beyond_the_tolerance_is_a_difference(name: str, folders: Folders, tmp_path: Path) -> None:
    def spoil(each: str, tensor: torch.Tensor) -> torch.Tensor:
        tensor.view(-1)[0] += 0.125 * (each == name)
        return tensor

    base, adapter = folders
    finish(job.shard(str(base), str(tmp_path / "out"), Options("1GB", adapter=str(adapter))))
    each_one(spoil, MODEL)(tmp_path / "out")
    outcome = compared(base, tmp_path / "out", adapter=str(adapter))
    assert [mismatch.tensor for mismatch in outcome.mismatches] == [name] and not outcome.holds


@promise("docs/security.md#make-what-cannot-be-told-look")
@pytest.mark.parametrize(
    ("size", "sign", "gives"), [(1e4, -1, "sums"), (1e25, -1, "no numbers"), (1e25, 1, "infinities")]
)
def test_an_adapter_whose_terms_cancel_or_overflow_does_not_widen_the_tolerance(
    size: float, sign: int, gives: str, folders: Folders, tmp_path: Path
) -> None:
    base, adapter = folders[0], Path(shutil.copytree(folders[1], tmp_path / "adapter"))
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
    each_one(lambda each, held: held.new_ones(held.shape) if each == name else held, MODEL)(tmp_path / "out")
    outcome = compared(base, tmp_path / "out", adapter=str(adapter))
    if gives == "sums":  # and the merge has said so
        assert (outcome.mismatches, outcome.undecided) == ((), 1) and outcome.outcome.kind == "undecided"
        assert [name in one.message for one in report.plan.findings if one.code == "cannot-be-judged"] == [True]
    else:
        assert [mismatch.tensor for mismatch in outcome.mismatches] == [name] and not outcome.undecided
    assert not outcome.holds and not outcome.identical
    said = invoke("verify", base, tmp_path / "out", "--adapter", adapter)
    told = " ".join(said.output.split())
    assert said.exit_code == 1 and ("It cannot be told whether 1 merged tensor is right" in told) == (gives == "sums")
    assert ("Different:" in told) == (gives != "sums") and "Identical" not in told


def test_a_copy_of_the_base_is_not_the_merged_model_and_quick_cannot_judge_a_merge(folders: Folders) -> None:
    base, adapter = folders
    outcome = compared(base, base, adapter=str(adapter))
    assert len(outcome.mismatches) == 14 and not outcome.holds
    with pytest.raises(UsageError):
        compared(base, base, adapter=str(adapter), quick=True)


def test_another_adapter_under_the_same_name_is_noticed_when_a_merge_goes_on(folders: Folders, tmp_path: Path) -> None:
    base, adapter = folders[0], Path(shutil.copytree(folders[1], tmp_path / "adapter"))
    options = Options("30kB", adapter=str(adapter))
    until_shard(job.shard(str(base), str(tmp_path / "out"), options), stop=True)
    stamp = (adapter / WEIGHTS).stat()
    each_one(doubled)(adapter)
    os.utime(adapter / WEIGHTS, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # same name, size and time
    assert not kept(job.shard(str(base), str(tmp_path / "out"), options))
    assert weights(tmp_path / "out") == merge(base, adapter, tmp_path / "fresh")


def test_a_new_commit_of_the_adapter_gives_another_plan(
    hub: InHouse, repos: tuple[str, str], folders: Folders, tmp_path: Path
) -> None:
    (base, adapter), changed = repos, Path(shutil.copytree(folders[1], tmp_path / "adapter"))
    each_one(doubled)(changed)
    plans = []
    for _ in range(2):
        _, plan = job.plan(base, Options("30kB", adapter=adapter), endpoint=hub.address, token=TOKEN)
        plans.append(identify_plan(plan))
        repo, _, place = adapter.rpartition("/")
        hub.api().upload_file(path_or_fileobj=changed / WEIGHTS, path_in_repo=f"{place}/{WEIGHTS}", repo_id=repo)
    assert plans[0] != plans[1]


def test_an_adapter_beside_the_base_is_not_copied_because_it_would_be_loaded_once_more(
    folders: Folders, tmp_path: Path
) -> None:
    both = Path(shutil.copytree(folders[0], tmp_path / "both"))
    shutil.copytree(folders[1], both, dirs_exist_ok=True)
    report = finish(job.shard(str(both), str(tmp_path / "out"), Options("30kB", adapter=str(folders[1]))))
    assert not list((tmp_path / "out").glob("adapter_*"))
    assert any("adapter_model.safetensors" in finding.message for finding in report.plan.findings)


def test_sums_too_large_for_fp16_stop_a_merge_unless_that_is_allowed(tmp_path: Path) -> None:
    base, adapter = save_both(Case(dtype="fp16"), tmp_path)
    each_one(lambda _, tensor: tensor * 3000)(adapter)
    with pytest.raises(SourceError, match="would make .* finite numbers of .* infinite"):
        merge(base, adapter, tmp_path / "out")
    options = Options("1GB", adapter=str(adapter), allow_overflow=True)
    report = finish(job.shard(str(base), str(tmp_path / "out"), options))
    counted = {name: int(tensor.isinf().sum()) for name, tensor in tensors(tmp_path / "out").items()}
    assert report.overflowed == {name: number for name, number in counted.items() if number}
