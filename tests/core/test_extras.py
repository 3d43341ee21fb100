"""What a plain install cannot do is refused in a sentence, before anything is written."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from sharding import job
from sharding.core.errors import Refused
from sharding.core.extras import MODULES, require
from sharding.core.options import Options
from tests import models, quantized
from tests.conftest import ROOT, environment, listing, options_of
from tests.kinds.libraries import packages
from tests.promises import promise

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
USUAL = ("requirements.txt", "tests/requirements.txt")
LOADERS = "tests/kinds/requirements.txt"
LOCKED_FOR = {"python_version": "3.11", "python_full_version": "3.11.0"}
"""The Python that `make lock` resolves for."""


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """An install without extras."""
    monkeypatch.setattr("sharding.core.extras.find_spec", lambda module: None)


@pytest.mark.parametrize(
    "choices", [{"strategy": "pp:2"}, {"order": "transformers"}, {"engine": "classic"}, {"compare_rounds": 1}], ids=str
)
def test_a_job_that_needs_an_extra_is_refused_before_anything_is_written(
    plain: None, checkpoint: Path, tmp_path: Path, choices: dict[str, object]
) -> None:
    before = listing(tmp_path)
    options, more = options_of("60kB", choices)
    with pytest.raises(Refused) as refusal:
        list(job.shard(str(checkpoint), str(tmp_path / "out"), options, **more))
    assert refusal.value.exit_status == 3 and "torch, transformers, accelerate" in refusal.value.message
    assert refusal.value.hint == "Run `pip install '.[load]'`."
    assert listing(tmp_path) == before


@pytest.mark.parametrize(
    "ask",
    [
        lambda folder: job.plan(folder, Options("60kB", order="transformers")),
        lambda folder: list(job.compare(folder, folder)),
        lambda folder: job.devices(folder, "cpu=1GB"),
    ],
    ids=["plan", "compare", "devices"],
)
def test_a_question_that_needs_an_extra_is_refused(plain: None, checkpoint: Path, ask: Callable[[str], object]) -> None:
    with pytest.raises(Refused, match="needs libraries that a plain install does not include"):
        ask(str(checkpoint))


def test_what_is_installed_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    require("This")
    monkeypatch.setitem(MODULES, "load", ("json", "no_such_module"))
    with pytest.raises(Refused, match=r"This .*: no_such_module\.$"):
        require("This")


@promise("README.md#install")
def test_neither_plan_nor_shard_of_a_folder_imports_what_an_extra_brings(tmp_path: Path) -> None:
    quantized.save_fp8("qwen3", tmp_path / "fp8")
    models.save("llama", tmp_path / "llama")
    models.save("t5", tmp_path / "t5")
    script = """if True:
        import sys
        from sharding import job
        from sharding.core.options import Options
        blocks = {"dtype": "fp16", "strategy": "blocks"}
        tries = [("llama", {}), ("t5", {"dtype": "fp16"}), ("llama", blocks), ("fp8", {"dequantize": True})]
        for kind, options in tries:
            job.plan(f"./{kind}", Options("60kB", **options))
        print(sorted(sys.modules))
        for kind, options in tries:
            list(job.shard(f"./{kind}", f"./out-{kind}-{len(options)}", Options("60kB", **options)))
            print(sorted(sys.modules))
    """
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=True, cwd=tmp_path)
    planned, *sharded = done.stdout.splitlines()
    heavy = {"torch", "transformers", "accelerate", "gradio", "pandas", "starlette", "ray", "plotly"}
    assert {name for name in heavy | {"numpy", "ml_dtypes"} if f"'{name}'" in planned} == set()
    assert {name for name in heavy if f"'{name}'" in sharded[-1]} == set()
    assert ["'ml_dtypes'" in modules for modules in sharded] == [False, True, True, True]


def test_every_range_that_the_package_asks_for_holds_the_version_that_is_pinned() -> None:
    pinned = versions(*USUAL)
    ranges = sum(PROJECT["optional-dependencies"].values(), PROJECT["dependencies"])
    asked = [wanted for wanted in map(Requirement, ranges) if wanted.name != PROJECT["name"]]
    assert asked
    for wanted in asked:
        assert wanted.specifier.contains(pinned[canonicalize_name(wanted.name)]), wanted


@promise("docs/security.md#somebody-who-replaces-a-package-in-a-registry")
@pytest.mark.parametrize(
    ("lock", "files"), [(".ci/requirements.lock", USUAL), (".ci/thorough.lock", (LOADERS,))], ids=["usual", "thorough"]
)
def test_the_lock_file_of_ci_names_the_versions_that_are_pinned_and_their_hashes_torch_excepted(
    lock: str, files: tuple[str, ...]
) -> None:
    pinned = versions(*files)
    assert ("torch" in pinned) == (files == USUAL)
    pinned.pop("torch", None)
    assert versions(lock) == pinned
    for entry in (ROOT / lock).read_text().replace("\\\n", " ").splitlines():
        assert entry.startswith("#") or re.fullmatch(r"[\w.-]+==\S+( +--hash=sha256:[0-9a-f]{64})+", entry), entry


def test_the_lock_file_of_ci_lacks_nothing_that_a_package_in_it_needs() -> None:
    pinned = versions(*USUAL).keys()
    asked = [Requirement(line) for line in (ROOT / "requirements.txt").read_text().splitlines() if "[" in line]
    extras = {canonicalize_name(wanted.name): wanted.extras for wanted in asked}
    for name in pinned - {"torch"}:
        for text in distribution(name).requires or ():
            wanted = Requirement(text)
            chosen = ["", *extras.get(name, ())]
            if not wanted.marker or any(wanted.marker.evaluate(LOCKED_FOR | {"extra": extra}) for extra in chosen):
                assert canonicalize_name(wanted.name) in pinned, f"{name} needs {wanted}"


@promise("README.md#install")
def test_the_pythons_that_work_are_those_in_the_readme_and_the_oldest_is_asked_for() -> None:
    begin = "Programming Language :: Python :: "
    pythons = [one.removeprefix(begin) for one in PROJECT["classifiers"] if one.startswith(begin)]
    (said,) = re.findall(r"needs Python (.*?) on Linux", " ".join((ROOT / "README.md").read_text().split()))
    assert re.split(", | or ", said) == pythons and PROJECT["requires-python"] == f">={pythons[0]}"
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in pythons


def test_no_package_is_pinned_twice() -> None:
    assert not versions(*USUAL).keys() & versions(LOADERS).keys()


@pytest.mark.thorough
def test_what_loads_other_kinds_finds_all_that_it_needs_in_the_versions_that_are_pinned() -> None:
    """Pip is kept from looking: it would bring another build of torch. Of verl only the merger is run."""
    pinned = versions(*USUAL, LOADERS)
    there = {canonicalize_name(one.name): one for one in distributions(path=[str(packages())])}
    installed = {name: one for name, one in there.items() if name in versions(LOADERS)}
    assert {name: one.version for name, one in installed.items()} == versions(LOADERS)
    for name, one in installed.items():
        for wanted in map(Requirement, (one.requires or ()) if name != "verl" else ()):
            if not wanted.marker or wanted.marker.evaluate({"extra": ""}):
                version = pinned.get(canonicalize_name(wanted.name))
                assert version and wanted.specifier.contains(version), f"{name} needs {wanted}"


def versions(*files: str) -> dict[str, str]:
    """The version of every package that `files` name."""
    lines = [line for file in files for line in (ROOT / file).read_text().splitlines()]
    pins = [Requirement(line.removesuffix(" \\")) for line in lines if line and not line.startswith(("#", " "))]
    return {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in pins}
