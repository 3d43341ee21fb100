"""Namespaces are offered where a Hub says that somebody may write; what is no answer of a Hub is nobody."""

from typing import Any

import pytest

from sharding.storage.hub.answers import person_of
from sharding.storage.hub.retry import OddAnswer


def answer(**more: Any) -> dict[str, Any]:
    """What a Hub says to "who am I"."""
    return {"type": "user", "name": "alice", "auth": {"type": "access_token"}, **more}


def org(name: str, role: str | None = None) -> dict[str, Any]:
    return {"type": "org", "name": name, **({"roleInOrg": role} if role else {})}


@pytest.mark.parametrize("role", ["admin", "write", "contributor", None])
def test_an_organisation_where_one_may_write_is_open(role: str | None) -> None:
    assert person_of(answer(orgs=[org("acme", role)])).namespaces == ("alice", "acme")


@pytest.mark.parametrize("role", ["read", "no_access"])
def test_an_organisation_where_one_may_only_read_is_not(role: str) -> None:
    assert person_of(answer(orgs=[org("zoo", "write"), org("acme", role)])).namespaces == ("alice", "zoo")


@pytest.mark.parametrize("orgs", [{}, {"orgs": None}, {"orgs": []}])
def test_somebody_of_no_organisation_has_their_own_namespace(orgs: dict[str, Any]) -> None:
    assert person_of(answer(**orgs)).namespaces == ("alice",)


@pytest.mark.parametrize(
    ("auth", "may"),
    [
        ({"type": "access_token"}, True),
        (None, True),
        ({"type": "oauth", "scopes": ["manage-repos"]}, True),
        ({"type": "oauth", "scopes": ["contribute-repos"]}, False),
        ({"type": "oauth"}, False),
        ({"type": "oauth", "scopes": None}, False),
    ],
)
def test_an_application_shows_a_repo_later_only_with_the_scope_for_it(auth: Any, may: bool) -> None:
    assert person_of(answer(auth=auth)).may_show_later is may


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"name": 3},
        {"name": ""},
        {"name": None},
        {"name": "alice", "orgs": [{}]},
        {"name": "alice", "orgs": [{"name": None}]},
        [],
        None,
    ],
)
def test_an_odd_answer_is_nobody(odd: Any) -> None:
    with pytest.raises(OddAnswer, match="makes no sense"):
        person_of(odd)
