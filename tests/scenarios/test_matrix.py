"""A part of the fault matrix, another one every time, and a larger one for `make thorough`."""

import re
from collections.abc import Iterator

import pytest

from tests.conftest import new_seed
from tests.scenarios.matrix import ENDPOINTS, Matrix, matrix, sample

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # huggingface_hub's own, in its LFS upload


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Matrix]:
    with matrix(tmp_path_factory.mktemp("matrix")) as cells:
        yield cells


@pytest.mark.parametrize("number", [10, pytest.param(40, marks=pytest.mark.thorough)])
def test_no_fault_on_any_endpoint_gives_a_wrong_result_or_leaves_anything(number: int, cells: Matrix) -> None:
    seed = new_seed()
    for endpoint, fault in sample(number, seed):
        try:
            cells.run(endpoint, fault)
        except Exception as error:
            raise AssertionError(f"{endpoint.title} × {fault} (seed {seed})") from error


def test_the_matrix_has_every_endpoint_that_a_job_asks(cells: Matrix) -> None:
    asked = set[str]()
    for kind in ("new", "resumed", "again", "gated", "fruitless"):
        for xet in (True, False) if kind != "gated" else (True,):
            asked |= set(cells.try_out(kind, xet)[0].log)
    assert asked
    assert {line for line in asked if not any(re.search(endpoint.pattern, line) for endpoint in ENDPOINTS)} == set()
