"""Write what a Space needs into the folder `space/`: `make space OWNER=name`.

Only files that git tracks are copied, so that no local file goes along. Tests and benchmarks stay behind. `README.md`
gets the front matter in `.ci/space.yml`, which a Hub reads and GitHub would show as a table. The addresses of the Space
get the name of its owner: with `OWNER` in them, the Space would show no thumbnail, and `uvx` would find nothing.
"""

import re
import shutil
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

FOLDER = Path("space")
FRONT_MATTER = Path(".ci/space.yml")
NAME = "shard-my-repo"
PLACEHOLDERS = ("OWNER", "YOU")
# What is read or run apart from the docs: its addresses get the owner's name.
ADDRESSED = ("README.md", "docs/colab.ipynb", "jobs/shard.py", "llms.txt", "skills/shard-my-repo/SKILL.md")
LEFT_OUT = ("tests/*", "bench/*", ".ci/*")
# The docs show the results, and a copy of the Space is to make the next one.
KEPT = ("bench/*.md", "bench/*.svg", ".ci/space.py", ".ci/space.yml")
_ADDRESS = re.compile(rf"huggingface\.co/spaces/[\w.-]+/{NAME}\b")
# What huggingface_hub.utils.validate_repo_id takes for the first part of an id.
_OWNER = re.compile(r"(?![-.])(?!.*(?:--|\.\.))[A-Za-z0-9_.-]{1,80}(?<![-.])")
_TOKEN = re.compile(rb"\bhf_[A-Za-z0-9]{30,}")


def main(arguments: list[str]) -> str | None:
    """Return what is wrong, as a sentence and what to do; else None, after the next commands are printed."""
    owner = arguments[0] if arguments else ""
    if not owner or owner in PLACEHOLDERS:
        return "OWNER is missing. Give your account or organisation on the Hub: make space OWNER=your-account"
    if not _OWNER.fullmatch(owner):
        return f"{owner!r} is not the name of an account on the Hub. Give the name alone: make space OWNER=your-account"
    if (FOLDER / ".git").exists():
        return f"{FOLDER}/ is a git repository. Move it away: this command replaces the folder."
    files = _files()
    if not files:
        return "git lists no files here. Run this in a clone, made with git clone."
    if secrets := [str(file) for file in files if _TOKEN.search(file.read_bytes())]:
        return f"{', '.join(secrets)} seems to hold a token of the Hub. Remove it, and revoke that token."
    if FOLDER.exists():
        shutil.rmtree(FOLDER)
    for file in files:
        (FOLDER / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, FOLDER / file)
    readme = FOLDER / "README.md"
    address = f"huggingface.co/spaces/{owner}/{NAME}"
    text = readme.read_text(encoding="utf-8")
    text = text.split("---\n", 2)[2].lstrip() if text.startswith("---\n") else text  # a copy of a Space has one already
    text = f"---\n{FRONT_MATTER.read_text(encoding='utf-8')}---\n\n{text}"
    readme.write_text(text, encoding="utf-8")
    for path in (FOLDER / name for name in ADDRESSED):
        path.write_text(_ADDRESS.sub(address, path.read_text(encoding="utf-8")), encoding="utf-8")
    size_bytes = sum((FOLDER / file).stat().st_size for file in files)
    print(f"{FOLDER}/ has {len(files)} files ({size_bytes / 1e6:.1f} MB) for https://{address}. Upload it:")
    print(f"  hf upload {owner}/{NAME} {FOLDER} . --type space")
    return None


def _files() -> list[Path]:
    """The tracked files that a Space needs, in git's order. A file that was deleted here is none."""
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True)
    names = [name for name in listed.stdout.split("\0") if name]
    wanted = [name for name in names if _matches(name, KEPT) or not _matches(name, LEFT_OUT)]
    return [file for file in map(Path, wanted) if file.is_file() and not file.is_symlink()]


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


if __name__ == "__main__":
    problem = main(sys.argv[1:])
    if problem:
        print(problem, file=sys.stderr)
        sys.exit(2)
