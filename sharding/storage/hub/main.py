"""Check whether a result may replace what is on `main` of a repo, and publish it there."""

from collections.abc import Iterable, Sequence, Set
from contextlib import suppress

from sharding.core.errors import DestinationError, Remedy, ReplaceRefused
from sharding.core.origin import Place
from sharding.core.text import name_some
from sharding.core.values import ShardRecord, StagedJob, folders_around
from sharding.formats.names import REPORT_NAME, refuse_clashes, rivals
from sharding.storage.hub.repo import (
    OF_EVERY_NEW_REPO,
    STAGING_BRANCH,
    Change,
    HubRepo,
    deleted,
    free_name,
    has_content,
    holds,
    is_alike,
)
from sharding.storage.records import parse_earlier


class MainBranch:
    """The files of a repo when this job looked. A result goes there only if nobody has changed them since.

    `head` is the commit of `main`, "" before `look`. `staged` is the commit of the staging branch, None without one.
    Methods raise DestinationError.
    """

    def __init__(self, repo: HubRepo, *, overwrite: bool) -> None:
        """Use `main` of `repo`. With `overwrite`, a result may replace another model's copy. Asks nothing."""
        self.head = ""
        self.staged: str | None = None
        self._repo, self._overwrite = repo, overwrite
        self._earlier: list[str] = []
        self._strangers: Set[str] = frozenset()
        self._rivals: Set[str] = frozenset()

    def look(self, source: Place) -> None:
        """Note what the repo holds now. Raises DestinationError if a copy of `source` may not replace it."""
        branches = self._repo.branches()
        self.head, self.staged = branches["main"], branches.get(STAGING_BRANCH)
        files = self._repo.files(self.head)
        earlier = parse_earlier(self._repo.read(self.head, REPORT_NAME)) if REPORT_NAME in files else None
        repo_id = self._repo.repo_id
        name = source.words
        if earlier and earlier.source != name and not self._overwrite:
            raise ReplaceRefused(repo_id, earlier.source, name)
        if not earlier and not files.keys() <= OF_EVERY_NEW_REPO:
            there = name_some(sorted(files.keys() - OF_EVERY_NEW_REPO))
            message = f"{repo_id} already holds files that this tool did not write: {there}."
            free = free_name(self._repo.hub, repo_id)
            raise DestinationError(message, f"Choose another name, such as {free}, which is free.")
        if earlier:  # a file that somebody has changed since the report was published is theirs
            published = self._repo.last_change(self.head, REPORT_NAME)
            then = self._repo.files(published) if published not in (None, self.head) else files
            self._earlier = [path for path in earlier.files if path in files and is_alike(files[path], then.get(path))]
        self._strangers = files.keys() - {*self._earlier, REPORT_NAME, *OF_EVERY_NEW_REPO}

    def look_again(self) -> None:
        """Raise DestinationError if somebody has changed `main` or the staging branch since `look`."""
        branches = self._repo.branches()
        if (branches.get("main"), branches.get(STAGING_BRANCH)) != (self.head, self.staged):
            raise self._changed(self.head, branches.get("main", ""))

    def refuse_changed(self, job: StagedJob) -> None:
        """Raise DestinationError unless `main` is at the commit where `job` started, or shows its result."""
        if not self._has_published(job):
            raise self._changed(job.main or "", self.head)

    def refuse_names(self, ours: Sequence[str], beside: Sequence[str]) -> None:
        """Raise DestinationError if `ours`, or the source's files `beside` them, replace files that they may not."""
        refuse_clashes(ours, beside)
        self._rivals = rivals(ours, self._strangers) | _in_the_way({*ours, *beside}, self._strangers)
        if (there := sorted(self._rivals | self._strangers & {*ours, *beside})) and not self._overwrite:
            raise DestinationError(
                f"{self._repo.repo_id} has files that somebody else wrote or changed: {name_some(there)}. The copy "
                "would replace them, or loaders would load them instead of the copy.",
                "Choose another name. Or add --overwrite and start the same job again.",
                Remedy("overwrite"),
            )

    def publish(self, changes: Sequence[Change], source: Place, records: Iterable[ShardRecord], report: bytes) -> str:
        """Return the commit that shows the result and removes the rest of an earlier one."""
        new = {change.path for change in changes}
        stale = [deleted(path) for path in (*self._earlier, *self._rivals) if path not in new]
        commit = ""
        try:
            commit = self._repo.ask(lambda: self._repo.commit("main", self.head, _title(source), [*stale, *changes]))
        except DestinationError as error:
            with suppress(DestinationError):  # the error that ended it says more
                commit = self._repo.branches()["main"]
            if commit in ("", self.head):
                raise
            if not self._shows((), report):
                raise self._changed(self.head, commit) from error
            # A try has arrived, although its answer has not, or was an error.
        if not self._shows(records, report):
            message = f"The Hub says that it has published the result, but {self._repo.repo_id} does not show it."
            raise DestinationError(message, "Everything is still staged. Start the same job again.")
        return commit

    def _shows(self, records: Iterable[ShardRecord], report: bytes) -> bool:
        files = self._repo.files("main")
        return has_content(files.get(REPORT_NAME), report) and all(
            holds(files.get(record.file), record) for record in records
        )

    def _has_published(self, job: StagedJob) -> bool:
        """Return whether `main` is unchanged since `job` started, except that its result was shown."""
        if job.main == self.head:
            return True
        for title, commit in self._repo.history(self.head):
            if commit == job.main:
                earlier = parse_earlier(self._repo.read(self.head, REPORT_NAME))
                return earlier is not None and earlier.plan_id == job.plan_id
            if title != _title(job.source):
                break
        return False

    def _changed(self, before: str, now: str) -> DestinationError:
        names, gone = list[str](), list[str]()
        with suppress(DestinationError):  # a rewritten history no longer has the old commit
            old, new = (self._repo.files(commit) if commit else {} for commit in (before, now))
            names = sorted(path for path, file in new.items() if not is_alike(file, old.get(path)))
            gone = sorted(old.keys() - new.keys())
        what = f" (new or changed: {name_some(names)})" if names else f" (removed: {name_some(gone)})" if gone else ""
        message = f"Somebody has changed {self._repo.repo_id} meanwhile{what}. This job replaced nothing in it."
        hint = "Choose another name. Or look at the changes, discard the unfinished job, and start again."
        return DestinationError(message, hint)


def _in_the_way(new: Set[str], there: Iterable[str]) -> set[str]:
    """Return the files of `there` where one of `new` needs a folder, and those in a folder where one of `new` lies."""
    files, folders = {f"{path}/" for path in new}, {folder for path in new for folder in folders_around(path)}
    return {path for path in there if f"{path}/" in folders or files & folders_around(path)}


def _title(source: Place) -> str:
    return f"Shard {source.words} with Shard My Repo"
