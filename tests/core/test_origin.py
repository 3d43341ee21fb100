"""A place is called what it is in every sentence, and its text and its page lead to the same place again."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from sharding.core.origin import Place
from sharding.storage.names import parse_address

HUB = "https://huggingface.co"
words = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_ü&-]{0,8}", fullmatch=True)
ids = st.from_regex(r"[A-Za-z0-9]{2,9}/[A-Za-z0-9]{2,9}", fullmatch=True)
folders = st.lists(words, max_size=3).map(lambda parts: "".join(f"{part}/" for part in parts))
repos = st.builds(
    Place, st.just("hub"), ids, st.just("") | st.text("0123456789abcdef", min_size=40, max_size=40), folders
)
on_disk = st.builds(Place, st.just("folder"), ids | words, words)


@given(repos)
def test_the_text_and_the_page_of_a_repo_lead_to_it_again(place: Place) -> None:
    assert parse_address(place.text, HUB) == place
    revision = place.revision or ("main" if place.inside else "")
    assert parse_address(place.page(HUB), HUB) == replace(place, revision=revision)
    assert place.words == place.name == replace(place, revision="").text


@given(on_disk, repos)
def test_a_folder_is_never_taken_for_the_repo_of_its_name(folder: Place, repo: Place) -> None:
    folder = replace(folder, repo_id=repo.repo_id)
    assert not folder.is_same(repo) and not folder.is_same(folder) and repo.is_same(replace(repo, inside="other/"))
    assert (folder.words, folder.text, folder.page(HUB)) == (f"the folder {repo.repo_id}", repo.repo_id, "")
    assert not folder.is_pinned and not folder.states_hashes and repo.is_pinned and repo.states_hashes
