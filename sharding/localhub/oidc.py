"""Sign users in to applications on this machine, by OpenID Connect: any client id, no passwords, a page that asks."""

import base64
import json
import secrets
import time
from html import escape
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlencode, urlsplit

from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from sharding.localhub import accounts
from sharding.localhub.hub import Hub
from sharding.localhub.pages import document
from sharding.localhub.refusals import Refusal
from sharding.localhub.web import Answer, Call, Json, iso, link, stable_id

if TYPE_CHECKING:
    from joserfc.jwk import RSAKey

_SCOPE_NAMES = """
openid profile email read-repos gated-repos contribute-repos write-repos manage-repos read-billing
inference-api jobs webhooks write-discussions
"""
SCOPES = frozenset(_SCOPE_NAMES.split())


def configuration(call: Call) -> Answer:
    hub = call.hub
    return {
        "issuer": hub.address,
        "jwks_uri": link(hub, "oauth/jwks"),
        "authorization_endpoint": link(hub, "oauth/authorize"),
        "token_endpoint": link(hub, "oauth/token"),
        "response_types_supported": ["code"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["RS256"],
        "token_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post", "none"],
    }


def keys(call: Call) -> Answer:
    return {"keys": [_signing_key(call.hub).as_dict(private=False)]}


def authorize(call: Call) -> Answer:
    """Ask which user it is, and send the browser back to the application with a code."""
    fields = {name: values[0] for name, values in call.form().items()} if call.method == "POST" else {}
    wish = {**dict(call.query.items()), **fields}
    for name in ("client_id", "redirect_uri"):
        if not wish.get(name):
            raise Refusal(400, f'"{name}" is required')
    if wish.get("response_type") != "code":
        raise Refusal(400, '"response_type" must be "code"')
    target = urlsplit(wish["redirect_uri"])
    if target.scheme not in ("http", "https") or target.hostname not in ("127.0.0.1", "localhost", "::1"):
        raise Refusal(400, "This Hub signs users in only to applications on this machine.")
    wish["scope"] = " ".join(scope for scope in wish.get("scope", "openid").split() if scope in SCOPES)
    with call.hub.state.reading() as db:
        users = [row[0] for row in db.execute("SELECT name FROM accounts WHERE type = 'user' ORDER BY rowid")]
    user = wish.pop("user", None)
    if user is None:
        return _consent_page(users, wish)
    if user not in users:
        raise Refusal(400, f"There is no user {user}.")
    code = secrets.token_urlsafe(24)
    now = time.time()
    grant = {**wish, "user": user, "at": int(now)}
    with call.hub.state.writing() as db:
        db.execute("DELETE FROM oauth_codes WHERE expires_seconds < ?", (now,))
        db.execute("INSERT INTO oauth_codes VALUES (?, ?, ?)", (code, json.dumps(grant), now + 600))
    answer = urlencode({"code": code, **({"state": wish["state"]} if "state" in wish else {})})
    return RedirectResponse(wish["redirect_uri"] + ("&" if target.query else "?") + answer, status_code=302)


def token(call: Call) -> Answer:
    """Exchange a code for an access token, and with the scope openid for an id token. A code works once."""
    form = {name: values[0] for name, values in call.form().items()}
    if form.get("grant_type") != "authorization_code":
        return JSONResponse({"error": "unsupported_grant_type"}, 400)
    client, access = _client_of(call, form), f"hf_oauth_{secrets.token_urlsafe(32)}"
    with call.hub.state.writing() as db:
        row = db.execute(
            "DELETE FROM oauth_codes WHERE code = ? RETURNING grant_json, expires_seconds", (form.get("code", ""),)
        ).fetchone()
        grant: Json = json.loads(row[0]) if row and row[1] > time.time() else {}
        good = (grant.get("client_id"), grant.get("redirect_uri")) == (client, form.get("redirect_uri"))
        if good:
            expires = time.time() + call.hub.settings.oauth_seconds
            values = (access, grant["user"], client, grant["scope"], expires)
            db.execute("INSERT INTO oauth_tokens VALUES (?, ?, ?, ?, ?)", values)
    if not good:
        return JSONResponse({"error": "invalid_grant"}, 400)
    answer: Json = {"access_token": access, "token_type": "bearer", "scope": grant["scope"]}
    answer["expires_in"] = call.hub.settings.oauth_seconds
    if "openid" in grant["scope"].split():
        answer["id_token"] = _id_token(call.hub, grant)
    return JSONResponse(answer, headers={"Cache-Control": "no-store"})


def whoami(call: Call) -> Answer:
    """Return the caller's name, organisations and kind of token. Raises Refusal (401) for an anonymous caller."""
    with call.hub.state.reading() as db:
        caller, user = accounts.require_user(db, call)
    access: Json = {"type": "access_token", "accessToken": {"displayName": "loopback", "role": caller.token}}
    if caller.token == "oauth":
        expires = iso(caller.expires_seconds or 0)
        access = {"type": "oauth", "appId": caller.app, "scopes": sorted(caller.scopes), "expiresAt": expires}
    orgs = [
        {"type": "org", "id": stable_id(f"org {org}"), "name": org, "fullname": org.title(), "roleInOrg": "write"}
        for org in sorted(caller.namespaces - {user})
    ]
    claims = _claims(call.hub, user)
    names = {"name": user, "fullname": claims["name"], "email": None, "avatarUrl": claims["picture"]}
    known = {"type": "user", "id": claims["sub"], **names, "emailVerified": True, "canPay": False, "isPro": False}
    return {**known, "orgs": orgs, "auth": access}


def _signing_key(hub: Hub) -> "RSAKey":
    from joserfc.jwk import KeyParameters, RSAKey

    def new() -> str:
        parameters: KeyParameters = {"kid": secrets.token_hex(8), "use": "sig", "alg": "RS256"}
        return json.dumps(RSAKey.generate_key(2048, parameters, private=True).as_dict(private=True))

    return RSAKey.import_key(json.loads(hub.state.secret("id token key", new)))


def _id_token(hub: Hub, grant: Json) -> str:
    from joserfc import jwt

    now, key = int(time.time()), _signing_key(hub)
    claims = {"iss": hub.address, "aud": grant["client_id"], "iat": now, "exp": now + 3600, "auth_time": grant["at"]}
    claims |= {**_claims(hub, grant["user"]), **({"nonce": grant["nonce"]} if grant.get("nonce") else {})}
    return jwt.encode({"alg": "RS256", "kid": key.kid}, claims, key)


def _claims(hub: Hub, user: str) -> Json:
    names = {"sub": stable_id(f"user {user}"), "name": user.title(), "preferred_username": user, "isPro": False}
    return {**names, "profile": link(hub, user), "picture": link(hub, "avatars", f"{user}.svg")}


def _client_of(call: Call, form: dict[str, str]) -> str:
    scheme, _, value = call.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return form.get("client_id", "")
    try:
        return unquote(base64.b64decode(value).decode().partition(":")[0])
    except ValueError:
        return ""


def _consent_page(users: list[str], wish: dict[str, str]) -> Response:
    hidden = "".join(f'<input type="hidden" name="{escape(key)}" value="{escape(wish[key])}">' for key in wish)
    forms = "".join(
        f'<form method="post" action="/oauth/authorize">{hidden}'
        f'<button name="user" value="{escape(user)}">Continue as {escape(user)}</button></form>'
        for user in users
    )
    scopes = "".join(f"<li>{escape(scope)}</li>" for scope in wish["scope"].split())
    body = f"<p>The application <b>{escape(wish['client_id'])}</b> asks for:</p><ul>{scopes}</ul>{forms}"
    return HTMLResponse(document("Sign in to the loopback Hub", body))


RULES = (
    ("GET", "/.well-known/openid-configuration", configuration),
    ("GET", "/oauth/authorize", authorize),
    ("POST", "/oauth/authorize", authorize),
    ("POST", "/oauth/token", token),
    ("GET", "/oauth/jwks", keys),
    ("GET", "/api/whoami-v2", whoami),
)
