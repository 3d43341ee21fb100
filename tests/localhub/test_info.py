"""What the Hub tells about repos: descriptions, search, cards, pages."""

import numpy as np
import pytest
from huggingface_hub import CommitOperationAdd
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from sharding.localhub.cards import find_errors
from sharding.localhub.store import parse_shard
from tests.localhub.conftest import NUMBERS, Server

CARD = b"---\nlicense: apache-2.0\ntags: [one, two]\nbase_model: acme/base\n---\n# Title <script>alert(1)</script>\n"


@pytest.fixture
def model(hub: Server, repo: str) -> str:
    """A repo with two files of weights, and a card."""
    files = {
        "m-1.safetensors": save({"a": np.zeros(3)}),
        "m-2.safetensors": save({"b": np.zeros(100)}),
        "README.md": CARD,
    }
    adds = [CommitOperationAdd(name, content) for name, content in files.items()]
    hub.api().create_commit(repo, adds, commit_message="files")
    return repo


def test_a_model_is_described_down_to_its_files(hub: Server, model: str) -> None:
    info = hub.api().model_info(model, files_metadata=True)
    assert info.card_data.license == "apache-2.0"
    assert info.tags == ["one", "two"]
    assert (info.private, info.gated, info.author) == (False, False, "alice")
    sizes = {file.rfilename: file.size for file in info.siblings}
    assert sizes["m-2.safetensors"] == len(save({"b": np.zeros(100)}))
    assert [file.lfs is not None for file in info.siblings if file.rfilename.endswith("safetensors")] == [True, True]
    header = hub.api().parse_safetensors_file_metadata(model, "m-1.safetensors")
    assert header.parameter_count == {"F64": 3}, "the client reads it by ranges"


def test_repos_are_found_by_words_and_by_author(hub: Server) -> None:
    word = f"needle-{next(NUMBERS)}"
    for token, owner in (("hf_alice", "alice"), ("hf_bob", "bob")):
        for n in range(3):
            hub.api(token).create_repo(f"{owner}/{word}-{n}")
    api = hub.api()
    assert len(list(api.list_models(search=word.upper()))) == 6
    assert {model.id for model in api.list_models(search=word, author="bob")} == {f"bob/{word}-{n}" for n in range(3)}
    assert len(list(api.list_models(search=word, limit=2))) == 2
    assert len(list(api.list_models(search=word, limit=5))) == 5
    assert list(api.list_models(search="nothing has this name")) == []


CHECKED = {  # metadata of a card, and what is wrong with it
    "license: apache-2.0\nlanguage: [en, de]\ntags: [x]": "",
    "license: [mit, apache-2.0]": "",
    "": "",
    "license: mine": '"license" must be one of [',
    "license: 3": '"license" must be one of [',
    "tags: 3": '"tags" must be a string or an array',
    "tags: [x, 3]": '"tags[1]" must be a string',
    "base_model: {a: b}": '"base_model" must be',
    "pipeline_tag: [x]": '"pipeline_tag" must be a string',
    "- a\n- b": "must be an object",
    "a: [": "YAML Metadata Error",
    "a: !!python/object:os.system {}": "YAML Metadata Error",
}


def test_a_card_is_checked(hub: Server) -> None:
    for metadata, error in CHECKED.items():
        content = f"---\n{metadata}\n---\n# Title\n"
        reply = hub.ask("POST", "/api/validate-yaml", {"content": content, "repoType": "model"})
        messages = [item["message"] for item in reply.json()["errors"]]
        assert reply.status == (400 if error else 200), metadata
        assert any(error in message for message in messages) if error else not messages, metadata


@given(st.text(alphabet="-\n: abc[]{}!&*'\"#|>%@`\t", max_size=60))
def test_no_card_breaks_the_check(text: str) -> None:
    assert all(isinstance(error, str) for error in find_errors(f"---\n{text}\n---\n"))


@given(st.binary(max_size=600))
def test_no_bytes_break_the_reader_of_shards(data: bytes) -> None:
    try:
        files = parse_shard(bytes(48) + data)
    except ValueError:
        return
    assert b"\xff" * 32 in data
    assert all(len(file.hash) == len(file.sha256) == 64 for file in files)


def test_people_see_a_page_with_files_and_the_card_as_text(hub: Server, model: str) -> None:
    commit = f"/{model}/commit/{hub.api().model_info(model).sha}"
    for path in (f"/{model}", f"/{model}/tree/main", commit):
        reply = hub.ask("GET", path, token=None)
        assert reply.status == 200 and reply.headers["content-type"].startswith("text/html")
        assert model in reply.body.decode()
    text = hub.ask("GET", f"/{model}", token=None).body.decode()
    assert "m-1.safetensors" in text and "<script>" not in text and "&lt;script&gt;" in text
    assert hub.ask("GET", "/alice/none", token=None).status == 404
