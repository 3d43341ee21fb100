"""Show checkpoints, plans, events and outcomes to a person at a terminal."""

import logging
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as Bar
from rich.table import Column, Table
from rich.text import Text
from typing_extensions import override

from sharding.core.environment import as_called
from sharding.core.errors import ShardingError
from sharding.core.events import PHASES, Phase, Planned, Progress, Published, ShardFinished, Verified
from sharding.core.made import phrase
from sharding.core.protocols import Discarded
from sharding.core.text import (
    count,
    ends,
    format_bytes,
    name_some,
    share,
    unchecked_sentence,
    undecided_sentence,
    unreached_sentence,
)
from sharding.core.values import Content, Finding, Plan
from sharding.core.verification import Difference, Verification
from sharding.loading.costs import Compared, Comparison, Probed
from sharding.planning.devices import DevicePlan
from sharding.planning.plan import gathered
from sharding.report.comparison import summarize_comparison
from sharding.report.schema import FleetCost, Report

_MOST_ROWS = 40
_MOST_NAMES = 5  # The most files that one line names.
_TOGETHER = {"transfer", "verify"}  # The phases that go on side by side.


class Terminal(logging.Handler, AbstractContextManager["Terminal"]):
    """A person's view of a command. As a context, it shows what this package logs, and ends the bar at the end."""

    def __init__(self, results: Console, passing: Console) -> None:
        """Show results on `results`, and progress, findings and errors on `passing`."""
        super().__init__()
        self._results = results
        self._passing = passing
        for console in (results, passing):
            console.width = console.width or 80  # a notebook may say 0, and then nothing would be shown
        self._bar = self._new_bar()
        self._latest: dict[Phase, Progress] = {}  # of each phase that is not done, in the order in which they began
        self._done = set[Phase]()
        self._kept: list[str] = []

    def __enter__(self) -> "Terminal":
        logging.getLogger("sharding").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("sharding").removeHandler(self)
        self._end_bar()

    @override
    def emit(self, record: logging.LogRecord) -> None:
        self._mention(record.getMessage(), "yellow")

    def _checkpoint(self, checkpoint: Content) -> None:
        dtypes = ", ".join(sorted({tensor.dtype for tensor in checkpoint.tensors}))
        parameters = sum(tensor.parameters for tensor in checkpoint.tensors)
        tensors_in = checkpoint.tensors_in
        name = checkpoint.source.words
        self._say(f"{name}: {checkpoint.architecture or 'no architecture named'}", "bold")
        size = format_bytes(checkpoint.total_bytes)
        self._say(f"{count(len(checkpoint.tensors), 'tensor')}, {parameters:,} parameters, {size} in {dtypes}")
        self._files([(file.path, tensors_in.get(file.path, 0), file.bytes) for file in checkpoint.weight_files])
        if checkpoint.side_files:
            self._say(f"Other files: {name_some([file.path for file in checkpoint.side_files], _MOST_NAMES)}")
        self.findings(checkpoint.findings)

    def _plan(self, plan: Plan) -> None:
        limit = "" if plan.options.is_single_file else f" of at most {format_bytes(plan.options.max_shard_bytes)}"
        self._say(f"{count(len(plan.shards), 'shard')}{limit}, order {plan.options.order}{phrase(plan.made)}", "bold")
        self._files([(shard.file, len(shard.tensors), shard.bytes) for shard in plan.shards])
        self._stages(plan)
        self.findings(gathered(plan))

    def event(self, event: Any) -> None:
        """Show one event of a job, or what another command yields."""
        if self._kept and not isinstance(event, ShardFinished):
            names, self._kept = self._kept, []
            kept = f"{count(len(names), 'shard')} ({name_some(names, _MOST_NAMES)})"
            self._mention(f"Kept from an earlier run: {kept}", "dim")
        match event:
            case Content():
                self._checkpoint(event)
            case DevicePlan():
                self._devices(event)
            case Discarded():
                self._discarded(event)
            case (_, _, dict() as recipes):
                for name, sentence in recipes.items():
                    self._say(f"{name}: {sentence}")
            case Planned(Content(findings=findings), plan) | (findings, Plan() as plan, None):
                self.findings(findings)
                self._plan(plan)
            case Progress():
                self._progress(event)
            case ShardFinished():
                self._kept += [event.file] * event.kept
            case Verified():
                self.verification(event.verification)
            case Probed():
                load, turn = event.cost, f"round {event.round} of {event.rounds}" if event.round else "warm-up"
                figures = f"{load.working_seconds:.1f} s, {format_bytes(load.peak_anon_bytes)} anonymous"
                told = figures if load.outcome == "loaded" else load.message
                self._mention(f"{turn}, {event.side}: {told}", "dim")
            case Compared():
                self.comparison(event.comparison)
            case Published():
                self._say(f"Published: {event.place}", "bold")
                if event.remark:
                    self._mention(event.remark, "yellow")
            case Report():
                cost = event.resources
                self._say(
                    f"{count(len(event.shards), 'shard')} in {event.destination.repo_id} after {cost.seconds:.1f} s, "
                    f"with at most {format_bytes(cost.peak_anon_bytes)} of anonymous memory; "
                    f"{format_bytes(cost.bytes_read)} read in {count(cost.read_requests, 'request')}, "
                    f"{format_bytes(cost.disk_bytes_written)} written, "
                    f"{format_bytes(cost.bytes_uploaded)} uploaded."
                )
                codes = ("no-change", "cannot-be-judged")
                self.findings(finding for finding in event.plan.findings if finding.code in codes)
                if event.fleet:
                    self._fleet(event.fleet)
                for name, numbers in islice(event.overflowed.items(), _MOST_ROWS):
                    self._mention(f"{name}: {numbers:,} numbers were too large and became infinite.", "yellow")
                if len(event.overflowed) > _MOST_ROWS:
                    self._mention(f"and {len(event.overflowed) - _MOST_ROWS:,} more such tensors", "yellow")

    def _discarded(self, discarded: Discarded) -> None:
        removed = f"Removed the staged shards{' and the repo that the job made' * discarded.repo_deleted}."
        self._say(removed if discarded.found else "There is no unfinished job.")
        if discarded.remark:
            self._mention(discarded.remark, "yellow")

    def verification(self, verification: Verification) -> None:
        """Say whether two checkpoints are the same. If not, list the first differences."""
        self._end_bar()
        kind = verification.outcome.kind
        is_good = kind == "identical" and not verification.unreached
        self._say(verification.sentence, "green" if is_good else "bold red" if kind == "different" else "yellow")
        if kind == "different" and verification.undecided:
            self._say(undecided_sentence(verification.undecided), "yellow")
        for place in verification.unreached:
            self._say(unreached_sentence(place), "yellow")
        for sentence in verification.advice:
            self._say(sentence, "yellow")
        differences = verification.differences or ()
        self._differences(differences)
        measured = {one.tensor for one in differences}
        others = (mismatch for mismatch in verification.mismatches if mismatch.tensor not in measured)
        for mismatch in islice(others, _MOST_ROWS):
            self._say(f"  {mismatch.tensor}: {mismatch.problem}")
        self._say(f"({verification.method}; {verification.seconds:.1f} s)", "dim")
        if verification.unchecked:
            self._say(unchecked_sentence(verification.unchecked))

    def comparison(self, comparison: Comparison) -> None:
        """Show the verdict on loading, then a table of medians with their spread."""
        self._end_bar()
        self._say(comparison.verdict.sentence, "bold")
        if comparison.reason_not_measured:
            self._mention(f"Not measured: {comparison.reason_not_measured}", "yellow")
            return
        summary = summarize_comparison(comparison)
        (first, *others), *rows = summary.table
        self._table(first, (), rows, others)
        self._say(summary.how, "dim")

    def _devices(self, plan: DevicePlan) -> None:
        blocks = f"{count(plan.blocks, 'block')} ({', '.join(plan.no_split_classes)}) that are never split"
        self._say(f"{plan.class_name}: {blocks}", "bold")
        rows = []
        for load in plan.devices:
            budget = format_bytes(load.budget_bytes) if load.budget_bytes else ""
            rows.append(
                (load.device, format_bytes(load.bytes), budget, f"{len(load.modules):,}", f"{len(load.files):,}")
            )
        self._table("device", ("weights", "budget", "modules", "files"), rows)
        rest = plan.trouble or "The rest stays on disk and is read at every pass."
        fits = "It fits." if plan.fits else f"It does not fit. {rest}"
        style = "green" if plan.fits else "yellow"
        self._say(f"{fits} The budgets cover weights only. Activations need more memory.", style)
        for line in plan.snippet.splitlines():
            self._say(line)

    def findings(self, findings: Iterable[Finding]) -> None:
        """Show the first findings, one line each."""
        rows = list(findings)
        for finding in rows[:_MOST_ROWS]:
            style = "yellow" if finding.level == "warning" else "dim"
            self._mention(f"{finding.level}: {finding.message} {finding.hint}".rstrip(), style)
        if rows[_MOST_ROWS:]:
            self._mention(f"and {len(rows) - _MOST_ROWS:,} more such remarks", "dim")

    def error(self, error: ShardingError) -> None:
        """Say what went wrong and what to do."""
        self._end_bar()
        self._mention(error.message, "bold red")
        if error.hint:
            self._mention(error.hint)

    def _differences(self, differences: Sequence[Difference]) -> None:
        """Show every difference. Names stand last and whole, however narrow the terminal is."""
        if differences:
            self._say("largest     mean        cosine        equal    tensor")
        for one in differences:
            figures = [f"{number:.3e}" if number is not None else "-" for number in (one.largest_abs, one.mean_abs)]
            cosine = "-" if one.cosine is None else f"{one.cosine:.8f}"
            equal = "-" if one.equal is None else _share(one.equal)
            note = f" ({one.note})" if one.note else ""
            self._say(f"{figures[0]:<12}{figures[1]:<12}{cosine:<14}{equal:<9}{one.tensor}{note}")

    def _progress(self, event: Progress) -> None:
        # One bar, and a line for each phase that is done: a notebook has no cursor that moves up to another.
        if event.phase in self._done and event.bytes_done >= event.bytes_total:
            return
        if not {event.phase, *self._latest} <= _TOGETHER:
            self._latest = {phase: last for phase, last in self._latest.items() if phase == event.phase}
        self._latest[event.phase] = event
        while self._latest:
            first = next(iter(self._latest.values()))
            self._draw(first)
            if first.bytes_done < first.bytes_total:
                break
            self._done.add(first.phase)
            del self._latest[first.phase]
            self._end_bar()

    def _draw(self, event: Progress) -> None:
        words = PHASES[event.phase]
        if event.workers:
            memory = format_bytes(sum(worker.anon_bytes for worker in event.workers))
            words += f": {count(len(event.workers), 'worker')}, {memory}"
        done, total = event.bytes_done, event.bytes_total
        if [task.fields["phase"] for task in self._bar.tasks] == [event.phase]:
            self._bar.update(self._bar.task_ids[0], description=words, completed=done)
            return
        for old in self._bar.task_ids:
            self._bar.remove_task(old)
        self._bar.add_task(words, total=total, completed=done, phase=event.phase)
        self._bar.start()

    def _new_bar(self) -> Bar:
        kinds = (DownloadColumn, TransferSpeedColumn, TimeRemainingColumn)
        figures = (kind(table_column=Column(no_wrap=True)) for kind in kinds)
        description = TextColumn("{task.description}", table_column=Column(no_wrap=True))
        return Bar(description, BarColumn(bar_width=None), *figures, console=self._passing)

    def _end_bar(self) -> None:
        if self._bar.live.is_started:  # otherwise rich prints an empty line where nobody watches
            self._bar.stop()
            self._bar = self._new_bar()

    def _fleet(self, fleet: FleetCost) -> None:
        rows = []
        for cost in fleet.nodes[:_MOST_ROWS]:
            sizes = (format_bytes(cost.bytes), f"{cost.seconds:.1f} s", format_bytes(cost.peak_anon_bytes))
            rows.append((_plain(cost.node), f"{cost.parts:,}", *sizes))
        self._table(fleet.engine, ("parts", "size", "working", "largest worker"), rows)
        if fleet.nodes[_MOST_ROWS:]:
            self._say(f"and {len(fleet.nodes) - _MOST_ROWS:,} more nodes")
        if fleet.repeated:
            self._mention(f"Started again: {name_some(fleet.repeated, _MOST_ROWS)}", "yellow")

    def _files(self, files: Sequence[tuple[str, int, int]]) -> None:
        """Show files, each with its tensors and its bytes: the first and the last ones if they are many."""
        total = sum(size for _, _, size in files)
        rows: list[tuple[str | Text, ...]] = [
            (_plain(file), f"{tensors:,}", format_bytes(size), share(size, total)) for file, tensors, size in files
        ]
        if len(rows) > _MOST_ROWS:
            half = _MOST_ROWS // 2
            rows[half:-half] = [(f"({len(rows) - _MOST_ROWS} more)",)]
        self._table("file", ("tensors", "size", "share"), rows)

    def _stages(self, plan: Plan) -> None:
        stages, cut, rank = plan.stages, plan.pipeline, plan.options.rank
        if cut is None:
            return
        if rank is not None:
            start, end = cut.layers[rank]
            self._say(f"Rank {rank} of {len(cut.layers)} loads layers {start} to {end - 1} of {cut.layers[-1][1]}.")
            return
        rows = []
        for number, stage in enumerate(stages, start=1):
            blocks, files = (_plain(ends(names)) for names in (stage.blocks, stage.files))
            rows.append((str(number), format_bytes(stage.bytes), blocks, files))
        self._table("stage", ("size",), rows, ("blocks", "files"))
        for number, stage in enumerate(stages, start=1):
            for tied in stage.also_needs:
                used_as = ", ".join(tied.used_as)
                self._say(f"Stage {number} also needs {tied.file}: {tied.tensor} in it is also {used_as}.")
        self._say(f"Cut as transformers {cut.transformers} cuts. Stage 1 is rank 0.")

    def _table(
        self, names: str, figures: Sequence[str], rows: Iterable[Sequence[str | Text]], words: Sequence[str] = ()
    ) -> None:
        table = Table(box=None, pad_edge=False)
        table.add_column(names, no_wrap=True)
        for name in (*figures, *words):
            table.add_column(name, justify="right" if name in figures else "left")
        for row in rows:
            table.add_row(*row)
        self._results.print(table)

    def _say(self, text: str, style: str = "") -> None:
        self._results.print(_plain(text, style))

    def _mention(self, text: str, style: str = "") -> None:
        self._passing.print(_plain(text, style))


def _share(share: float) -> str:
    """Return a share in percent. Only all is 100.00%, and only nothing is 0.00%.

    >>> _share(1.0), _share(0.99999), _share(0.5), _share(0.00001), _share(0.0)
    ('100.00%', '>99.99%', '50.00%', '<0.01%', '0.00%')
    """
    text = f"{share:.2%}"
    if text == "100.00%" and share < 1:
        return ">99.99%"
    return "<0.01%" if text == "0.00%" and share > 0 else text


def _plain(text: str, style: str = "") -> Text:
    # Names come from files of strangers, so neither markup nor control characters may reach the screen.
    text = as_called(text)
    return Text("".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text), style)
