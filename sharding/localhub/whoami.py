"""Tell callers which account they have."""

from sharding.localhub import accounts
from sharding.localhub.info import stable_id
from sharding.localhub.web import Answer, Call, Json, Rule, iso, link


def whoami(call: Call) -> Answer:
    """Return the caller's name, organisations and kind of token. Raises Refusal (401) for an anonymous caller."""
    with call.hub.state.reading() as db:
        caller, user = accounts.require_user(db, call)
    access: Json = {"type": "access_token", "accessToken": {"displayName": "loopback", "role": caller.token}}
    if caller.token == "oauth":
        expires = iso(caller.expires_seconds or 0)
        access = {"type": "oauth", "appId": caller.app, "scopes": sorted(caller.scopes), "expiresAt": expires}
    return {
        "type": "user",
        "id": stable_id(f"user {user}"),
        "name": user,
        "fullname": user.title(),
        "email": None,
        "emailVerified": True,
        "canPay": False,
        "isPro": False,
        "avatarUrl": link(call.hub, "avatars", f"{user}.svg"),
        "orgs": [
            {"type": "org", "id": stable_id(f"org {org}"), "name": org, "fullname": org.title(), "roleInOrg": "write"}
            for org in sorted(caller.namespaces - {user})
        ],
        "auth": access,
    }


RULES = (Rule("GET", "/api/whoami-v2", whoami),)
