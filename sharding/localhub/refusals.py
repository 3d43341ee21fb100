"""Refuse requests as the Hub does: with a status, an error code for clients, and a sentence."""


class Refusal(Exception):
    """A request that is refused. huggingface_hub chooses its exception by `code`, the header X-Error-Code."""

    def __init__(self, status: int, message: str, code: str = "", *, url: str = "", **headers: str) -> None:
        """Keep the answer. Its JSON body has the message and the `url`, its `headers` the message as one ASCII line."""
        super().__init__(message)
        self.status = status
        self.body = {"error": message, **({"url": url} if url else {})}
        text = " ".join(message.split()).encode("ascii", "replace").decode()
        self.headers = {**headers, "X-Error-Message": text, **({"X-Error-Code": code} if code else {})}


def bad_credentials() -> Refusal:
    return Refusal(401, "Invalid credentials in Authorization header")


def revision_not_found(revision: str) -> Refusal:
    return Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")


def entry_not_found(path: str, commit_id: str) -> Refusal:
    """A path that the commit does not have. The client caches that for the commit's id."""
    return Refusal(404, f"Entry not found: {path}", "EntryNotFound", **{"X-Repo-Commit": commit_id})
