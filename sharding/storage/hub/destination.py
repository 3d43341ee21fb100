"""Write a checkpoint into a repo of a Hub, whose `main` shows it only once it is complete.

While a job runs, its shards and their records are on a staging branch of the repo. Any machine can go on from there.
Publishing is one commit on `main`. After it, the staging branch is deleted.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from uuid import uuid4

from huggingface_hub.errors import HfHubHTTPError
from typing_extensions import override

from sharding.core.errors import DestinationError, Remedy
from sharding.core.events import Published
from sharding.core.limits import THREADS
from sharding.core.origin import Place
from sharding.core.protocols import Destination, Discarded, Files, Inputs, LentDestination, ShardWriter, Source
from sharding.core.recipe import Extent
from sharding.core.text import name_some
from sharding.core.values import FileEntry, Finding, ShardRecord, StagedJob
from sharding.formats.names import REPORT_NAME
from sharding.storage.hub.answers import person_of
from sharding.storage.hub.client import Hub
from sharding.storage.hub.main import MainBranch
from sharding.storage.hub.refusals import SIGN_IN
from sharding.storage.hub.repo import OF_EVERY_NEW_REPO, STAGING_BRANCH, HubRepo, fit_for_commit, stored
from sharding.storage.hub.source import ArrivingSource, HubSource
from sharding.storage.hub.staging import StagingBranch
from sharding.storage.hub.upload import LfsShardWriter, StoreSink

_NOTHING_SHOWN = "Nothing was written. Ask the people who run this Hub, or use a Hub that keeps repos private."
_GIVE_UP = "Or discard the staged files, which everybody can see until then."
_CLOSED = "{} was public when the job started and may not be public now"


class HubDestination(StoreSink, Destination):
    """A repo of a Hub."""

    writes_at_once = 1

    def __init__(
        self,
        hub: Hub,
        name: str,
        *,
        source: Files | None = None,
        private: bool | None = None,
        overwrite: bool = False,
        restart: bool = False,
    ) -> None:
        """Aim at `name` ("owner/name", or "name" in one's own namespace). Changes nothing on the Hub.

        False as `private` makes a new repo public, None keeps it private, and True accepts only a private repo. A repo
        that exists keeps its visibility. A public repo takes nothing more from a `source` that is no longer public.
        `overwrite` replaces another model's copy. Raises DestinationError if nobody is signed in.
        """
        self._source, self._private, self._restart = source, private, restart
        self._asked_to_show = private is False
        self._job: StagedJob | None = None
        self._arriving: ArrivingSource | None = None
        self._created = self._is_prepared = self._may_be_ours = self._is_public = False
        if not hub.is_signed_in:
            hint = f"Sign in first. {SIGN_IN} To write to a folder, name it ./{name}."
            message = f"You are not signed in, so you cannot push to {name}."
            raise DestinationError(message, hint, Remedy("sign_in"))
        self._me = hub.ask("your account", DestinationError, lambda: person_of(hub.api.whoami()))
        self.ref = Place("hub", self._me.own_id(name), "")
        self.findings = self._warn_of_namespace(name)
        self._staged_ref = Place("hub", self.ref.repo_id, STAGING_BRANCH)
        super().__init__(hub, self.ref.repo_id, STAGING_BRANCH)
        self._repo = HubRepo(hub, self.ref.repo_id, self._refuse_public, self._store)
        self._settings = f"{hub.page(self.ref.repo_id)}/settings"
        self._main = MainBranch(self._repo, overwrite=overwrite)
        self._staging = StagingBranch(self._repo)

    @cached_property
    def _has_xet(self) -> bool:
        """Whether files go to the store through Xet. Ask once the staging branch exists."""
        return self._repo.ask(lambda: self._hub.has_xet(self.ref.repo_id, STAGING_BRANCH))

    @property
    @override
    def disk_bytes_written(self) -> int:
        return sum(writer.bytes_written for writer in self._writers if isinstance(writer, LfsShardWriter))

    @property
    @override
    def has_finished_shards(self) -> bool:
        return bool(self._staging.finished)

    @override
    def check(self, source: Place) -> None:
        if not self._repo.exists():
            self._repo.refuse_without_refs()
            return
        self._repo.refuse_renamed()
        self._repo.ask(lambda: self._hub.may(self.ref.repo_id, write=True))
        if self._private and not self._repo.is_private():
            message = f"{self.ref.repo_id} exists and is public, but the copy must be private."
            hint = f"Make it private at {self._settings}, or choose another name. If everybody may see the copy, "
            raise DestinationError(message, f"{hint}add --public.", Remedy("allow_public_copy"))
        self._main.look(source)

    @override
    def done(self, plan_id: str) -> dict[str, ShardRecord]:
        if self._main.staged is None:
            return {}
        job = self._staging.job(self._main.staged)
        if self._restart:
            # This tool still owns the repo, and may delete or show it.
            self._created = bool(job and job.created and job.main == self._main.head)
            return {}
        records = self._staging.records(plan_id)
        if job:
            self._main.refuse_changed(job)
            self._created = bool(job.created)
            if job.private is not False and self._private is False:
                self._private = job.private  # it started as private, and a later request does not show it
        self._job = job
        return records

    @override
    def prepare(
        self,
        job: StagedJob,
        keep: Iterable[ShardRecord],
        new_bytes: int,
        ours: Iterable[str] = (),
        beside: Iterable[str] = (),
    ) -> None:
        """Create the repo and the staging branch if they do not exist yet."""
        self._is_prepared = True
        self._staging.finished = {record.file for record in keep}
        self._main.refuse_names(list(ours), list(beside))
        if self._main.head:
            self._main.look_again()
            self._refuse_public()
        else:
            self._create()
            self._main.look(job.source)
            self._restart = False  # nobody has asked to discard a job that was staged only now
            self.done(job.plan_id)
        head, staged = self._main.head, self._main.staged
        if self._job is None:
            if staged and (self._restart or staged != head):
                self._staging.delete()
            self._job = replace(job, private=self._private, created=self._created, main=head, id=uuid4().hex)
            self._staging.begin(self._job, head)
        self.shards_at_once = THREADS if self._has_xet else 1  # without Xet, a shard needs disk space

    @contextmanager
    def _what_stays(self) -> Iterator[None]:
        """Add to an error of publishing where the result is, and who can see it."""
        try:
            yield
        except DestinationError as error:
            shows = "the complete copy" if self.ref.revision else "either the complete copy or none of it"
            who = "Everybody can see it." if self._is_public else "Only people with access to the repo can see it."
            stays = f"The branch {STAGING_BRANCH} stays for the next run. {who}"
            error.hint = f"{error.hint} {self.ref.repo_id} shows {shows}. {stays}"
            raise

    def _warn_of_namespace(self, name: str) -> tuple[Finding, ...]:
        namespace = self.ref.repo_id.partition("/")[0]
        if namespace in self._me.namespaces:
            return ()
        message = f"The Hub does not list {namespace} as a namespace that {self._me.name} may write to."
        listed = f"The job tries it. The Hub lists {name_some(self._me.namespaces, 10)}."
        return (Finding("warning", "namespace", message, f"{listed} To write to a folder, name it ./{name}."),)

    def _refuse_public(self) -> None:
        repo_id = self.ref.repo_id
        self._is_public = not self._repo.is_private()
        if not self._is_public:
            return
        hint = f"Make it private at {self._settings}, then start the same job again. {_GIVE_UP}"
        if self._private:
            message = f"{repo_id} is public now, but the copy must be private."
            raise DestinationError(message, hint if self._staging.finished else _NOTHING_SHOWN)
        if self._source and (closed := self._source.closed()):
            raise DestinationError(f"{repo_id} is public, and {_CLOSED.format(closed)}.", hint)

    def _create(self) -> None:
        """Create the repo, unless somebody else just did. Raises DestinationError if the Hub makes it public."""
        hidden = self._me.may_show_later or self._private is not False

        def create() -> bool:
            try:
                self._hub.api.create_repo(self.ref.repo_id, private=hidden, exist_ok=False)
            except Exception as error:
                status = error.response.status_code if isinstance(error, HfHubHTTPError) else 0
                if status == 409:
                    return False
                self._may_be_ours = self._may_be_ours or not 400 <= status < 500  # the request may have arrived anyway
                raise
            return True

        self._created = self._repo.ask(create)
        if not self._created:  # by somebody else, or by an earlier try whose answer was lost
            self._refuse_public()
        elif self._private is not False and not self._repo.is_private():
            message = f"The Hub made {self.ref.repo_id} public, although this tool asked for a private repo."
            raise DestinationError(message, _NOTHING_SHOWN)

    @override
    def expect(self, sources: Sequence[Source], unchanged: Iterable[Extent]) -> None:
        if self._has_xet:
            super().expect(sources, unchanged)

    @override
    def open_shard(self, file: str) -> ShardWriter:
        if self._has_xet:
            return super().open_shard(file)
        self._writers.append(LfsShardWriter(self._hub, self.ref.repo_id, STAGING_BRANCH, file))
        return self._writers[-1]

    @override
    def lend(self) -> LentDestination:
        repo_id = self.ref.repo_id
        if not self._has_xet or self._job is None:
            why = "This Hub has no Xet" if self._hub.uses_xet else "Xet is switched off, or does not answer"
            message = f"{why}, so {repo_id} accepts files only with a login, and workers have none."
            hint = "Write to a folder instead. Or leave out --workers."
            raise DestinationError(message, hint, Remedy("leave_workers_out"))
        grant = self._repo.ask(lambda: self._hub.grant("write", repo_id, STAGING_BRANCH))
        return LentDestination(self.ref, self._job.plan_id, hub=self._hub.endpoint, grant=grant)

    @override
    def open_arriving(self, keep: Iterable[str]) -> HubSource | None:
        if not self._has_xet:
            return None
        kept = set(keep)
        files = [file for file in self.open_staged(kept).files if file.path in kept] if kept else []
        self._arriving = ArrivingSource(self._hub, self._staged_ref, files)
        return self._arriving

    @override
    def open_staged(self, files: Iterable[str]) -> HubSource:
        self._staging.note()
        return HubSource(self._hub, self._staged_ref)

    @override
    def publish(
        self,
        records: Mapping[str, ShardRecord],
        side_files: Iterable[FileEntry],
        origin: Inputs,
        written: Mapping[str, bytes],
    ) -> Published:
        beside = list(side_files)
        with self._what_stays():
            self._main.refuse_names([*records, *written], [file.path for file in beside])
            copied = self._repo.copied(beside, origin)
            paths = {change.path for change in copied}
            fit, too_much = fit_for_commit(file for file in beside if file.path not in paths)
            carried = {file.path: b"".join(origin.read(file.path, 0, file.bytes)) for file in fit}
            changes = [
                *(stored(record) for record in records.values()),
                *(stored(self._store(file.path, origin.read(file.path, 0, file.bytes))) for file in too_much),
                *copied,
                *self._repo.added("main", {**carried, **written}),
            ]
            commit = self._main.publish(changes, origin.ref, records.values(), written[REPORT_NAME])
            self.ref = Place("hub", self.ref.repo_id, commit)
            # Before the branch goes: it records that this job has created the repo.
            remark = self._show(commit, origin) if self._asked_to_show else ""
            if (staged := self._repo.branches().get(STAGING_BRANCH)) and self._staging.is_own(staged):
                self._staging.delete()
        return Published(self.ref, self._hub.page(self.ref.repo_id), remark)

    @override
    def unfinished(self) -> StagedJob | None:
        staged = self._repo.branches().get(STAGING_BRANCH) if self._repo.exists() else None
        return self._staging.job(staged) if staged else None

    @override
    def discard(self) -> Discarded:
        """Remove the staging branch. Delete the repo too, if the job created it and published nothing in it."""
        self._staging.forget()
        repo_id = self.ref.repo_id
        if not self._repo.exists():
            if self.findings:
                message = f"The repo {repo_id} does not exist, or {self._me.name} has no access to it."
                raise DestinationError(message, "Check the name, and whether you use the right login.")
            return Discarded(found=False)
        staged = self._repo.branches().get(STAGING_BRANCH)
        if self._is_prepared:
            if staged and not self._staging.may_go(staged):
                return Discarded(found=False, remark=f"The staged files in {repo_id} stay there.")
        elif staged is None:
            return Discarded(found=False)
        else:
            self._job = self._staging.job(staged)
        self._created = self._created or bool(self._job and self._job.created)
        self._job, remark = None, ""
        is_empty = self._repo.files("main").keys() <= OF_EVERY_NEW_REPO
        is_ours = self._created or self._may_be_ours
        if is_empty and is_ours and not self._repo.other_refs():
            try:
                self._repo.ask(lambda: self._hub.api.delete_repo(repo_id, missing_ok=True))
                if not self._repo.exists():
                    return Discarded(found=True, repo_deleted=True)
                why = "the Hub says that it was, but the repo is still there"
            except DestinationError as error:  # a login that may create repos may not be allowed to delete them
                why = error.message.rstrip(".")
            remark = (
                f"This tool created {repo_id} for the job. It is empty, but this tool could not delete it ({why}). "
                f"You can delete it at {self._settings}."
            )
        try:
            self._staging.delete()
        except DestinationError as error:
            if not remark:
                raise
            remark = f"{remark} Its branch {STAGING_BRANCH} is still there: {error.message}"
        return Discarded(found=True, remark=remark)

    @override
    def close(self) -> None:
        if self._arriving:
            self._arriving.end()
        with suppress(DestinationError):  # if the Hub does not answer, the next run copies these shards again
            self._staging.note()
        super().close()

    @override
    def note(self, record: ShardRecord) -> None:
        if self._arriving:
            self._arriving.add(FileEntry(record.file, record.bytes, record.sha256, record.xet_hash))
        self._staging.add(record)

    def _store(self, path: str, chunks: Iterable[bytes]) -> ShardRecord:
        writer, count = self.open_shard(path), 0
        for chunk in chunks:
            writer.write(chunk)
            count += len(chunk)
        return ShardRecord(path, count, writer.finish(), {})

    def _show(self, commit: str, origin: Inputs) -> str:
        """Make a repo public that this job created and that holds nothing else; return a remark if it stays private."""
        repo_id = self.ref.repo_id
        if not self._repo.is_private():
            return ""
        if self._private is not False:
            why = ", because this job started as a private one."
        elif not self._created:
            why = f", because this job did not create {repo_id}."
        elif self._repo.branches()["main"] != commit or self._repo.other_refs():
            why = f", because somebody else has changed {repo_id} meanwhile."
        elif closed := origin.closed():
            why = f", because {_CLOSED.format(closed)}."
        else:
            try:
                self._is_public = True
                self._repo.ask(lambda: self._hub.api.update_repo_settings(repo_id, private=False))
                return ""
            except DestinationError as error:
                self._is_public = not self._repo.is_private()
                if self._is_public:
                    return ""
                why = f": {error.message}"
        return f"It stays private{why} You can make it public at {self._settings}."
