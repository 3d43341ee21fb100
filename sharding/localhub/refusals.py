"""Refuse requests as the Hub does: with a status, an error code for clients, and a sentence."""

from collections.abc import Mapping


class Refusal(Exception):
    """A request that is refused. huggingface_hub chooses its exception by `code`, the header X-Error-Code."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> None:
        """Keep the answer. `extra` stands beside `error` in the JSON body."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.headers = dict(headers or {})
        self.extra = dict(extra or {})

    def all_headers(self) -> dict[str, str]:
        """Return the headers to send. The message is reduced to one line of ASCII."""
        text = " ".join(self.message.split()).encode("ascii", "replace").decode()
        return {**self.headers, "X-Error-Message": text, **({"X-Error-Code": self.code} if self.code else {})}


def bad_credentials() -> Refusal:
    """A token that is unknown or has expired."""
    return Refusal(401, "Invalid credentials in Authorization header")


def sign_in_first() -> Refusal:
    """An anonymous request for something that needs a login."""
    return Refusal(401, "Invalid username or password.")


def repo_not_found(signed_in: bool) -> Refusal:
    """A repo that is missing or hidden. The caller must not see which of the two."""
    return Refusal(404 if signed_in else 401, "Repository not found", "RepoNotFound")


def revision_not_found(revision: str) -> Refusal:
    """A branch, tag or commit that the repo does not have."""
    return Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")


def entry_not_found(path: str, commit_id: str) -> Refusal:
    """A path that the commit does not have. The client caches that for the commit's id."""
    return Refusal(404, f"Entry not found: {path}", "EntryNotFound", headers={"X-Repo-Commit": commit_id})


def forbidden(message: str) -> Refusal:
    """A known caller who does not have the right."""
    return Refusal(403, message)


def bad_request(message: str) -> Refusal:
    """A request that is invalid."""
    return Refusal(400, message)
