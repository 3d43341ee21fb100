"""What the project promises, each with the tests that would fail if it were broken."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path("tests/promises")


@dataclass(frozen=True)
class Promise:
    """A sentence, where the project says it, and the tests that hold it."""

    says: str
    where: list[str]
    tests: list[str]


def read(root: Path) -> dict[str, Promise]:
    """Return every promise of the lists below `root` by its name. Raises ValueError where two have one name."""
    promises: dict[str, Promise] = {}
    for path in sorted((root / FOLDER).glob("*.toml")):
        for name, entry in tomllib.loads(path.read_text()).items():
            if name in promises:
                raise ValueError(f"{path.name}: {name} is the name of another promise.")
            promises[name] = Promise(**entry)
    return promises
