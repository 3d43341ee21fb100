"""A desk that loads a result and its source in turn: what that costs is said, and it proves nothing of the result."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file

from sharding import job
from sharding.core.dtypes import torch_name
from sharding.core.errors import Refused
from sharding.core.options import Options
from sharding.desk.desk import Desk
from sharding.desk.jobs import JobRequest, Settings
from sharding.desk.judgement import request_about
from sharding.desk.runner import command_of
from tests import models
from tests.commands import invoke
from tests.desk.actors import Stage
from tests.desk.conftest import ALICE, AS_ALICE, BOB, end, player, seen, state
from tests.hubs import push, shard
from tests.localhub.conftest import Server

pytestmark = pytest.mark.usefixtures("at_hand", "warm_processes")


def of_bob(name: str) -> str:
    return name.replace("alice/", "bob/")


def test_loads_are_measured_also_later_and_are_no_proof(
    hub: Server, settings: Settings, name: str, tmp_path: Path
) -> None:
    source = push(hub, models.save("llama", tmp_path / "in", layers=1), f"{name}-in")
    copy = of_bob(name)
    shard(hub, source, copy, "20kB", BOB)
    with Desk(settings) as desk:
        done = end(desk, desk.submit_about("compare", copy, *AS_ALICE))
        assert (done.state, done.error, done.result) == ("done", None, "")
        assert done.loads and done.loads[0] == done.loads[1] == 8
        assert (
            done.costs and done.costs.picture and done.costs.verdict.kind in ("no-difference", "gain", "loss", "mixed")
        )
        assert desk.results.judge(copy, ALICE)[1].level == "fits"
        assert [record.can_resume for record in desk.jobs_of("alice")] == [False]
        asked = request_about("compare", desk.results.read(copy, BOB))
        assert desk.findings(request_about("verify", desk.results.read(copy, BOB))) is None
    with Desk(settings) as later:
        assert seen(later, done.id, "alice").costs == done.costs
        kept = later.findings(asked)
        assert kept and (kept.costs, kept.ended) == (done.costs, done.ended)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_of_a_training_run_only_the_copy_is_loaded(hub: Server, desk: Desk, name: str, tmp_path: Path) -> None:
    run = models.save("llama", tmp_path / "in", layers=1)
    weights = load_file(run / "model.safetensors")
    (run / "model.safetensors").unlink()
    dcp.save(weights, checkpoint_id=run, no_dist=True)
    source, copy = push(hub, run, f"{name}-in"), of_bob(name)
    shard(hub, source, copy, "20kB", BOB)
    done = end(desk, desk.submit_about("compare", copy, *AS_ALICE))
    assert done.state == "done" and done.loads == (4, 4)
    assert done.costs and done.costs.verdict.kind == "copy-alone"


def test_what_was_loaded_halfway_says_nothing_and_can_be_begun_again(
    desk: Desk, stage: Stage, hub: Server, name: str, tmp_path: Path
) -> None:
    source = push(hub, models.save("llama", tmp_path / "in", layers=1), f"{name}-in")
    shard(hub, source, of_bob(name), "20kB", BOB)
    job_id = desk.submit_about("compare", of_bob(name), *AS_ALICE)
    player(desk, stage, job_id).exit(3)
    state(desk, job_id, "failed")
    record = desk.jobs_of("alice")[0]
    assert (record.result, record.can_resume, seen(desk, job_id, "alice").costs) == ("", True, None)
    again = desk.submit(seen(desk, job_id, "alice").request, *AS_ALICE)
    assert command_of(seen(desk, again, "alice").request)[0] == "compare"


def test_what_transformers_does_not_load_or_is_not_here_is_refused(
    desk: Desk, hub: Server, small: str, variants: str, name: str, tmp_path: Path
) -> None:
    """A folder, and a variant."""
    variant = f"{name}-variant"
    shard(hub, variants, variant, Options("70kB", variant="fp16"), ALICE)
    with pytest.raises(Refused, match="transformers does not load the copy"):
        desk.submit_about("compare", variant, *AS_ALICE)
    folder = models.save("llama", tmp_path / "in", layers=1)
    shard(hub, str(folder), name, "20kB", ALICE)
    with pytest.raises(Refused, match="made from a folder") as refused:
        desk.submit_about("compare", name, *AS_ALICE)
    assert "shard-my-repo compare" in refused.value.hint
    assert desk.jobs_of("alice") == []


@pytest.mark.parametrize("options", [Options(), Options(dtype="bf16"), Options(adapter="d/e@f", dequantize=True)])
def test_the_process_is_told_what_to_load_and_the_dtype_that_both_get(options: Options) -> None:
    told: list[tuple[Any, ...]] = []

    def compare(*names: str, load: Any, rounds: int, picture: str, token: str | None) -> Iterator[None]:
        told.append((*names, load.dtype))
        yield from ()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job, "compare", compare)
        done = invoke(*command_of(JobRequest("a/b@c", "alice/copy@f", options, kind="compare")))
    assert done.exit_code == 0, done.output
    assert told == [("a/b@c", "alice/copy@f", torch_name(options.dtype))]
