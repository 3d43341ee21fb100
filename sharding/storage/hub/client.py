"""Reach a Hub: one client for one token, answers in plain words, what may pass tried again."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import quote

from sharding import __version__
from sharding.core.errors import DestinationError, Remedy, ShardingError
from sharding.core.lent import Grant
from sharding.core.limits import ANSWER_TIMEOUT_SECONDS, XET_LEAST_BYTES
from sharding.storage.hub.answers import Commit, Refs, checked_commit, parsed
from sharding.storage.hub.retry import GarbledAnswer, OddAnswer, may_pass, refuses_argument, wait_to_retry

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_NAME = "shard-my-repo"
_T = TypeVar("_T")


class Hub:
    """A Hub at `endpoint`, seen with `token` (None: as anybody sees it). Nothing is asked before it is needed."""

    least_xet_bytes = XET_LEAST_BYTES
    """Shorter ranges of files in its store are read over HTTP."""

    def __init__(self, endpoint: str, token: str | None) -> None:
        """Keep the address and the token; the token goes nowhere but into request headers."""
        self.endpoint = endpoint.rstrip("/")
        self.is_signed_in = token is not None
        self._token: str | Literal[False] = token or False  # False: not even the login saved on this machine
        self._accesses: dict[str, dict[str, Any]] = {}

    @cached_property
    def api(self) -> "HfApi":
        """The client of the Hub's own library."""
        from huggingface_hub import HfApi

        from sharding.storage.hub.guard import mark

        name = {"library_name": _NAME, "library_version": __version__}
        return HfApi(endpoint=self.endpoint, token=self._token, headers=mark(self.endpoint), **name)

    @cached_property
    def headers(self) -> dict[str, str]:
        """The headers of a request that no method of `api` makes."""
        from huggingface_hub.utils import build_hf_headers

        from sharding.storage.hub.guard import mark

        name = {"library_name": _NAME, "library_version": __version__}
        headers: dict[str, str] = build_hf_headers(token=self._token, headers=mark(self.endpoint), **name)
        return headers

    def page(self, repo_id: str) -> str:
        """Return the address of a repo's page."""
        return f"{self.endpoint}/{repo_id}"

    def may(self, repo_id: str, write: bool = False) -> None:
        """Ask whether this login may read, or write, a repo that is there. Raises the client's errors where not.

        A Hub that cannot be asked says it later: where it is read, or committed to.
        """
        try:
            self.api.auth_check(repo_id, write=write)
        except Exception as error:
            if not is_without(error):
                raise

    def takes_card(self, card: str) -> bool:
        """Return whether the Hub would commit `card` as a README.md. Raises the client's errors."""
        from huggingface_hub.utils import get_session, hf_raise_for_status

        question = {"content": card, "repoType": "model"}
        answer = get_session().post(f"{self.endpoint}/api/validate-yaml", json=question, headers=self.headers)
        answer.json()  # what somebody in between says is no answer
        if answer.status_code == 400:
            return False
        hf_raise_for_status(answer)
        return True

    @cached_property
    def xet(self) -> Any:
        """The session of hf-xet."""
        from sharding.storage.hub.private import xet_session

        return xet_session()

    def ask(self, repo_id: str, family: type[ShardingError], question: Callable[[], _T]) -> _T:
        """Return what `question` about `repo_id` returns, asked again while its failure may pass.

        Raises a `family` error that says what helps.
        """
        from sharding.storage.hub.guard import one_question

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

    def has_xet(self, repo_id: str, revision: str) -> bool:
        """Return whether files of `repo_id` are uploaded through Xet. Raises the client's errors."""
        from huggingface_hub.errors import HfHubHTTPError

        try:
            return bool(self._xet_access("write", repo_id, revision))
        except HfHubHTTPError as error:
            if error.response.status_code == 404:
                return False
            raise

    def upload_to(self, repo_id: str, revision: str) -> Any:
        """Return a new upload commit of hf-xet for `repo_id`."""
        return self.xet.new_upload_commit(**self._xet_access("write", repo_id, revision))

    def download_from(self, repo_id: str, revision: str) -> Any:
        """Return a new download group of hf-xet for `repo_id`."""
        return self.xet.new_download_stream_group(**self._xet_access("read", repo_id, revision))

    def get(self, repo_id: str, revision: str, path: str, max_bytes: int) -> bytes:
        """Return a small file of a repo, cut off at `max_bytes`. Raises the client's errors."""
        from huggingface_hub.utils import get_session, hf_raise_for_status

        text = bytearray()
        headers = {**self.headers, "Accept-Encoding": "identity"}
        url = self.address(repo_id, revision, path)
        with get_session().stream("GET", url, headers=headers, follow_redirects=True) as response:
            hf_raise_for_status(response)
            for chunk in response.iter_bytes():
                text += chunk
                if len(text) > max_bytes:
                    break
        return bytes(text[:max_bytes])

    def refs(self, repo_id: str, pull_requests: bool = False) -> Refs:
        """Return the branches and tags of a repo, and its pull requests if asked for. Raises the client's errors.

        `list_repo_refs` of huggingface_hub 2.4 takes no `null` for an empty list, as some Hubs answer.
        """
        from huggingface_hub.utils import get_session, hf_raise_for_status

        url = f"{self.endpoint}/api/models/{repo_id}/refs"
        response = get_session().get(url, params={"include_prs": 1} if pull_requests else {}, headers=self.headers)
        hf_raise_for_status(response)
        return parsed(Refs, response.json())

    def commits(self, repo_id: str, revision: str) -> Iterator[Commit]:
        """Yield the commit that `revision` names and those before it. Raises the client's errors.

        `list_repo_commits` of huggingface_hub 2.4 reads all of them, a few at a time; the Hub gives 1000 at once.
        """
        from huggingface_hub.utils import paginate

        url = f"{self.endpoint}/api/models/{repo_id}/commits/{quote(revision, safe='')}"
        for commit in paginate(url, {"limit": 1000}, self.headers, ANSWER_TIMEOUT_SECONDS):
            commit = parsed(Commit, commit)
            checked_commit(commit.id)
            yield commit

    def address(self, repo_id: str, revision: str, path: str) -> str:
        """Return where a file of a repo is read over HTTP."""
        from huggingface_hub import hf_hub_url

        return hf_hub_url(repo_id, path, revision=revision, endpoint=self.endpoint)

    def address_to_lend(self, repo_id: str, revision: str, path: str) -> str:
        """Return where whoever has no login reads a file for a while, if anywhere. Raises the client's errors."""
        from sharding.storage.hub.guard import checked_place

        url = self.address(repo_id, revision, path)
        metadata = self.api.get_hf_file_metadata(url=url, token=self._token, timeout=ANSWER_TIMEOUT_SECONDS)
        return checked_place(str(metadata.location))

    def grant(self, kind: Literal["read", "write"], repo_id: str, revision: str) -> Grant:
        """Return new access to the store, which whoever has it may use until it ends. Raises the client's errors.

        Question and answer are those of the Xet protocol (https://huggingface.co/docs/xet/auth).
        """
        from huggingface_hub.utils import get_session, hf_raise_for_status

        from sharding.storage.hub.guard import checked_grant, one_question

        with one_question():  # while a file is read, nobody else has begun one
            response = get_session().get(self._grants(kind, repo_id, revision), headers=self.headers)
            hf_raise_for_status(response)
            granted = parsed(dict[str, Any], response.json())
        grant = Grant(*(granted.get(key) for key in ("casUrl", "accessToken", "exp")))  # type: ignore[arg-type]
        return checked_grant(grant, self.endpoint)

    def _grants(self, kind: str, repo_id: str, revision: str) -> str:
        return f"{self.endpoint}/api/models/{repo_id}/xet-{kind}-token/{revision}"

    def _xet_access(self, kind: Literal["read", "write"], repo_id: str, revision: str) -> dict[str, Any]:
        """Return how hf-xet reaches the store: asked for here, where a refusal is understood and tried again."""
        url = self._grants(kind, repo_id, revision)
        access = self._accesses.get(url)
        if access and access["token_expiry_unix_secs"] > time.time() + ANSWER_TIMEOUT_SECONDS:
            return access
        from sharding.storage.hub.guard import unmarked

        refresh = {"token_refresh_url": url, "token_refresh_headers": unmarked(self.headers)}
        self._accesses[url] = self._reached_with(self.grant(kind, repo_id, revision)) | refresh
        return self._accesses[url]

    def _reached_with(self, grant: Grant) -> dict[str, Any]:
        """Return how hf-xet reaches the store until `grant` ends."""
        from sharding.storage.hub.guard import unmarked

        headers = {name: text for name, text in unmarked(self.headers).items() if name.lower() != "authorization"}
        return {
            "endpoint": grant.endpoint,
            "token": grant.token,
            "token_expiry_unix_secs": grant.expires,
            "custom_headers": headers,
        }

    def forget_access(self) -> None:
        """Ask for new access to the store next time: what was granted may have expired."""
        self._accesses.clear()

    def _distrusted(self, odd: OddAnswer, family: type[ShardingError]) -> ShardingError:
        request = f" ({odd.request})" if odd.request else ""
        hint = "Check that HF_ENDPOINT is the address of a Hub that you trust."
        return family(f"{self.endpoint} {odd}{request}.", hint)

    def _unanswered(self, error: Exception, repo_id: str, family: type[ShardingError]) -> ShardingError:
        """Return a `family` error for what was not asked at all, or not answered."""
        if refuses_argument(error):
            hint = "Check what was given: the address of the Hub, the token, the names of files and branches."
            return family(f"The Hub's client refuses to ask {self.endpoint} about {repo_id}: {error}.", hint)
        hint = "Check the network and start the same job again; it goes on where it stopped."
        return family(f"{self.endpoint} cannot be reached: {error or type(error).__name__}.", hint)

    @contextmanager
    def explained(self, repo_id: str, family: type[ShardingError]) -> Iterator[None]:
        """Turn what the Hub's client raises about `repo_id` into a `family` error that says what helps."""
        import httpx2
        from huggingface_hub import errors

        try:
            yield
        except OddAnswer as error:
            raise self._distrusted(error, family) from error
        except GarbledAnswer as error:
            hint = "A proxy in between may have put its own answer there; start the same job again later."
            raise family(f"{self.endpoint} answers {error} with something that makes no sense.", hint) from error
        except errors.GatedRepoError as error:
            hint = f"Accept its terms on {self.page(repo_id)}, then run again signed in."
            remedy = Remedy("accept_terms", self.page(repo_id)) if self.is_signed_in else Remedy("sign_in")
            raise family(f"{repo_id} is gated.", hint, remedy) from error
        except errors.RevisionNotFoundError as error:
            if family is DestinationError:
                message = f"A branch of {repo_id} that the job writes to is gone."
                raise family(message, "Somebody has deleted it; start the same job again.") from error
            raise family(f"{repo_id} has no such revision.", "Name a branch, a tag or a commit that it has.") from error
        except errors.EntryNotFoundError as error:
            raise family(f"{repo_id} lacks a file that it listed.", "Run again: it may have just changed.") from error
        except errors.RepositoryNotFoundError as error:
            hint, remedy = "Check the name.", None
            if not self.is_signed_in:
                hint, remedy = f"Check the name; if it is private, sign in. {SIGN_IN}", Remedy("sign_in")
            raise family(f"There is no repo {repo_id} that you may see.", hint, remedy) from error
        except errors.HfHubHTTPError as error:
            raise _explain(error, repo_id, family) from error
        except errors.HFValidationError as error:
            raise family(f"{repo_id!r} is no name for a repo.", "It has the form owner/name.") from error
        except errors.OfflineModeIsEnabled as error:
            raise family("HF_HUB_OFFLINE is set, so no Hub is asked.", "Unset it, or work between folders.") from error
        except httpx2.LocalProtocolError:
            hint = "Check the token: it may have characters that no token has."
            message = f"The Hub's client refuses to ask {self.endpoint} about {repo_id}: no request looks like that."
            raise family(message, hint) from None  # its own words quote the header, and so the token
        except (ValueError, httpx2.RequestError, httpx2.InvalidURL, ConnectionError, TimeoutError) as error:
            if isinstance(error, ValueError) and not refuses_argument(error):
                raise  # a fault of our own
            raise self._unanswered(error, repo_id, family) from error
        except PermissionError as error:  # what hf-xet raises, as the next two are
            raise family(f"{_BY_STATUS[401][0]}: {repo_id}.", _BY_STATUS[401][1], Remedy("sign_in")) from error
        except FileNotFoundError as error:
            hint = "Run again later; if that does not help, whoever owns it should upload it again."
            raise family(f"The Hub lists files of {repo_id} whose bytes it does not have: {error}.", hint) from error
        except RuntimeError as error:
            if isinstance(error.__cause__, OddAnswer):
                raise self._distrusted(error.__cause__, family) from error
            hint = "Start the same job again; it goes on where it stopped."
            reason = str(error).rstrip(".")
            raise family(f"The transfer of {repo_id} broke off: {reason}.", hint) from error


def is_without(error: Exception) -> bool:
    """Return whether a Hub has no such endpoint: of what is missing behind one of its own, it says what it is."""
    from huggingface_hub.errors import HfHubHTTPError

    if not isinstance(error, HfHubHTTPError) or error.response.status_code not in (404, 405, 501):
        return False
    is_of_file = "/resolve/" in error.response.request.url.path
    return not is_of_file and not error.response.headers.get("X-Error-Code")


SIGN_IN = "To sign in, run `hf auth login` or set HF_TOKEN."

_BY_STATUS = {
    400: ("The Hub does not accept it", "Its own words, where it has any, say why."),
    401: ("The login is not valid or has expired", f"Sign in, then start the same job again. {SIGN_IN}"),
    403: ("The login does not allow it", "Use a token that may write there, or another namespace."),
    404: ("The Hub does not find it", "Check the name, and whether it has just been deleted."),
    409: ("It exists already, or was changed at the same moment", "Run again, or choose another name."),
    412: ("It has changed meanwhile", "Start the same job again; it goes on where it stopped."),
    413: ("It is larger than the Hub accepts", "Free some storage on the Hub, or choose a smaller shard size."),
    429: ("The Hub asks to slow down", "Wait some minutes and start the same job again."),
}


_PURPOSES = {
    "/refs": "staging",
    "/branch/": "staging",
    "/xet-": "the transfer through Xet",
    "/preupload/": "the upload",
    "/info/lfs/": "the upload",
    "/commit/": "publishing",
    "/tree/": "listing the files",
    "/whoami": "the login",
}
"""What for an endpoint is asked, by a part of its path."""


def _explain(error: Any, repo_id: str, family: type[ShardingError]) -> ShardingError:
    status = error.response.status_code
    if is_without(error):
        method, path = error.response.request.method, error.response.request.url.path
        purpose = next((purpose for part, purpose in _PURPOSES.items() if part in path), "the job")
        hint = "Check that HF_ENDPOINT is the address of a Hub; not every one has all of its endpoints."
        return family(f"This Hub has no {method} {path}, which {purpose} needs.", hint)
    problem, hint = _BY_STATUS.get(status, ("The Hub has a problem of its own", "Start the same job again later."))
    if "storage limit" in (error.server_message or "").lower():
        problem, hint = "There is no storage left for it on the Hub", _BY_STATUS[413][1]
    lines = [line.rstrip(".") for line in (error.server_message or "").strip().splitlines()]
    remedy = Remedy("sign_in") if status == 401 else None
    return family(f"{problem}: {repo_id}, status {status}{f', {lines[0][:200]}' if lines else ''}.", hint, remedy)
