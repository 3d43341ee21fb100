"""Show a repo in plain HTML."""

from html import escape
from urllib.parse import quote

from starlette.responses import HTMLResponse

from sharding.localhub import accounts, records
from sharding.localhub.cards import MAX_CARD_BYTES
from sharding.localhub.refusals import Refusal
from sharding.localhub.web import Answer, Call, unknown

_STYLE = """
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1b1f24 }
table { border-collapse: collapse } td { padding: .2rem 1.2rem .2rem 0; border-top: 1px solid #d0d7de }
td.size { text-align: right; font-variant-numeric: tabular-nums }
pre { white-space: pre-wrap; background: #f6f8fa; padding: 1rem; border-radius: .4rem }
button { font: inherit; padding: .4rem 1rem; margin: .2rem 0 }
"""


def document(title: str, body: str) -> str:
    """Return an HTML page. `title` is text, `body` is HTML."""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
        f"<h1>{escape(title)}</h1>{body}</html>"
    )


def repo(call: Call) -> Answer:
    try:
        with accounts.reading(call, "see") as (db, repository, commit):
            entries = records.list_entries(db, commit)
            card = call.hub.read_text(db, commit, "README.md", MAX_CARD_BYTES)
    except Refusal:
        return HTMLResponse(document("404", "<p>There is no such page, or it is private.</p>"), status_code=404)
    base = f"/{quote(repository.path)}/resolve/{commit.id}/"
    rows = "".join(
        f'<tr><td><a href="{base}{quote(entry.path)}">{escape(entry.path)}</a></td>'
        f'<td class="size">{entry.size_bytes:,} bytes</td><td>{"LFS" if entry.sha256 else ""}</td></tr>'
        for entry in entries
    )
    private = ", private" if repository.private else ""
    gated = f", gated ({repository.gated})" if repository.gated else ""
    body = (
        f"<p>{repository.kind}{private}{gated}, at commit <code>{commit.id[:10]}</code>: {escape(commit.title)}</p>"
        f"<table>{rows}</table><h2>Card</h2><pre>{escape(card)}</pre>"
    )
    return HTMLResponse(document(repository.id, body))


RULES = (
    ("GET", "/api/{path:path}", unknown),  # before the page of a repo whose owner is "api"
    ("GET", "/{kind_prefix}/{owner}/{name}", repo),
    ("GET", "/{kind_prefix}/{owner}/{name}/tree/{revision}", repo),
    ("GET", "/{kind_prefix}/{owner}/{name}/commit/{revision}", repo),
)
