"""Say no as the Hub does: a status, an error code that clients look for, a sentence."""

from collections.abc import Mapping


class Refusal(Exception):
    """A request that is not granted. `code` is the X-Error-Code by which huggingface_hub picks its exception."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> None:
        """Keep what is answered; `extra` joins `error` in the JSON body."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.headers = dict(headers or {})
        self.extra = dict(extra or {})

    def all_headers(self) -> dict[str, str]:
        """Return the headers to send, the message reduced to what a header may carry."""
        text = " ".join(self.message.split()).encode("ascii", "replace").decode()
        return {**self.headers, "X-Error-Message": text, **({"X-Error-Code": self.code} if self.code else {})}


def bad_credentials() -> Refusal:
    """A token that is unknown or has expired."""
    return Refusal(401, "Invalid credentials in Authorization header")


def sign_in_first() -> Refusal:
    """An anonymous request for something that needs a name."""
    return Refusal(401, "Invalid username or password.")


def repo_not_found(signed_in: bool) -> Refusal:
    """A repo that is missing or hidden: the two must not be told apart."""
    return Refusal(404 if signed_in else 401, "Repository not found", "RepoNotFound")


def revision_not_found(revision: str) -> Refusal:
    """A branch, tag or commit that the repo has not."""
    return Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")


def entry_not_found(path: str, commit_id: str) -> Refusal:
    """A path that the commit has not; the client remembers that under the commit's id."""
    return Refusal(404, f"Entry not found: {path}", "EntryNotFound", headers={"X-Repo-Commit": commit_id})


def forbidden(message: str) -> Refusal:
    """A known caller without the right."""
    return Refusal(403, message)


def bad_request(message: str) -> Refusal:
    """A request that makes no sense."""
    return Refusal(400, message)
