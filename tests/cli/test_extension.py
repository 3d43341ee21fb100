"""The command is called as it was started: by its own name, or as an extension of `hf`."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.commands import run_process
from tests.conftest import ROOT, environment


def run_as(name: str, prefix: str, *words: object) -> "subprocess.CompletedProcess[str]":
    """Run a command as the console script `name` of the virtual environment at `prefix` does."""
    program = f"import sys\nsys.argv[0] = '{prefix}/bin/{name}'\nsys.prefix = '{prefix}'\n"
    return run_process(*words, program=f"{program}from sharding.cli.start import main\nmain()")


@pytest.mark.parametrize(
    ("name", "prefix", "called"),
    [
        ("hf-shard", "/home/me/hf-shard/venv", "hf shard"),
        ("hf-shard", "/home/me/.venv", "hf-shard"),
        ("shard-my-repo", "/home/me/.venv", "shard-my-repo"),
    ],
)
def test_help_and_messages_name_the_command_as_it_was_called(
    name: str, prefix: str, called: str, tmp_path: Path
) -> None:
    save_file({"q_proj.lora_A.weight": np.ones((1, 2), np.float32)}, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "owner/base"}')
    ways = (["--help"], ["plan", "--help"], ["plan"], ["--nonsense"], ["localhub", "--help"])
    shown = [run_as(name, prefix, *words) for words in ways]
    advised = [run_as(name, prefix, "plan", tmp_path, *way) for way in ([], ["--base", "owner/base", "--json"])]
    text = "".join(done.stdout + done.stderr for done in shown + advised)
    for words in ("shard owner/name", "plan owner/name", "plan --help", "--help", "localhub --folder"):
        assert f"{called} {words}" in text
    assert [done.stderr.count(f"To merge it: {called} shard owner/base ./merged --adapter") for done in advised] == [
        1,
        1,
    ]
    assert {other for other in ("hf shard ", "hf-shard ", "shard-my-repo ") if other in text} == {f"{called} "}


@pytest.mark.thorough
def test_hf_installs_the_extension_and_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `hf extensions install OWNER/hf-shard` and `hf shard` do, with this folder in the place of GitHub."""
    from huggingface_hub.cli import extensions

    def run(command: list[str], *, check: bool = False, **more: object) -> "subprocess.CompletedProcess[str]":
        here = [str(ROOT) if word == "https://github.com/alice/hf-shard/archive/HEAD.zip" else word for word in command]
        ran.append(here)
        return real(here, check=check, **more)  # type: ignore[call-overload, no-any-return]

    ran: list[list[str]] = []
    real = subprocess.run
    monkeypatch.setattr(extensions, "EXTENSIONS_ROOT", tmp_path)
    owner, repo, name = extensions._normalize_repo_id("alice/hf-shard")
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(extensions, "_fetch_latest_commit_sha", lambda **_: "0" * 40)
    monkeypatch.setattr(extensions, "_fetch_remote_binary", lambda **_: None)
    monkeypatch.setattr(extensions, "_try_fetch_remote_description", lambda **_: "")
    extensions._install_extension(owner=owner, repo_name=repo, short_name=name)
    assert any(str(ROOT) in command for command in ran)
    hf = f"import sys\nfrom pathlib import Path\nfrom huggingface_hub.cli import extensions\nextensions.EXTENSIONS_ROOT = Path({str(tmp_path)!r})\n"
    hf += "sys.exit(extensions.dispatch_unknown_top_level_extension(['shard', 'plan', '--help'], {'repos', 'auth'}))"
    env = {name: text for name, text in environment().items() if name != "PYTHONPATH"} | {
        "HF_HUB_DISABLE_UPDATE_CHECK": "1"
    }
    done = real([sys.executable, "-c", hf], capture_output=True, text=True, env=env, cwd=tmp_path)
    assert done.returncode == 0 and "Usage: hf shard plan [OPTIONS] SOURCE" in done.stdout, done.stderr
