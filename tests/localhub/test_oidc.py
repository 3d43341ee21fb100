"""Sign-in to applications."""

import base64
import time
from collections.abc import Callable
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from joserfc import jwt
from joserfc.jwk import KeySet

from tests.localhub.conftest import SIGN_IN, Server


def test_the_id_token_is_signed_and_says_who_signed_in_where(hub: Server) -> None:
    found = hub.ask("GET", "/.well-known/openid-configuration", token=None).json()
    assert found["issuer"] == hub.address
    basic = base64.b64encode(b"app:secret").decode()
    form = {"grant_type": "authorization_code", "code": hub.code(nonce="n1"), "redirect_uri": SIGN_IN["redirect_uri"]}
    answer = hub.ask("POST", found["token_endpoint"], form=form, token=None, Authorization=f"Basic {basic}").json()
    keys = KeySet.import_key_set(hub.ask("GET", found["jwks_uri"], token=None).json())
    assert all("d" not in key.as_dict() for key in keys)
    token = jwt.decode(answer["id_token"], keys, algorithms=["RS256"])
    wanted = {"iss": hub.address, "aud": "app", "nonce": "n1"}
    claims = jwt.JWTClaimsRegistry(**{name: {"essential": True, "value": value} for name, value in wanted.items()})
    claims.validate(token.claims)
    assert token.claims["preferred_username"] == "alice"
    assert answer["scope"] == "openid profile"
    assert hub.api(answer["access_token"]).whoami()["name"] == "alice"


def test_the_page_offers_every_user_and_a_choice_goes_on(hub: Server) -> None:
    page = hub.ask("GET", f"/oauth/authorize?{urlencode({**SIGN_IN, 'client_id': '<b>'})}", token=None)
    text = page.body.decode()
    assert all(f'value="{user}"' in text for user in ("alice", "bob", "carol"))
    assert 'value="acme"' not in text and "<b><b>" not in text
    chosen = hub.ask("POST", "/oauth/authorize", form={**SIGN_IN, "user": "bob"}, token=None)
    code = parse_qs(urlsplit(chosen.headers["location"]).query)["code"][0]
    assert hub.api(hub.exchange(code).json()["access_token"]).whoami()["name"] == "bob"


def test_a_code_is_good_once_and_for_its_own_application(hub: Server) -> None:
    code = hub.code()
    assert hub.exchange(code).status == 200
    for again, change in (
        (code, {}),
        (hub.code(), {"client_id": "other"}),
        (hub.code(), {"redirect_uri": "http://x/"}),
    ):
        refused = hub.exchange(again, **change)
        assert (refused.status, refused.json()) == (400, {"error": "invalid_grant"})
    assert hub.exchange(hub.code(), grant_type="password").json() == {"error": "unsupported_grant_type"}


@pytest.mark.parametrize(
    "change", [{"redirect_uri": "http://example.org/"}, {"response_type": "token"}, {"user": "eve"}, {"client_id": ""}]
)
def test_a_request_that_is_not_in_order_is_refused(hub: Server, change: dict[str, str]) -> None:
    query = urlencode({**SIGN_IN, "user": "alice", **change})
    assert hub.ask("GET", f"/oauth/authorize?{query}", token=None).status == 400


def test_without_openid_there_is_no_identity(hub: Server) -> None:
    answer = hub.login("alice", "read-repos unheard-of")
    assert "id_token" not in answer
    assert answer["scope"] == "read-repos"


def test_a_login_ends(served: Callable[..., Server]) -> None:
    brief = served("--oauth-seconds", "1")
    answer = brief.login("alice", "openid")
    assert answer["expires_in"] == 1
    statuses = []
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and 401 not in statuses:
        statuses.append(brief.ask("GET", "/api/whoami-v2", token=answer["access_token"]).status)
    assert statuses[-1] == 401
