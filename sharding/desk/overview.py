"""Count the tensors of a checkpoint that is too large for the page, in a child process that frees all its memory."""

import json
import resource
import subprocess
import sys
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from sharding.core.environment import child_command, reading_variables
from sharding.core.errors import SourceError
from sharding.core.limits import MAX_OVERVIEW_BYTES
from sharding.report.report import Problem, summarize_source
from sharding.report.schema import Inspection

OVERVIEW_SECONDS = 90.0  # Longest time to count so many tensors. A million take half of it.
OVERVIEW_BYTES = 4_000_000_000  # Memory that counting may take. A million tensors take a third of it.


@dataclass(frozen=True, slots=True)
class Overview:
    """The counts of a checkpoint, and a picture (SVG) of its layers in the files that it has today."""

    source: Inspection
    picture: str


Question = tuple[str, str, str, str, str | None]  # `source`, `variant`, `base`, `endpoint` and `token`.
_ANSWER, _PROBLEM = TypeAdapter(Overview), TypeAdapter(Problem)


def ask_overview(question: Question) -> Overview:
    """Return the counts. A million tensors take seconds, and a gigabyte of memory. Raises SourceError."""
    command = child_command("sharding.desk.overview")
    try:
        done = subprocess.run(
            command,
            input=json.dumps(question).encode(),
            capture_output=True,
            env=reading_variables(),
            timeout=OVERVIEW_SECONDS,
        )
        if done.returncode == SourceError.exit_status:
            problem = _PROBLEM.validate_json(done.stdout)
            raise SourceError(problem.message, problem.hint, problem.remedy)
        if len(done.stdout) <= MAX_OVERVIEW_BYTES:
            return _ANSWER.validate_json(done.stdout)
    except (subprocess.TimeoutExpired, ValidationError, ValueError):
        pass
    raise SourceError(
        "Counting the tensors of this checkpoint takes too long here.", "Run `shard-my-repo inspect` on your machine."
    )


def main() -> int:
    """Answer the question on standard input. Return the exit status."""
    from sharding import job
    from sharding.core.errors import ShardingError
    from sharding.drawing.map_svg import draw_map
    from sharding.drawing.model_map import map_of_copy

    resource.setrlimit(resource.RLIMIT_AS, (OVERVIEW_BYTES, OVERVIEW_BYTES))
    source, variant, base, endpoint, token = json.load(sys.stdin.buffer)
    try:
        checkpoint = job.inspect(source, variant=variant, base=base, endpoint=endpoint, token=token)
    except ShardingError as error:
        sys.stdout.write(json.dumps(error.document()))
        return SourceError.exit_status
    summary = summarize_source(checkpoint)
    title = f"{checkpoint.source.name}: {summary.tensors:,} tensors"
    overview = Overview(summary, draw_map(map_of_copy(checkpoint, None), title))
    sys.stdout.buffer.write(_ANSWER.dump_json(overview))
    return 0


if __name__ == "__main__":
    sys.exit(main())
