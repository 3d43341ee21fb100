"""A repo that does not load where the base that its card names does is told so when it is inspected."""

from pathlib import Path

from sharding import job
from sharding.core.values import Finding
from tests import quantized
from tests.hubs import TOKEN, push
from tests.inhouse import InHouse
from tests.planning.alike.models import build, configure, published, rename


def told_by(hub: InHouse, name: str) -> list[Finding]:
    found = job.inspect(name, endpoint=hub.address, token=TOKEN)
    return [finding for finding in found.findings if finding.code == "unlike-base"]


def test_inspect_compares_a_repo_with_the_base_that_its_card_names(hub: InHouse, name: str, tmp_path: Path) -> None:
    original, mine = published(build("llama"), tmp_path / "original"), published(build("llama", 1), tmp_path / "mine")
    base = f"{name}-base"
    push(hub, original, base)
    for number, (prefix, named, is_told) in enumerate((("", base, 0), ("_orig_mod.", base, 1), ("", "no/thing", 0))):
        rename(mine, "^", prefix)
        (mine / "README.md").write_text(f"---\nbase_model: {named}\n---\n")
        push(hub, mine, f"{name}-{number}")
        told = told_by(hub, f"{name}-{number}")
        assert len(told) == is_told and all(f"--like {base}" in one.hint for one in told)


def test_the_configuration_may_name_the_base(hub: InHouse, name: str, tmp_path: Path) -> None:
    push(hub, published(build("llama"), tmp_path / "original"), f"{name}-base")
    mine = rename(published(build("llama", 1), tmp_path / "mine"), "^", "module.")
    configure(mine, _name_or_path=f"{name}-base")
    [told] = told_by(hub, push(hub, mine, f"{name}-mine"))
    assert "module." in told.message and f"--like {name}-base" in told.hint


def test_a_quantization_is_no_fault(hub: InHouse, name: str, tmp_path: Path) -> None:
    """Its names differ from the base's on purpose."""
    quantized.build("qwen3", tmp_path / "base")
    push(hub, tmp_path / "base", f"{name}-base")
    packed = quantized.save_fp8("qwen3", tmp_path / "fp8")
    configure(packed, _name_or_path=f"{name}-base")
    assert told_by(hub, push(hub, packed, f"{name}-mine")) == []
