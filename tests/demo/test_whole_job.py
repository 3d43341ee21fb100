"""`make demo` shows the whole job on a Hub of this machine, and says whether both models agree."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sharding.demo import offline
from sharding.demo import whole_job as demo
from tests.commands import invoke
from tests.conftest import write_checkpoint
from tests.folders import arrays, same
from tests.inhouse import InHouse, hub_in_house
from tests.promises import promise

TENSORS = {f"layers.{n}.weight": np.full(12_000, n, np.float32) for n in range(5)}


@pytest.fixture
def hubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[InHouse]:
    """The Hubs that the demo has started: in this process, as its command and its models are."""
    hubs: list[InHouse] = []

    @contextmanager
    def serve_hub(folder: Path, *options: str) -> Iterator[str]:
        assert options == ("--user", "demo", "--user", "samples") and folder == Path("demo/whole-job/hub")
        with hub_in_house(tmp_path / "hub", users=("demo", "samples")) as hub:
            hubs.append(hub)
            yield hub.address

    def run(command: list[str], env: dict[str, str], check: bool) -> None:
        assert check and command[1:3] == ["-m", "sharding"]
        with pytest.MonkeyPatch.context() as patch:
            for name in ("HF_ENDPOINT", "HF_TOKEN"):
                patch.setenv(name, env[name])
            done = invoke(*command[3:])
        assert done.exit_code == 0, done.output
        print(done.output)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "SHARD_SIZE", "100kB")
    monkeypatch.setattr(demo, "serve_hub", serve_hub)
    built = partial(write_checkpoint, files={"model.safetensors": TENSORS}, index=False)
    monkeypatch.setattr(demo, "build_mistral", built)
    monkeypatch.setattr(demo, "subprocess", SimpleNamespace(run=run))
    for name in ("mistral-60m-sharded", "whole-job/hub", offline.FOLDER.relative_to("demo"), "pipeline", "mine"):
        (tmp_path / "demo" / name).mkdir(parents=True)
        (tmp_path / "demo" / name / "of an earlier one").write_text("")
    return hubs


@promise("README.md#try-it")
@pytest.mark.parametrize("agrees", [True, False])
def test_both_are_downloaded_from_a_hub_of_this_machine_and_held_against_each_other(
    hubs: list[InHouse], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], agrees: bool
) -> None:
    loaded: list[Path] = []

    def generate(folder: Path, **options: Any) -> str:
        loaded.append(folder)
        assert same(arrays(folder), TENSORS)
        return "a text" if agrees or len(loaded) == 1 else "another text"

    monkeypatch.setattr(demo, "generate", generate)
    with pytest.raises(SystemExit) as ended:
        demo.main()
    said = capsys.readouterr().out
    assert (bool(ended.value.code), "They agree." in said, "They differ!" in said) == (not agrees, agrees, not agrees)
    assert loaded == [Path("demo/mistral-60m"), Path("demo/mistral-60m-sharded")]
    assert [len(list(folder.glob("*.safetensors"))) for folder in loaded] == [1, 3]
    assert "Identical: all 5 tensors" in said and f"HF_ENDPOINT={hubs[0].address} HF_TOKEN=hf_demo" in said
    left = {path.parent for path in Path("demo").rglob("of an earlier one")}
    assert left == {offline.FOLDER, Path("demo/pipeline"), Path("demo/mine")}  # a page may run there
    assert not agrees or said.endswith(demo.NEXT + "\n")
