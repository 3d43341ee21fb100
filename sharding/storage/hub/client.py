"""Talk to a Hub: one client per token, errors in plain words, and retries for failures that may pass."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import quote

import httpx2
from huggingface_hub import errors
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, paginate

from sharding import __version__
from sharding.core.environment import prepare_for_xet, xet_is_off
from sharding.core.errors import ShardingError
from sharding.core.limits import ANSWER_TIMEOUT_SECONDS, XET_LEAST_BYTES
from sharding.core.protocols import Grant
from sharding.core.threads import share_memory
from sharding.storage.hub.answers import (
    Commit,
    Refs,
    StoreAway,
    is_without,
    may_pass,
    parsed,
    wait_to_retry,
)
from sharding.storage.hub.guard import checked_grant, checked_place, mark, one_question, session, unmarked
from sharding.storage.hub.refusals import explanation, way_out

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_CLIENT = {"library_name": "shard-my-repo", "library_version": __version__}
_T = TypeVar("_T")

STORE_SECONDS = 10  # Longest silence of a store, twice. hf-xet 1.8 itself would wait for many minutes.
XET_BUFFER_BYTES = 64 << 20  # Bytes that hf-xet may fetch ahead.
XET_UPLOADS_AT_ONCE = 2  # Packages that hf-xet may upload side by side, each in memory. Its default is up to 64.

XET_SETTINGS = {
    "reconstruction.download_buffer_size": XET_BUFFER_BYTES,
    "reconstruction.download_buffer_perfile_size": XET_BUFFER_BYTES,
    "reconstruction.download_buffer_limit": 2 * XET_BUFFER_BYTES,
    "reconstruction.min_prefetch_buffer": XET_BUFFER_BYTES,
    "reconstruction.min_reconstruction_fetch_size": XET_BUFFER_BYTES,
    "client.ac_max_upload_concurrency": XET_UPLOADS_AT_ONCE,
    "client.ac_initial_upload_concurrency": XET_UPLOADS_AT_ONCE,
    "telemetry.enabled": False,
}
"""By default hf-xet 1.8 buffers gigabytes ahead, and ends up to two seconds later, after a report to the store. Only
its source names these settings (crate xet-runtime, `config/groups`), so a version that lacks one goes without it."""


class Hub:
    """A Hub at `endpoint`, seen with `token` (None: as an anonymous visitor). Sends no request before one is needed."""

    least_xet_bytes = XET_LEAST_BYTES  # Shorter ranges of files in the Xet store are read over HTTP.

    def __init__(self, endpoint: str, token: str | None) -> None:
        self.endpoint = endpoint.rstrip("/")
        self.is_signed_in = token is not None
        self._token: str | Literal[False] = token or False  # False: not even the login saved on this machine
        self._accesses: dict[str, dict[str, Any]] = {}
        self._reached = set[str]()  # the stores that have answered
        self._away = ""
        self._knocking = Lock()

    @cached_property
    def api(self) -> "HfApi":
        """The client of huggingface_hub."""
        from huggingface_hub import HfApi

        return HfApi(endpoint=self.endpoint, token=self._token, headers=mark(self.endpoint), **_CLIENT)

    @cached_property
    def headers(self) -> dict[str, str]:
        """The headers for a request that `send` does not make."""
        return build_hf_headers(token=self._token, headers=mark(self.endpoint), **_CLIENT)

    def send(
        self, method: str, url: str, headers: Mapping[str, str] | None = None, *, openly: bool = False, **options: Any
    ) -> httpx2.Response:
        """Return the answer to a request of our own; `openly`: without the login. Raises the client's errors."""
        ours = mark(self.endpoint) if openly else self.headers
        answer = session().request(method, url, headers={**ours, **(headers or {})}, **options)
        hf_raise_for_status(answer)
        return answer

    def page(self, repo_id: str) -> str:
        """Return the address of a repo's page."""
        return f"{self.endpoint}/{repo_id}"

    def may(self, repo_id: str, write: bool = False) -> None:
        """Raise the client's error if this login may not read, or write, a repo that exists."""
        try:
            self.api.auth_check(repo_id, write=write)
        except Exception as error:
            if not is_without(error):  # else the first read or commit finds it out
                raise

    def takes_card(self, card: str) -> bool:
        """Return whether the Hub would accept `card` as a README.md. Raises the client's errors."""
        question = {"content": card, "repoType": "model"}
        answer = session().post(f"{self.endpoint}/api/validate-yaml", json=question, headers=self.headers)
        answer.json()  # a proxy's own answer is not JSON, and does not count
        if answer.status_code != 400:
            hf_raise_for_status(answer)
        return answer.status_code != 400

    @cached_property
    def xet(self) -> Any:
        """The session of hf-xet."""
        return xet_session()

    def ask(self, repo_id: str, family: type[ShardingError], question: Callable[[], _T]) -> _T:
        """Return the result of `question`. Asks again while its failure may pass. Raises a `family` error."""
        tries = 0
        with self.explained(repo_id, family):
            while True:
                try:
                    with one_question():
                        return question()
                except Exception as error:
                    if not may_pass(error):
                        raise
                    tries += 1
                    wait_to_retry(error, tries)

    @property
    def uses_xet(self) -> bool:
        """Whether files may go through the store: nobody forbids it, and it has answered whenever it was asked."""
        return not self._away and not xet_is_off()

    def has_xet(self, repo_id: str, revision: str) -> bool:
        """Return whether files of `repo_id` are uploaded through Xet. Raises the client's errors."""
        try:
            return self.uses_xet and bool(self._xet_access("write", repo_id, revision))
        except StoreAway:
            return False
        except errors.HfHubHTTPError as error:
            if error.response.status_code != 404:
                raise
            return False

    def upload_to(self, repo_id: str, revision: str) -> Any:
        """Return a new upload commit of hf-xet for `repo_id`."""
        return self.xet.new_upload_commit(**self._xet_access("write", repo_id, revision))

    def download_from(self, repo_id: str, revision: str) -> Any:
        """Return a new download group of hf-xet for `repo_id`."""
        return self.xet.new_download_stream_group(**self._xet_access("read", repo_id, revision))

    def get(self, repo_id: str, revision: str, path: str, max_bytes: int) -> bytes:
        """Return a small file of a repo, cut off at `max_bytes`. Raises the client's errors."""
        text = bytearray()
        headers = {**self.headers, "Accept-Encoding": "identity"}
        url = self.address(repo_id, revision, path)
        with session().stream("GET", url, headers=headers, follow_redirects=True) as response:
            hf_raise_for_status(response)
            for chunk in response.iter_bytes():
                text += chunk
                if len(text) > max_bytes:
                    break
        return bytes(text[:max_bytes])

    def refs(self, repo_id: str, pull_requests: bool = False) -> Refs:
        """Return the branches and tags of a repo, and its pull requests if asked for. Raises the client's errors."""
        # `list_repo_refs` of huggingface_hub 2.4 does not accept `null` for an empty list, which some Hubs send.
        url = f"{self.endpoint}/api/models/{repo_id}/refs"
        return parsed(Refs, self.send("GET", url, params={"include_prs": 1} if pull_requests else {}).json())

    def commits(self, repo_id: str, revision: str) -> Iterator[Commit]:
        """Yield the commit that `revision` names and those before it. Raises the client's errors."""
        url = f"{self.endpoint}/api/models/{repo_id}/commits/{quote(revision, safe='')}"
        # `list_repo_commits` of huggingface_hub 2.4 reads the whole history, in small pages.
        for commit in paginate(url, {"limit": 1000}, self.headers, ANSWER_TIMEOUT_SECONDS):
            yield parsed(Commit, commit)

    def address(self, repo_id: str, revision: str, path: str) -> str:
        """Return the HTTP address of a file of a repo."""
        from huggingface_hub import hf_hub_url

        return hf_hub_url(repo_id, path, revision=revision, endpoint=self.endpoint)

    def address_to_lend(self, repo_id: str, revision: str, path: str) -> str:
        """Return the address that a file's download redirects to. Raises the client's errors."""
        # It needs no login for a while. Without a redirect, it is the Hub's own address, which may need one.
        url = self.address(repo_id, revision, path)
        metadata = self.api.get_hf_file_metadata(url=url, token=self._token, timeout=ANSWER_TIMEOUT_SECONDS)
        return checked_place(str(metadata.location))

    def grant(self, kind: Literal["read", "write"], repo_id: str, revision: str) -> Grant:
        """Return new access to the store, which ends by itself (https://huggingface.co/docs/xet/auth)."""
        with one_question():  # while a file is read, no caller has started one
            granted = parsed(dict[str, Any], self.send("GET", self._grants(kind, repo_id, revision)).json())
        grant = Grant(*(granted.get(key) for key in ("casUrl", "accessToken", "exp")))  # type: ignore[arg-type]
        return checked_grant(grant, self.endpoint)

    def _grants(self, kind: str, repo_id: str, revision: str) -> str:
        return f"{self.endpoint}/api/models/{repo_id}/xet-{kind}-token/{revision}"

    def _xet_access(self, kind: Literal["read", "write"], repo_id: str, revision: str) -> dict[str, Any]:
        """Return what hf-xet needs to reach the store. Asked for here, so that a refusal is explained and retried."""
        url = self._grants(kind, repo_id, revision)
        access = self._accesses.get(url)
        if access and access["token_expiry_unix_secs"] > time.time() + ANSWER_TIMEOUT_SECONDS:
            return access
        refresh = {"token_refresh_url": url, "token_refresh_headers": unmarked(self.headers)}
        self._accesses[url] = self._reached_with(self.grant(kind, repo_id, revision)) | refresh
        return self._accesses[url]

    def _reached_with(self, grant: Grant) -> dict[str, Any]:
        self._knock(grant.endpoint)
        headers = {name: text for name, text in unmarked(self.headers).items() if name.lower() != "authorization"}
        return {
            "endpoint": grant.endpoint,
            "token": grant.token,
            "token_expiry_unix_secs": grant.expires,
            "custom_headers": headers,
        }

    def _knock(self, store: str) -> None:
        """Raise StoreAway unless the store answers in any way. It is asked twice."""
        with self._knocking:
            if self._away:
                raise StoreAway(self._away)
            if store in self._reached or not store.startswith("http"):  # a folder of this machine
                return
            for is_last in (False, True):
                try:
                    session().head(store, timeout=STORE_SECONDS, follow_redirects=False)
                    self._reached.add(store)
                    return
                except httpx2.TransportError as error:
                    if is_last:
                        reason = way_out(error)[0] or str(error) or type(error).__name__
                        self._away = f"{httpx2.URL(store).host}: {reason}"
                        raise StoreAway(self._away) from error

    def forget_access(self) -> None:
        """Ask for new access to the store next time, because the old access may have expired."""
        self._accesses.clear()
        self._reached.clear()

    @contextmanager
    def explained(self, repo_id: str, family: type[ShardingError]) -> Iterator[None]:
        """Turn an error of the Hub's client about `repo_id` into a `family` error with a hint."""
        try:
            yield
        except Exception as error:
            explained = explanation(error, repo_id, self.endpoint, family, self.is_signed_in, self._away)
            if explained is None:
                raise
            raise explained from None if isinstance(error, httpx2.LocalProtocolError) else error


def xet_session() -> Any:
    """Return a session of hf-xet with bounded buffers and without log files."""
    prepare_for_xet()
    share_memory()
    from hf_xet import XetConfig, XetSession

    config = XetConfig()
    known = set(config.keys())
    return XetSession(config.with_config({name: value for name, value in XET_SETTINGS.items() if name in known}))
