"""A repo that does not load where the base that its card names does is told so when it is inspected."""

from pathlib import Path

from sharding import job
from tests.hubs import TOKEN, push
from tests.inhouse import InHouse
from tests.planning.alike.models import build, published, rename


def test_inspect_compares_a_repo_with_the_base_that_its_card_names(hub: InHouse, name: str, tmp_path: Path) -> None:
    original, mine = published(build("llama"), tmp_path / "original"), published(build("llama", 1), tmp_path / "mine")
    base = f"{name}-base"
    push(hub, original, base)
    for number, (prefix, named, is_told) in enumerate((("", base, 0), ("_orig_mod.", base, 1), ("", "no/thing", 0))):
        rename(mine, "^", prefix)
        (mine / "README.md").write_text(f"---\nbase_model: {named}\n---\n")
        push(hub, mine, f"{name}-{number}")
        found = job.inspect(f"{name}-{number}", endpoint=hub.address, token=TOKEN)
        told = [finding for finding in found.findings if finding.code == "unlike-base"]
        assert len(told) == is_told and all(f"--like {base}" in one.hint for one in told)
