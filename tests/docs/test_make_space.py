"""`make space OWNER=name` writes a folder that becomes a Space of that owner as it is."""

import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT, environment
from tests.docs.pages import blocks, prose
from tests.docs.test_shown import check
from tests.localhub.conftest import Server
from tests.page.test_space import front_matter

DEPLOY = ROOT / "docs/deploy.md"


def tracked(folder: Path) -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=folder, capture_output=True, text=True)
    return listed.stdout.splitlines()


def make_repo(folder: Path) -> Path:
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    subprocess.run(["git", "add", "--all"], cwd=folder, check=True)
    return folder


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tracked files of this folder in a repo of their own."""
    if not (names := tracked(ROOT)):
        pytest.skip("this folder is no clone")
    clone = tmp_path_factory.mktemp("place") / "clone"
    for name in {*names, ".ci/space.py", ".ci/space.yml"}:
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, clone / name)
    return make_repo(clone)


def unnumbered(text: str) -> str:
    return re.sub(r"\d[\d.]*", "N", text)


def make(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "--no-print-directory", "space", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_it_holds_what_a_space_needs_and_prints_the_next_command(clone: Path) -> None:
    (clone / ".env").write_text("HF_TOKEN=secret")
    (clone / "sharding/notes.txt").write_text("not for others")
    done = make(clone, "OWNER=alice")
    assert done.returncode == 0, done.stderr
    space, names = clone / "space", tracked(clone)
    written = {path.relative_to(space).as_posix() for path in space.rglob("*") if path.is_file()}
    assert written <= set(names) and written >= {name for name in names if re.match("sharding/|assets/|docs/", name)}
    assert {"app.py", "requirements.txt", "pyproject.toml", "LICENSE", "README.md"} <= written
    assert not [name for name in written if re.match(r"tests/|bench/.*\.py", name)]
    command = done.stdout.splitlines()[-1].split()
    assert command == ["hf", "upload", "alice/shard-my-repo", "space", ".", "--type", "space"]
    check(tuple(command))
    (shown,) = (block for block in blocks(DEPLOY, "console") if block.startswith("$ make space"))
    assert unnumbered(shown.partition("\n")[2]) == unnumbered(done.stdout)
    readme = clone / "space/README.md"
    _, front, body = readme.read_text().split("---\n", 2)
    thumbnail = "https://huggingface.co/spaces/alice/shard-my-repo/resolve/main/assets/plan.png"
    assert yaml.safe_load(front) == front_matter() | {"thumbnail": thumbnail}
    assert body.startswith("\n# Shard My Repo\n") and (ROOT / "README.md").read_text().startswith("# Shard My Repo\n")
    assert not [
        name
        for name in runpy.run_path(str(clone / ".ci/space.py"))["ADDRESSED"]
        if "spaces/OWNER" in (space / name).read_text()
    ]
    for link in re.findall(r"\]\(([^)#\s]+)", prose(readme)):
        assert "://" in link or (readme.parent / link).exists(), link


def test_a_copy_of_the_space_makes_the_next_one(clone: Path, tmp_path: Path) -> None:
    assert make(clone, "OWNER=alice").returncode == 0
    copy = make_repo(shutil.copytree(clone / "space", tmp_path / "copy"))
    for _ in range(2):  # the second one replaces the folder
        assert make(copy, "OWNER=bob").returncode == 0
    text = (copy / "space/README.md").read_text()
    assert text.count("---\n") == (clone / "space/README.md").read_text().count("---\n")
    assert "spaces/bob/shard-my-repo" in text and "alice" not in text


def test_a_wrong_owner_is_refused_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    main = runpy.run_path(str(ROOT / ".ci/space.py"))["main"]
    for owner in ("", "OWNER", "YOU", "alice/space", "-alice", "al--ice", "al ice", "alice;id", "é"):
        said = main([owner])
        assert ". Give " in said and said.endswith("make space OWNER=your-account") and not list(tmp_path.iterdir())


def test_what_is_refused_leaves_a_folder_alone(clone: Path) -> None:
    done = make(clone)
    assert done.returncode == 2 and done.stderr.startswith("OWNER is missing. ")
    shutil.rmtree(clone / "space", ignore_errors=True)
    before = (clone / "app.py").read_text()
    (clone / "app.py").write_text(f"TOKEN = 'hf_{'a1B2' * 9}'")
    done = make(clone, "OWNER=alice")
    (clone / "app.py").write_text(before)
    assert done.returncode == 2 and done.stderr.startswith("app.py seems to hold a token of the Hub. Remove it")
    assert not (clone / "space").exists()
    (clone / "space/.git").mkdir(parents=True)
    assert make(clone, "OWNER=alice").returncode == 2
    assert [path.name for path in (clone / "space").iterdir()] == [".git"]
    shutil.rmtree(clone / "space")


@pytest.mark.thorough
def test_the_commands_of_the_page_make_a_space_on_a_hub(clone: Path, tmp_path: Path) -> None:
    (commands,) = (block for block in blocks(DEPLOY, "console") if block.startswith("$ hf repos create"))
    server = Server(tmp_path / "hub")
    try:
        server.start()
        assert make(clone, "OWNER=alice").returncode == 0
        env = environment() | {"HF_ENDPOINT": server.address, "HF_TOKEN": "hf_alice", "HF_HOME": str(tmp_path / "home")}
        for line in ["$ hf auth whoami", *commands.splitlines()]:
            if line.startswith("$ hf "):
                hf = [str(Path(sys.executable).with_name("hf")), *shlex.split(line)[2:]]
                subprocess.run(hf, cwd=clone, env=env, check=True, capture_output=True, timeout=300)
        files = set(server.api().list_repo_files("alice/shard-my-repo", repo_type="space"))
    finally:
        server.stop()
    space = clone / "space"
    assert files - {".gitattributes"} == {
        path.relative_to(space).as_posix() for path in space.rglob("*") if path.is_file()
    }
