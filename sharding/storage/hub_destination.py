"""Write a checkpoint into a repo of a Hub so that `main` shows it only once it is complete.

While a job runs, its shards stand on a staging branch of the repo, each with its record, so that any
machine can go on from there. Publishing is one commit on `main`; the branch goes after it.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from huggingface_hub import CommitOperationAdd, CommitOperationDelete
from huggingface_hub.errors import HfHubHTTPError

from sharding.core.errors import DestinationError, ReplaceRefused
from sharding.core.events import Published
from sharding.core.lent import LentDestination
from sharding.core.limits import THREADS
from sharding.core.protocols import Source
from sharding.core.values import Discarded, FileEntry, RepoRef, ShardRecord, StagedJob
from sharding.formats.names import REPORT_NAME
from sharding.storage.hub_client import SIGN_IN, Hub, checked_commit
from sharding.storage.hub_lookup import person_of
from sharding.storage.hub_private import uploaded, without_notice
from sharding.storage.hub_repo import HubRepo, Operation, copied, has_content, holds
from sharding.storage.hub_source import HubSource
from sharding.storage.hub_staging import STAGING_BRANCH, StagingBranch
from sharding.storage.hub_upload import LfsShardWriter, XetShardWriter
from sharding.storage.records import parse_earlier

_OF_EVERY_NEW_REPO = {".gitattributes"}
_NOTHING_SHOWN = "Nothing was written. Ask whoever runs the Hub, or choose a Hub that keeps repos private."


class HubDestination:
    """A repo of a Hub. See `protocols.Destination`."""

    def __init__(
        self, hub: Hub, name: str, *, private: bool | None = None, overwrite: bool = False, restart: bool = False
    ) -> None:
        """Aim at `name` ("owner/name", or "name" in one's own namespace). Changes nothing on the Hub.

        False as `private` shows a new repo, None does not; one that exists keeps its own visibility. True takes
        nothing but a private one. `overwrite` replaces another model's copy. Raises DestinationError where nobody is
        signed in, or the namespace is somebody else's.
        """
        self._hub = hub
        self._private = private
        self._overwrite = overwrite
        self._restart = restart
        self._job: StagedJob | None = None
        self._created = False
        self._branches: dict[str, str] = {}
        self._stale: list[str] = []
        self._has_xet = True
        self._writers: list[XetShardWriter | LfsShardWriter] = []
        self.ref = RepoRef("hub", name, "")
        if not hub.is_signed_in:
            hint = f"First {SIGN_IN} For a folder write ./{name}."
            raise DestinationError(f"Nobody is signed in, so nothing can be pushed to {name}.", hint)
        self._me = hub.ask("your account", DestinationError, lambda: person_of(hub.api.whoami()))
        self.ref = RepoRef("hub", self._me.own_id(name), "")
        self._repo = HubRepo(hub, self.ref.repo_id)
        self._staging = StagingBranch(self._repo)

    @property
    def shards_at_once(self) -> int:
        """How many may be open: without Xet one, whose file takes room on the disk.

        Through hf-xet each takes a hundred megabytes, and from one Hub to another one alone keeps two cores busy.
        """
        from_hub = self._job is not None and self._job.source.kind == "hub"
        return THREADS if self._has_xet and not from_hub else 1

    @property
    def bytes_uploaded(self) -> int:
        """Bytes that this job has sent to the store."""
        return sum(writer.bytes_uploaded for writer in self._writers)

    @property
    def bytes_deduplicated(self) -> int:
        """Bytes that the store had already."""
        return sum(writer.bytes_deduplicated for writer in self._writers)

    @property
    def disk_bytes_written(self) -> int:
        """Bytes that this job has written to this machine's disk."""
        return 0 if self._has_xet else self.bytes_uploaded

    @property
    def has_finished_shards(self) -> bool:
        """Whether a later run would find something to go on from."""
        return bool(self._staging.finished)

    def check(self, source: RepoRef) -> None:
        """Raise DestinationError where a copy of `source` may not be written. Changes nothing."""
        if not self._repo.exists():
            self._repo.refuse_without_refs()
            return
        self._repo.ask(lambda: self._hub.may(self.ref.repo_id, write=True))
        if self._private and not self._repo.is_private():
            raise DestinationError(
                f"{self.ref.repo_id} exists and is public, and the copy is to be private.",
                f"Make it private at {self._hub.page(self.ref.repo_id)}/settings, or choose another name.",
            )
        self._branches = self._repo.branches()
        self._refuse_foreign(source, staged=STAGING_BRANCH in self._branches)

    def done(self, plan_id: str) -> dict[str, ShardRecord]:
        """Return the shards of plan `plan_id` that an earlier run finished, by file name. Changes nothing.

        Raises DestinationError where the repo has an unfinished job of another plan staged.
        """
        if STAGING_BRANCH not in self._branches:
            return {}
        self._job = self._staging.job()
        self._created = bool(self._job and self._job.created)
        return {} if self._restart else self._staging.records(plan_id, self._job)

    def prepare(self, job: StagedJob, keep: Iterable[ShardRecord], new_bytes: int) -> None:
        """Create the repo and the staging branch where they are not there yet.

        Raises DestinationError where the Hub does not allow it, or shows what was to be private.
        """
        repo_id = self.ref.repo_id
        self._staging.go_on(keep)
        if "main" not in self._branches:
            self._create()
        elif self._private and not self._repo.is_private():
            raise DestinationError(f"{repo_id} is public by now, and the copy is to be private.", _NOTHING_SHOWN)
        if not self._staging.finished:
            if STAGING_BRANCH in self._branches:
                self._staging.delete()
            self._job = replace(job, private=self._private, created=self._created)
            self._staging.begin(self._job, self._branches["main"])
        self._has_xet = self._repo.ask(lambda: self._hub.has_xet(repo_id, STAGING_BRANCH))

    def _create(self) -> None:
        hidden = self._me.may_show_later or self._private is not False
        self._created = True  # before it is known: the answer may be lost, and the repo must not be left behind
        self._repo.ask(lambda: self._hub.api.create_repo(self.ref.repo_id, private=hidden, exist_ok=True))
        if self._private is not False and not self._repo.is_private():
            raise DestinationError(f"The Hub made {self.ref.repo_id} public, although asked not to.", _NOTHING_SHOWN)
        self._branches = self._repo.branches()

    def open_shard(self, file: str) -> XetShardWriter | LfsShardWriter:
        """Start a shard: a stream through hf-xet, with nothing on the disk; without Xet, one temporary file."""
        writer: XetShardWriter | LfsShardWriter
        if self._has_xet:
            start = partial(self._hub.upload_to, self.ref.repo_id, STAGING_BRANCH)
            writer = XetShardWriter(lambda: self._repo.ask(start), file)
        else:
            writer = LfsShardWriter(self._upload_lfs, file)
        self._writers.append(writer)
        return writer

    def lend(self) -> LentDestination:
        """Return access to the store of the Hub, in which a shard may be put without a login."""
        repo_id = self.ref.repo_id
        if not self._has_xet or self._job is None:
            raise DestinationError(
                f"This Hub has no Xet: it takes files for {repo_id} from nobody without a login, as workers are.",
                "Work without --workers, or into a folder.",
            )
        grant = self._repo.ask(lambda: self._hub.grant("write", repo_id, STAGING_BRANCH))
        return LentDestination(self.ref, self._job.plan_id, hub=self._hub.endpoint, grant=grant)

    def open_finished(self, file: str) -> HubSource | None:
        """Return a shard that hf-xet has stored, by the name that it has there: no commit shows it yet."""
        entry = next((writer.stored for writer in self._writers if writer.stored and writer.stored.path == file), None)
        if entry is None:
            return None
        return HubSource(self._hub, RepoRef("hub", self.ref.repo_id, STAGING_BRANCH), files=(entry,))

    def open_staged(self, files: Iterable[str]) -> HubSource:
        """Return the staging branch, where the finished shards can be read."""
        self._staging.note()
        return HubSource(self._hub, RepoRef("hub", self.ref.repo_id, STAGING_BRANCH))

    def publish(
        self,
        records: Mapping[str, ShardRecord],
        side_files: Iterable[FileEntry],
        origin: Source,
        written: Mapping[str, bytes],
    ) -> Published:
        """Show the result: one commit on `main` with everything; then the staging branch goes.

        Raises DestinationError, with everything still staged, where somebody else has changed `main` meanwhile.
        """
        operations = [
            *(uploaded(record) for record in records.values()),
            *(copied(file, origin) for file in side_files),
            *(CommitOperationAdd(path, data) for path, data in written.items()),
        ]
        new = {operation.path_in_repo for operation in operations}
        stale = [CommitOperationDelete(path) for path in self._stale if path not in new]
        message = f"Shard {origin.ref.repo_id} with Shard My Repo"
        report = written[REPORT_NAME]
        commit = self._repo.ask(lambda: self._publish([*operations, *stale], message, report))
        if not self._shows(records.values(), report):
            raise DestinationError(
                f"The Hub said that it has published the result, but {self.ref.repo_id} does not show it.",
                "Everything is still staged: start the same job again.",
            )
        self.ref = RepoRef("hub", self.ref.repo_id, commit)
        # Before the branch goes: it says that this job has made the repo.
        remark = self._show() if self._created and self._private is False else ""
        self._staging.delete()
        return Published(self.ref, self._hub.page(self.ref.repo_id), remark)

    def unfinished(self) -> StagedJob | None:
        """Return the job that stands on the staging branch. Changes nothing."""
        if not self._repo.exists() or STAGING_BRANCH not in self._repo.branches():
            return None
        return self._staging.job()

    def discard(self) -> Discarded:
        """Remove the staging branch, and the repo where the job that made it has published nothing in it.

        A login that may create repos need not be one that may delete them: then the remark says so.
        """
        self._staging.forget()
        repo_id = self.ref.repo_id
        if not self._repo.exists():
            return Discarded(found=False)
        if self._job is None and not self._created:
            if STAGING_BRANCH not in self._repo.branches():
                return Discarded(found=False)
            self._job = self._staging.job()
        self._created = self._created or bool(self._job and self._job.created)
        self._job = None
        remark = ""
        if self._created and self._repo.files("main").keys() <= _OF_EVERY_NEW_REPO:
            try:
                self._repo.ask(lambda: self._hub.api.delete_repo(repo_id, missing_ok=True))
                if not self._repo.exists():
                    return Discarded(found=True, repo_deleted=True)
                why = "the Hub said that it was"
            except DestinationError as error:
                why = error.message.rstrip(".")
            settings = f"{self._hub.page(repo_id)}/settings"
            remark = f"{repo_id} was made for this job, is empty, and could not be deleted ({why}): {settings}."
        try:
            self._staging.delete()
        except DestinationError as error:
            if not remark:
                raise
            remark = f"{remark} Its branch {STAGING_BRANCH} is still there: {error.message}"
        return Discarded(found=True, remark=remark)

    def close(self) -> None:
        """Let go of the repo: shards that are not finished are gone."""
        with suppress(DestinationError):  # where the Hub does not answer, these shards are moved again
            self._staging.note()
        for writer in self._writers:
            with suppress(RuntimeError, OSError):  # it is given up in any case
                writer.abort()

    def note(self, record: ShardRecord) -> None:
        """Stage a shard whose bytes the Hub's store has."""
        self._staging.add(record)

    def _publish(self, operations: Sequence[Operation], message: str, report: bytes) -> str:
        """Return the commit that shows the result."""
        try:
            made = self._hub.api.create_commit(
                self.ref.repo_id, operations, commit_message=message, parent_commit=self._branches["main"]
            )
            return checked_commit(made.oid)
        except HfHubHTTPError as error:
            # An earlier try may have arrived although its answer did not.
            if error.response.status_code == 412 and self._shows((), report):
                return self._repo.branches()["main"]
            raise

    def _shows(self, records: Iterable[ShardRecord], report: bytes) -> bool:
        files = self._repo.files("main")
        return has_content(files.get(REPORT_NAME), report) and all(holds(files.get(one.file), one) for one in records)

    def _upload_lfs(self, operation: CommitOperationAdd) -> None:
        upload = self._hub.api.preupload_lfs_files
        question = partial(upload, self.ref.repo_id, [operation], revision=STAGING_BRANCH)
        without_notice(lambda: self._repo.ask(question))

    def _show(self) -> str:
        try:
            self._repo.ask(lambda: self._hub.api.update_repo_settings(self.ref.repo_id, private=False))
        except DestinationError as error:
            if not self._repo.ask(lambda: self._hub.api.model_info(self.ref.repo_id)).private:
                return ""
            settings = f"{self._hub.page(self.ref.repo_id)}/settings"
            return f"It stays private, which you can change at {settings}: {error.message}"
        return ""

    def _refuse_foreign(self, source: RepoRef, staged: bool) -> None:
        files = self._repo.files("main")
        earlier = parse_earlier(self._repo.read("main", REPORT_NAME)) if REPORT_NAME in files else None
        if earlier and earlier.source != source.repo_id and not self._overwrite:
            raise ReplaceRefused(self.ref.repo_id, earlier.source, source.repo_id)
        if staged or earlier or files.keys() <= _OF_EVERY_NEW_REPO:
            self._stale = [path for path in earlier.files if path in files] if earlier else []
            return
        names = (f"{self.ref.repo_id}-{number}" for number in range(2, 1000))
        free = next(name for name in names if not HubRepo(self._hub, name).exists())
        raise DestinationError(
            f"{self.ref.repo_id} exists already, and this tool did not write what is in it.", f"A free name is {free}."
        )
