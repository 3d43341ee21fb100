"""Any two repos compared at a desk: without reading weights, by reading every byte, and by what it remembers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from sharding.core.errors import Refused, SourceError
from sharding.core.options import Options
from sharding.core.text import json_file
from sharding.desk import models
from sharding.desk.desk import Desk
from sharding.desk.jobs import Settings
from sharding.formats.names import REPORT_NAME
from sharding.report.schema import to_json
from sharding.storage.locate import open_inputs
from sharding.verify.structure import Claims
from tests.conftest import random_tensors, write_checkpoint
from tests.desk.actors import Stage
from tests.desk.conftest import ALICE, AS_ALICE, AS_BOB, BOB, end, player, state
from tests.folders import compared
from tests.hubs import download, propose, push, shard
from tests.inhouse import InHouse
from tests.localhub.conftest import Server
from tests.promises import promise

pytestmark = pytest.mark.usefixtures("at_hand")


@pytest.fixture
def cut(hub: Server, small: str, name: str) -> str:
    """A sharded copy that no desk has made."""
    shard(hub, small, f"{name}-cut", "70kB")
    return f"{name}-cut"


def changed(hub: Server, small: str, name: str, folder: Path) -> str:
    """A copy with two tensors of other numbers."""
    tensors = load_file(download(hub, small, folder) / "model.safetensors")
    tensors["layers.3.weight"] = tensors["layers.3.weight"] * np.float32(1.5)
    tensors["layers.7.weight"] = tensors["layers.7.weight"][::-1].copy()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return push(hub, folder, f"{name}-changed")


def test_equal_files_are_known_by_the_hashes_that_the_hub_states(
    desk: Desk, hub: Server, small: str, name: str, tmp_path: Path
) -> None:
    same = push(hub, download(hub, small, tmp_path / "same"), f"{name}-same")
    likeness, trust = desk.results.compare(small, same, None)
    assert (likeness.verdict, trust.level) == ("same-files", "fits")
    assert (likeness.original.repo_id, likeness.copy.repo_id) == (small, same)


def test_a_sharded_copy_fits_until_every_byte_is_read(desk: Desk, settings: Settings, small: str, cut: str) -> None:
    likeness, trust = desk.results.compare(small, cut, None)
    assert (likeness.verdict, trust.level) == ("same-structure", "fits")
    done = end(desk, desk.submit_comparison(small, cut, "", *AS_ALICE))
    assert (done.state, done.error, done.request.of_result) == ("done", None, False)
    assert desk.results.compare(small, cut, None)[1].level == "read-now"
    # The other way round, nobody has read them.
    assert desk.results.compare(cut, small, None)[1].level == "fits"
    desk.close()
    with Desk(settings) as later:
        assert later.results.compare(small, cut, BOB)[1].level == "read-now"


def test_a_job_says_by_how_much_tensors_differ(desk: Desk, hub: Server, small: str, name: str, tmp_path: Path) -> None:
    copy = changed(hub, small, name, tmp_path / "copy")
    assert desk.results.compare(small, copy, None)[1].level == "fits"
    failed = end(desk, desk.submit_comparison(small, copy, "", *AS_ALICE))
    assert failed.state == "failed" and failed.verification and failed.error
    assert failed.error[0].startswith("The copy differs from the original in 2 tensors.")
    differences = failed.verification.differences
    assert differences and [one.tensor for one in differences] == ["layers.3.weight", "layers.7.weight"]
    assert differences[0].cosine == pytest.approx(1) and differences[0].equal == 0
    likeness, trust = desk.results.compare(small, copy, None)
    assert (likeness.verdict, trust.level) == ("same-structure", "contradicted")
    assert failed.error[0] in trust.reasons
    assert compared(small, copy, numeric=True, endpoint=hub.address).differences == differences


def test_a_cast_is_read_as_a_cast(desk: Desk, hub: Server, small: str, name: str, tmp_path: Path) -> None:
    folder = download(hub, small, tmp_path / "plain")
    (folder / "config.json").unlink()  # nothing for transformers to be asked about
    source, cast = push(hub, folder, f"{name}-plain"), f"{name}-fp16"
    shard(hub, source, cast, Options("70kB", dtype="fp16"))
    likeness, trust = desk.results.compare(source, cast, None)
    assert (likeness.verdict, likeness.asked, trust.level) == ("converted", {"dtype": "fp16"}, "fits")
    done = end(desk, desk.submit_comparison(source, cast, "", *AS_ALICE))
    assert (done.state, done.request.options.dtype) == ("done", "fp16")
    assert desk.results.compare(source, cast, None)[1].level == "read-now"


def test_a_variant_is_compared_by_its_name(desk: Desk, hub: Server, variants: str, name: str) -> None:
    shard(hub, variants, name, Options("9kB", variant="fp16"))
    likeness, _ = desk.results.compare(variants, name, None, variant="fp16")
    assert (likeness.verdict, likeness.variant) == ("same-structure", "fp16")
    assert desk.results.compare(variants, name, None)[0].verdict == "converted"  # of the plain weights
    done = end(desk, desk.submit_comparison(variants, name, "fp16", *AS_ALICE))
    assert (done.state, done.request.options.variant) == ("done", "fp16")
    assert desk.results.compare(variants, name, None, variant="fp16")[1].level == "read-now"
    assert desk.results.compare(variants, name, None)[1].level == "fits"


@promise("docs/security.md#get-a-copy-of-other-weights")
def test_what_was_read_of_the_plain_weights_proves_no_report_of_a_variant(
    desk: Desk, hub: Server, name: str, tmp_path: Path
) -> None:
    """Their numbers differ, so a copy of the plain ones is not one of the variant, whatever its report says."""
    plain = {f"layers.{n}.weight": np.full(500, n, np.float32) for n in range(4)}
    halves = {name: (tensor + 1).astype(np.float16) for name, tensor in plain.items()}
    files = {"model.safetensors": plain, "model.fp16.safetensors": halves}
    both = push(hub, write_checkpoint(tmp_path / "both", files, False), f"{name}-both")
    cast, true = f"{name}-cast", Options("3kB", variant="fp16")
    told = json.loads(json_file(to_json(shard(hub, both, cast, Options("3kB", dtype="fp16")))))
    summary = json.loads(json_file(to_json(shard(hub, both, f"{name}-true", true))))
    told["source"] = summary["source"]
    told["plan"] |= {"asked": summary["plan"]["asked"], "order": summary["plan"]["order"]}
    del told["plan"]["made"], told["verification"]["made"]
    text = json.dumps(told).encode()
    hub.api(ALICE).upload_file(repo_id=cast, path_in_repo=REPORT_NAME, path_or_fileobj=text)
    assert end(desk, desk.submit_comparison(both, cast, "", *AS_ALICE)).state == "done"
    assert desk.results.judge(cast, None)[1].level != "read-now"
    end(desk, desk.submit_about("verify", cast, *AS_ALICE))
    assert desk.results.judge(cast, None)[1].level == "contradicted"


@promise("docs/security.md#get-a-copy-shown-in-green")
def test_stored_digests_are_a_claim_and_a_forged_one_lifts_nothing(
    desk: Desk, hub: Server, small: str, cut: str, name: str, tmp_path: Path
) -> None:
    shard(hub, small, f"{name}-other", "50kB")
    likeness, trust = desk.results.compare(cut, f"{name}-other", None)
    assert (likeness.verdict, likeness.claims, trust.level) == ("same-structure", Claims(14, ()), "fits")
    # Other numbers, beside the digests and the report of the true ones.
    folder = download(hub, cut, tmp_path / "forged")
    for path in folder.glob("*.safetensors"):
        save_file({name: tensor + 1 for name, tensor in load_file(path).items()}, path, metadata={"format": "pt"})
    forged = push(hub, folder, f"{name}-forged")
    likeness, trust = desk.results.compare(cut, forged, None)
    assert (likeness.verdict, likeness.claims, trust.level) == ("same-structure", Claims(14, ()), "fits")
    assert end(desk, desk.submit_comparison(cut, forged, "", *AS_ALICE)).state == "failed"
    assert not desk.jobs_of("alice")[0].can_resume  # it would find the same differences again
    assert desk.results.compare(cut, forged, None)[1].level == "contradicted"


def test_digests_that_describe_nothing_here_are_no_claim(
    desk: Desk, hub: Server, small: str, cut: str, name: str
) -> None:
    shard(hub, small, odd := f"{name}-odd", "50kB")
    empty = b'{"schema": 1, "plan_id": "", "shards": {}, "tensors": {}}'
    for text in (b"{", b"[]", empty, b"[" * 1_000_001):
        to = {"repo_id": odd, "path_in_repo": "sharding_digests.json"}
        commit = hub.api().upload_file(path_or_fileobj=text, **to).oid
        likeness, trust = desk.results.compare(cut, f"{odd}@{commit}", None)
        assert (likeness.verdict, likeness.claims, trust.level) == ("same-structure", None, "fits"), text[:60]


def test_a_private_repo_of_somebody_else_is_as_one_that_does_not_exist_and_so_are_its_claims(
    desk: Desk, hub: Server, small: str, cut: str, name: str, tmp_path: Path
) -> None:
    private = push(hub, download(hub, small, tmp_path / "private"), f"{name}-private", private=True)
    assert desk.results.compare(small, private, ALICE)[0].verdict == "same-files"  # which the desk now remembers
    for token in (None, BOB):
        for pair in ((small, private), (private, small)):
            with pytest.raises(SourceError) as hidden:
                desk.results.compare(*pair, token)
            with pytest.raises(SourceError) as missing:
                desk.results.compare(*(f"{name}-absent" if repo == private else repo for repo in pair), token)
            assert hidden.value.message.replace(private, f"{name}-absent") == missing.value.message
            assert hidden.value.hint == missing.value.hint
    with pytest.raises(SourceError):
        desk.submit_comparison(small, private, "", *AS_BOB)
    assert desk.queue_length == 0
    shard(hub, small, f"{name}-own", "50kB", private=True)
    assert desk.results.compare(cut, f"{name}-own", ALICE)[0].claims == Claims(14, ())
    for token in (None, BOB):
        with pytest.raises(SourceError):
            desk.results.compare(cut, f"{name}-own", token)


def test_weights_of_a_pull_request_are_never_the_repos_own(
    desk: Desk, hub: Server, small: str, name: str, tmp_path: Path
) -> None:
    other = write_checkpoint(tmp_path / "other", {"model.safetensors": random_tensors(seed=5)}, False)
    place = f"{small}@{propose(hub, other, small)}"
    copy = push(hub, other, f"{name}-of-it")
    likeness, trust = desk.results.compare(place, copy, None)
    assert (likeness.verdict, trust.level) == ("same-files", "unreached")
    assert end(desk, desk.submit_comparison(place, copy, "", *AS_ALICE)).state == "done"
    assert desk.results.compare(place, copy, None)[1].level == "unreached"


def test_a_comparison_is_a_job_like_others(
    desk: Desk, settings: Settings, hub: InHouse, stage: Stage, large: str, small: str
) -> None:
    """Only that those who just read keep nobody waiting."""
    job_id = desk.submit_comparison(large, large, "", *AS_ALICE)
    assert desk.status(desk.submit_comparison(large, large, "", *AS_BOB), "bob")
    with pytest.raises(Refused, match="You have a job here already"):
        desk.submit_comparison(small, small, "", *AS_ALICE)
    assert desk.status(job_id, "bob") is None
    player(desk, stage, job_id).exit(3)
    state(desk, job_id, "failed")
    with Desk(Settings(settings.folder.parent / "limited", hub.address, max_job_bytes=1000)) as limited:
        with pytest.raises(Refused, match="This shared machine accepts up to"):
            limited.submit_comparison(small, small, "", *AS_ALICE)
        assert limited.results.compare(small, small, None)[0].verdict == "same-files"


def test_digests_that_cannot_be_read_once_are_no_claim_then_and_are_asked_for_again(
    desk: Desk, hub: InHouse, small: str, cut: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard(hub, small, f"{name}-other", "90kB")
    opened: list[str] = []

    def fails_once(inputs: Any, hub: Any) -> Any:
        opened.append(inputs["model"])
        if len(opened) == 1:
            raise SourceError("The Hub has a problem.")
        return open_inputs(inputs, hub)

    monkeypatch.setattr(models, "open_inputs", fails_once)
    assert desk.results.compare(cut, f"{name}-other", None)[0].claims is None
    assert desk.results.compare(cut, f"{name}-other", None)[0].claims is not None
