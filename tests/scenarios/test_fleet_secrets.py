"""Of a job on several machines only the process of the command has the login: nobody else's, and no file."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import psutil
import pytest

from tests.clusters import Cluster, of_session, wait_until
from tests.fleets import Fleet, files_with, fleet, processes_with, slow_parts, variables
from tests.hubs import push
from tests.inhouse import InHouse, hub_in_house
from tests.scenarios.test_fleet import SIZE, plain

NUMBERS = count(1000)
TOKEN = "hf_keeper-of-the-keys"
"""Of a user whose name stands nowhere else."""
PLACES = {"variable": ("environ", "cmdline"), "saved": ("environ", "cmdline", "memory")}
"""Where to look for it in processes, by how somebody is signed in."""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InHouse]:
    users = ("alice", "keeper-of-the-keys")
    orgs = {"acme": users}
    with hub_in_house(tmp_path_factory.mktemp("hub"), xet_over_http=True, users=users, orgs=orgs) as hub:
        yield hub


@pytest.fixture
def source(hub: InHouse, tmp_path: Path) -> str:
    return push(hub, plain(tmp_path)[0], f"acme/source-{next(NUMBERS)}", private=True)


def test_the_search_finds_what_a_process_knows_and_what_a_file_holds(tmp_path: Path) -> None:
    script = "word = '-'.join(['hf_of', 'the', 'memory']); print(flush=True); input()"
    words = {"environ": "hf_of-the-environment", "cmdline": "hf_of-the-arguments", "memory": "hf_of" + "-the-memory"}
    env = os.environ | {"WORD": words["environ"]}
    command = [sys.executable, "-c", script, words["cmdline"]]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as process:
        assert process.stdout
        process.stdout.readline()
        for place, word in words.items():
            assert f"{place} of {process.pid}" in processes_with(word, [psutil.Process(process.pid)])
        assert not processes_with("hf_somebody" + "-else", [psutil.Process(process.pid)])
        process.communicate(b"\n")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/one").write_text(f"It was {TOKEN}.")
    (tmp_path / "other").write_text("It was nothing.")
    assert files_with(TOKEN, tmp_path) == [str(tmp_path / "logs/one")]


@pytest.fixture
def homes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """The variables of somebody who is signed in: by one of them, or by what `hf auth login` has saved."""
    home = tmp_path_factory.mktemp("home")
    (home / "token").write_text(TOKEN)
    return {"variable": {"HF_TOKEN": TOKEN}, "saved": {"HF_HOME": str(home)}}


def search(job: Fleet, session: int, login: str, *folders: Path) -> None:
    """Look everywhere while a job is under way; its command waits meanwhile, so that the job cannot end.

    hf-xet looks itself through the variables of all processes of a machine, and so remembers those of the command.
    """
    command = psutil.Process(job.process.pid)
    command.suspend()
    assert job.process.poll() is None
    assert processes_with(TOKEN, [command])  # so the others are not searched in vain
    processes = [process for process in of_session(session) if process.pid != command.pid]
    assert len(processes) > 5  # Ray's own and its workers
    assert processes_with(TOKEN, processes, PLACES[login]) == []
    assert files_with(TOKEN, *folders) == []
    command.resume()


@pytest.mark.thorough
@pytest.mark.parametrize(("login", "to_folder"), [("variable", False), ("saved", False), ("variable", True)])
def test_no_node_ever_has_the_login(
    login: str,
    to_folder: bool,
    homes: dict[str, dict[str, str]],
    cluster: Cluster,
    hub: InHouse,
    source: str,
    tmp_path: Path,
) -> None:
    out = tmp_path / "shared" if to_folder else f"acme/made-{next(NUMBERS)}"
    env = variables(cluster, hub, "") | homes[login]
    with fleet(env, source, out, "-s", SIZE) as job:
        with slow_parts(hub, to_folder):
            job.at_work("transfer")
            search(job, cluster.session, login, cluster.folder, tmp_path)
            if not to_folder:  # which is read too quickly
                job.at_work("verify")
                search(job, cluster.session, login, cluster.folder, tmp_path)
        job.finish()
    assert processes_with(TOKEN, cluster.processes(), PLACES[login]) == []
    assert files_with(TOKEN, cluster.folder, tmp_path) == []


@pytest.mark.thorough
def test_no_node_that_the_command_starts_itself_ever_has_the_login(
    homes: dict[str, dict[str, str]], hub: InHouse, source: str, tmp_path: Path
) -> None:
    login = "saved"
    env = variables(None, hub, "") | homes[login]
    with fleet(env, source, tmp_path / "out", "-s", SIZE) as job:
        with slow_parts(hub, to_folder=True):
            job.at_work("transfer")
            ray_folder = folder_of_ray(job.process.pid)
            search(job, job.process.pid, login, ray_folder, tmp_path)
        job.finish()
        wait_until(lambda: not of_session(job.process.pid))
        assert ray_folder.is_dir()
        assert files_with(TOKEN, ray_folder, tmp_path) == []


def folder_of_ray(session: int) -> Path:
    """Return where Ray has its files, as it tells each of its processes."""
    said = " ".join(word for process in of_session(session) for word in process.cmdline())
    found = re.search(r"(/\S*?/session_\d[^/\s]*)", said)
    assert found
    return Path(found[1])
