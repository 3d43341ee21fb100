"""The page keeps its jobs where nobody else can put anything, and its processes run nothing that lies around."""

import grp
import os
import pwd
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from stat import S_IMODE

import pytest

from sharding.core.errors import Refused, UsageError
from sharding.desk.job_store import Shelf, private_folder
from sharding.desk.jobs import Settings
from sharding.desk.runner import Child
from tests.conftest import ROOT, environment
from tests.promises import promise

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")


def link(folder: Path) -> None:
    (folder.parent / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to("elsewhere")


def changed(place: str, mode: int | None) -> Callable[[Path], None]:
    """Make a folder in which or above which `place` has this mode, or another owner."""

    def make(folder: Path) -> None:
        folder.mkdir(mode=0o700)
        (folder / place).mkdir(mode=0o700, exist_ok=True)
        (folder / place).chmod(mode) if mode else os.chown(folder / place, NOBODY, NOBODY)

    return make


def verdicts(mode: int) -> Callable[[Path], None]:
    """Make a folder with verdicts in a file of this mode, or in a link to one for 0."""

    def make(folder: Path) -> None:
        folder.mkdir(mode=0o700)
        file = folder.parent / "elsewhere" if mode == 0 else folder / "verdicts.jsonl"
        file.touch()
        file.chmod(mode or 0o600)
        if mode == 0:
            (folder / "verdicts.jsonl").symlink_to(file)

    return make


open_to_all = changed("", 0o777)
REFUSED = [
    pytest.param(link, "is a link", id="link"),
    pytest.param(open_to_all, "can be written to by others", id="open"),
    pytest.param(changed("", 0o770), "can be written to by others", id="group"),
    pytest.param(changed("..", 0o777), "can be written to by others", id="open-above"),
    pytest.param(changed("planted", 0o777), "planted can be written to by others", id="open-inside"),
    pytest.param(changed("planted", 0o770), "planted can be written to by others", id="group-inside"),
    pytest.param(verdicts(0o602), "verdicts.jsonl can be written to by others", id="open-verdicts"),
    pytest.param(verdicts(0o620), "verdicts.jsonl can be written to by others", id="group-verdicts"),
    pytest.param(verdicts(0), "verdicts.jsonl is a link", id="link-to-verdicts"),
    pytest.param(Path.touch, "Not a directory", id="file"),
    pytest.param(changed("", None), "belongs to another user", id="theirs", marks=as_root),
    pytest.param(changed("..", None), "belongs to another user", id="theirs-above", marks=as_root),
    pytest.param(changed("planted", None), "planted belongs to another user", id="theirs-inside", marks=as_root),
]


@pytest.mark.parametrize(("make", "reason"), REFUSED)
def test_a_folder_into_which_others_can_put_something_is_refused_and_on_a_space_one_with_such_a_folder_above_it_is_not(
    make: Callable[[Path], None],
    reason: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = tmp_path / "place/desk"
    place.parent.mkdir()
    make(place)
    with pytest.raises(Refused, match=reason) as refused:
        Shelf(place)
    assert "SHARD_FOLDER" in refused.value.hint
    monkeypatch.setenv("SPACE_ID", "acme/shard-my-repo")
    if "above" in request.node.callspec.id:
        assert private_folder(place) == place
    else:
        with pytest.raises(Refused, match=reason):
            private_folder(place)


@pytest.mark.parametrize(
    ("name", "members", "is_taken"),
    [
        ("me", [], True),
        ("me", ["me"], True),
        ("me", ["me", "eve"], False),
        ("me", ["eve"], False),
        ("staff", [], False),
    ],
)
def test_a_folder_below_one_of_a_group_is_taken_where_nobody_else_is_in_that_group(
    name: str, members: list[str], is_taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many systems make a group for each user, of that name."""
    number = tmp_path.stat().st_gid or 54_321
    os.chown(tmp_path, -1, number)
    tmp_path.chmod(0o770)
    user = list(pwd.getpwuid(os.geteuid()))
    monkeypatch.setattr("pwd.getpwuid", lambda _: pwd.struct_passwd(["me", *user[1:]]))
    monkeypatch.setattr("grp.getgrgid", lambda _: grp.struct_group([name, "x", number, members]))
    if is_taken:
        assert private_folder(tmp_path / "desk") == tmp_path / "desk"
    else:
        with pytest.raises(Refused, match="can be written to by others"):
            private_folder(tmp_path / "desk")


@promise("docs/security.md#put-a-job-or-a-result")
def test_the_page_does_not_start_over_a_folder_into_which_others_can_put_something(tmp_path: Path) -> None:
    folder = tmp_path / "shard-my-repo"
    open_to_all(folder)
    places = {"SHARD_FOLDER": "", "XDG_STATE_HOME": str(tmp_path), "GRADIO_SERVER_PORT": "1"}
    command = [sys.executable, str(ROOT / "app.py")]
    env = {**environment(), **places}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    sentence, hint = done.stderr.strip().splitlines()
    assert (done.returncode, done.stdout) == (3, "")
    assert sentence == f"The page cannot keep its jobs in {folder}: {folder} can be written to by others."
    assert "SHARD_FOLDER" in hint


def test_who_has_no_home_is_told_to_set_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("SHARD_FOLDER", ""), ("XDG_STATE_HOME", ""), ("HOME", "no/home")):
        monkeypatch.setenv(name, text)
    with pytest.raises(UsageError, match="You have no home folder, so the page has no place for its jobs") as refusal:
        Settings.from_environment()
    assert refusal.value.hint == "Set SHARD_FOLDER to a folder for them."


def test_a_new_folder_is_closed_to_others_and_so_are_those_made_above_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        place = private_folder(tmp_path / "state/more/desk")
    finally:
        os.umask(before)
    assert {S_IMODE(folder.stat().st_mode) for folder in (place, place.parent, place.parent.parent)} == {0o700}
    assert private_folder(place) == place


def test_a_new_space_has_its_folder_made_and_those_above_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SHARD_FOLDER", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPACE_ID", "acme/shard-my-repo")
    monkeypatch.setenv("HOME", str(tmp_path))
    Shelf(Settings.from_environment().folder).close()
    assert [path.parent.name for path in tmp_path.rglob("desk.lock")] == ["shard-my-repo"]


def test_a_folder_is_taken_where_it_is_over_links_above_it_also_in_a_sticky_one(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk").chmod(0o1777)
    (tmp_path / "home").symlink_to("disk")
    assert private_folder(tmp_path / "home/desk") == tmp_path / "disk/desk"


def plant(folder: Path) -> Path:
    """Put packages into `folder` that tell when they are run; return where they tell it."""
    told = folder / "told"
    code = f"import sys; open({str(told)!r}, 'a').write(' '.join(sys.orig_argv) + '\\n')\n"
    (folder / "sharding").mkdir(parents=True)
    for name in ("sharding/__init__.py", "sharding/__main__.py", "sitecustomize.py", "startup.py", "pydantic.py"):
        (folder / name).write_text(code)
    return told


@promise("docs/security.md#get-their-code-run-instead-of")
def test_a_job_runs_this_package_and_nothing_that_lies_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = plant(tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    # An empty entry is the current folder.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", ".", str(ROOT), ""]))
    monkeypatch.setenv("PATH", f":{os.environ['PATH']}:")
    monkeypatch.setenv("PYTHONSTARTUP", str(tmp_path / "here/startup.py"))
    monkeypatch.setenv("LD_PRELOAD", "/no/such/library.so")
    child = Child(["--version"], tmp_path, "http://127.0.0.1:1", "hf_token")
    (line,) = child.lines()
    assert child.wait() == 0 and line.startswith(b"shard-my-repo ")
    assert child.last_words == "" and not told.exists()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "arguments",
    [
        "plan CHECKPOINT --strategy pp:2",
        "compare CHECKPOINT CHECKPOINT --rounds 1",
        "shard CHECKPOINT OUT --workers ray",
    ],
)
def test_no_command_runs_a_package_that_lies_in_the_current_folder(
    arguments: str, checkpoint: Path, tmp_path: Path
) -> None:
    told = plant(tmp_path / "here")
    (checkpoint / "config.json").write_text('{"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}')
    words = arguments.replace("CHECKPOINT", str(checkpoint)).replace("OUT", str(tmp_path / "out")).split()
    command = [sys.executable, "-P", "-c", "from sharding.cli.commands import main; main()", *words]
    subprocess.run(command, cwd=tmp_path / "here", env=environment(), stdin=subprocess.DEVNULL, capture_output=True)
    assert not told.exists(), told.read_text()
