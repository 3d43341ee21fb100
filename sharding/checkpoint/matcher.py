"""Match regular expressions that a stranger wrote, in a process of its own that may take little memory and time.

It imports nothing but Python's own library. Each line of its input is a JSON object: `more` are texts to
remember, `pattern` is to match all of them from the number `first` on. Each line that it writes is the answer: `found`
has the number of each text that matches as a whole, with its group "idx" or null. Or `error` says what is wrong.
"""

import json
import re
import resource
import sys
from contextlib import suppress


def limit(most_bytes: int, most_seconds: int) -> None:
    """Limit the memory and the processor's time of this process."""
    for kind, most in ((resource.RLIMIT_AS, most_bytes), (resource.RLIMIT_CPU, most_seconds)):
        _, hard = resource.getrlimit(kind)
        with suppress(OSError, ValueError):  # macOS has no limit of address space; the caller's limit of time remains
            resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def answer(texts: list[str], asked: dict[str, object]) -> dict[str, object]:
    """Return the answer to one line."""
    try:
        form = re.compile(str(asked["pattern"]))
        matches = ((number, form.fullmatch(texts[number])) for number in range(int(str(asked["first"])), len(texts)))
        return {"found": [(number, match.groupdict().get("idx")) for number, match in matches if match]}
    except re.error as error:
        return {"error": str(error)}
    except (MemoryError, OverflowError, RecursionError):
        return {"error": "it is too large"}


def main() -> None:
    """Answer until the input ends."""
    limit(int(sys.argv[1]), int(sys.argv[2]))
    texts: list[str] = []
    for line in sys.stdin:
        asked = json.loads(line)
        texts += asked["more"]
        sys.stdout.write(json.dumps(answer(texts, asked)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
