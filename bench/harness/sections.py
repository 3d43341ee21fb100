"""Put a section into bench/RESULTS.md."""

from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "RESULTS.md"


def replace_section(results: Path, heading: str, content: str) -> None:
    """Put `content` under `heading`, in place of what is there; a new heading goes to the end."""
    text = results.read_text()
    start = text.find(f"\n{heading}\n") + 1 or len(text)
    end = text.find("\n## ", start + len(heading))
    rest = text[end:] if end >= 0 else ""
    results.write_text(f"{text[:start].rstrip()}\n\n{heading}\n\n{content}\n{rest}")
