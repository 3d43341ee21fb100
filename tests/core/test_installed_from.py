"""What is not installed is named by the command that installs it into this copy, wherever that came from."""

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from sharding.core.errors import Refused
from sharding.core.extras import require
from tests.commands import invoke
from tests.conftest import ROOT, environment, in_two_files

COMMIT = "0123456789abcdef0123456789abcdef01234567"
COMMITTED = {"vcs": "git", "commit_id": COMMIT, "requested_revision": "main"}
HASHES = {"hashes": {"sha256": "0" * 64}}
BELOW = {"subdirectory": "a/b"}


@pytest.fixture
def lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ray."""
    monkeypatch.setitem(sys.modules, "ray", None)


def install(folder: Path, origin: Any) -> Path:
    """Make a distribution of this package in `folder`, as pip leaves it after an install from `origin`."""
    info = folder / "shard_my_repo-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.4\nName: shard-my-repo\nVersion: 0.1.0\n")
    if origin is not None:
        (info / "direct_url.json").write_text(origin if isinstance(origin, str) else json.dumps(origin))
    return folder


def command() -> str:
    """The command that is said where ray is missing."""
    with pytest.raises(Refused) as refusal:
        require("This", "ray")
    hint = refusal.value.hint
    assert hint.startswith("Run `pip install ") and hint.endswith("`.")
    return hint.removeprefix("Run `").removesuffix("`.")


@pytest.mark.parametrize("name", ["plain", "Anna's ünï $HOME 100%"])
@pytest.mark.parametrize("editable", [False, True])
def test_what_was_installed_from_a_folder_is_installed_from_it_again(
    name: str, editable: bool, lacking: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "pyproject.toml").touch()
    origin = {"url": folder.as_uri(), "dir_info": {"editable": True} if editable else {}}
    monkeypatch.syspath_prepend(install(tmp_path / "site", origin))
    before = ["pip", "install", *["-e"] * editable]
    assert shlex.split(command()) == [*before, f"{folder}[ray]"]
    monkeypatch.chdir(folder)
    assert shlex.split(command()) == [*before, ".[ray]"]


@pytest.mark.parametrize(
    ("address", "more", "url"),
    [
        ("https://hub.example/a/b", {"vcs_info": COMMITTED}, f"git+https://hub.example/a/b@{COMMIT}"),
        (
            "ssh://git@host/b.git",
            {"vcs_info": COMMITTED} | BELOW,
            f"git+ssh://git@host/b.git@{COMMIT}#subdirectory=a/b",
        ),
        ("https://host/my%20files/x.zip", {"archive_info": HASHES}, "https://host/my%20files/x.zip"),
        ("https://host/x.tar.gz", {"archive_info": {}} | BELOW, "https://host/x.tar.gz#subdirectory=a/b"),
    ],
    ids=["git", "git below", "archive", "archive below"],
)
def test_what_was_installed_from_an_address_is_installed_from_it_again(
    address: str, more: dict[str, Any], url: str, lacking: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(install(tmp_path / "site", {"url": address, **more}))
    pip, verb, what = shlex.split(command())
    assert (pip, verb) == ("pip", "install")
    wanted = Requirement(what)  # raises for what PEP 508 does not know
    assert (wanted.name, wanted.extras, wanted.url) == ("shard-my-repo", {"ray"}, url)


@pytest.mark.parametrize(
    "origin",
    [
        *(None, "", "{", "[]", "{}", {"url": 7, "dir_info": {}}),
        *({"url": "file:///no/such/folder", "dir_info": {}}, {"url": "file:///no/such.whl", "archive_info": {}}),
        *({"url": "https://a/b", "vcs_info": {"vcs": "git"}}, {"url": "file:///", "vcs_info": {"vcs": "git"}}),
    ],
    ids=str,
)
def test_where_nothing_is_known_of_an_install_the_sources_are_named_and_without_them_the_libraries(
    origin: Any, lacking: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(install(tmp_path / "site", origin))
    monkeypatch.chdir(tmp_path)
    assert shlex.split(command()) == ["pip", "install", f"{ROOT}[ray]"]


def test_a_copy_of_unknown_origin_without_its_sources_names_the_libraries(tmp_path: Path) -> None:
    install(tmp_path / "site", None)
    shutil.copytree(ROOT / "sharding", tmp_path / "site/sharding", ignore=shutil.ignore_patterns("__pycache__"))
    script = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "from sharding.core.extras import require\n"
        "try: require('This')\n"
        "except Exception as error: print(error.hint)"
    )
    known = environment() | {"PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=known, cwd=tmp_path)
    assert done.stdout == "Run `pip install torch transformers`.\n", done.stderr


def test_a_checkout_that_is_not_installed_is_named_by_the_command(
    lacking: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = str(in_two_files(tmp_path / "in"))
    for folder, what in ((tmp_path, f"{ROOT}[ray]"), (ROOT, ".[ray]")):
        monkeypatch.chdir(folder)
        done = invoke("shard", source, tmp_path / "out", "--workers", "ray")
        assert done.exit_code == 3 and f"Run `pip install {shlex.quote(what)}`." in done.stderr.replace("\n", "")
    assert not (tmp_path / "out").exists()


def test_no_index_is_said_to_have_this_package() -> None:
    """It has no name there: somebody else may take that."""
    for path in (ROOT / "README.md", ROOT / "app.py", *(ROOT / "docs").rglob("*.md"), *(ROOT / "sharding").rglob("*")):
        if path.suffix in (".py", ".md", ".html"):
            assert "install 'shard-my-repo" not in path.read_text(), path
            assert "install shard-my-repo" not in path.read_text(), path


@pytest.mark.parametrize(
    ("by", "files", "says"),
    [
        ("venvs", {"pipx_metadata.json": "{}"}, "Run `pipx inject x2qCh ray`."),
        (".cache", {"pipx_metadata.json": "{}"}, "Start it with `pipx run --with ray …`"),
        ("uv tool", {"uv-receipt.toml": ""}, "with `--with ray` right behind `uv tool install`."),
        ("archive-v0", {}, "Start it with `uvx --with ray …`"),
        ("venv", {}, "Run `uv pip install --python {} "),
        ("hf-shard", {"pyvenv.cfg": "home = /usr/bin\n"}, "Run `{}/bin/python -m pip install "),
    ],
    ids=["pipx", "pipx run", "uv tool install", "uvx", "uv venv", "extension of hf"],
)
def test_whoever_did_not_install_with_pip_gets_the_command_that_works_there(
    by: str, files: dict[str, str], says: str, lacking: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pipx 1.18 and uv 0.13 leave it."""
    prefix = tmp_path / by / "x2qCh"
    prefix.mkdir(parents=True)
    uv = "" if "pipx_metadata.json" in files else "uv = 0.13.9\n"
    for name, text in {"pyvenv.cfg": f"home = /usr/bin\nimplementation = CPython\n{uv}", **files}.items():
        (prefix / name).write_text(text)
    monkeypatch.setattr(sys, "prefix", str(prefix))
    with pytest.raises(Refused) as refusal:
        require("This", "ray")
    assert says.format(prefix) in refusal.value.hint
