"""A part of the fault matrix, another one every time, and a larger one for `make thorough`."""

import re
from collections.abc import Iterator

import pytest

from tests.conftest import new_seed
from tests.scenarios.matrix import CELLS, ENDPOINTS, Matrix, matrix, sample

SHARE = 200

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # huggingface_hub's own, in its LFS upload


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Matrix]:
    with matrix(tmp_path_factory.mktemp("matrix")) as cells:
        yield cells


@pytest.mark.parametrize("share", [SHARE, pytest.param(5, marks=pytest.mark.thorough)])
def test_no_fault_on_any_endpoint_gives_a_wrong_result_or_leaves_anything(share: int, cells: Matrix) -> None:
    seed = new_seed()
    for endpoint, fault in sample(CELLS, share, seed):
        try:
            cells.run(endpoint, fault)
        except Exception as error:
            raise AssertionError(f"{endpoint.title} × {fault} (seed {seed})") from error


def test_the_matrix_has_every_endpoint_that_a_job_asks(cells: Matrix) -> None:
    for hub in cells.hubs:
        hub.log.clear()
    for kind in ("new", "resumed", "again", "gated", "fruitless"):
        for xet in (True, False):
            if kind != "gated" or xet:
                cells.survey(kind, xet)
    asked = {line for hub in cells.hubs for line in hub.log}
    assert asked
    assert {line for line in asked if not any(re.search(endpoint.pattern, line) for endpoint in ENDPOINTS)} == set()
