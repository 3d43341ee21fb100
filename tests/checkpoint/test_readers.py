"""Which reader takes which files: a name that ranks use counts only where no other name leads to the file."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharding import job
from sharding.checkpoint.readers import READERS, files_of_run, is_of_run, reader_of, trained_folder
from sharding.core.errors import SourceError
from tests.checkpoint.repos import BERT, ones, repo

RANK = "shard-00001-model-00001-of-00001.safetensors"
OTHERS = ["__0_0.distcp", "config.json", "a.metadata", f"x{RANK}", "model.safetensors", "pytorch_model.bin"]
OF_RUN = [".metadata", RANK, RANK.replace("1-m", "2-m")]
names = st.sets(st.sampled_from([*OTHERS, *OF_RUN])).map(sorted)


@given(names)
def test_one_reader_takes_what_the_ranks_saved_and_no_file_else(inside: list[str]) -> None:
    taken, saved = files_of_run(inside), [name for name in inside if is_of_run(name)]
    ranks = [name for name in saved if name != ".metadata"]
    assert saved == [name for name in inside if name in OF_RUN] and taken == (ranks or saved)
    if taken:
        assert [one for one in READERS if one.of_run and one.finds(taken)] == [reader_of(taken, of_run=True)]
    is_run = bool(saved) and not {"model.safetensors", "pytorch_model.bin", f"x{RANK}"} & {*inside}
    assert trained_folder(inside) == ("" if is_run else None)
    assert trained_folder([f"run/{name}" for name in inside]) == ("run/" if saved else None)


def test_ranks_are_in_the_order_of_their_numbers() -> None:
    ranks = [f"model_world_size_12_rank_{number}.pt" for number in range(12)]
    assert files_of_run(sorted(ranks)) == ranks


def test_files_of_two_saves_are_told_apart() -> None:
    with pytest.raises(SourceError, match="of several saves, with 00001 and 00002 files each"):
        files_of_run([RANK, RANK.replace("of-00001", "of-00002")])


@pytest.mark.parametrize("index", [True, False])
def test_a_file_that_is_named_is_an_ordinary_one_whatever_it_is_called(index: bool, tmp_path: Path) -> None:
    """An index names it, or config.json does."""
    named = {"model.safetensors.index.json": {"weight_map": {"w": RANK}}} if index else {}
    config = {"config.json": BERT if index else BERT | {"transformers_weights": RANK}}
    found = job.inspect(str(repo(tmp_path, {RANK: ones("w"), **config, **named})))
    assert [file.path for file in found.weight_files] == [RANK] and not found.of_ranks
    assert [finding.code for finding in found.findings if finding.level == "warning"] == []
