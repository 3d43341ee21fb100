"""Work with the libraries that `make thorough` installs, in a process of its own that alone can import them."""

import multiprocessing
import site
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import ROOT

ENVIRONMENT = ROOT / ".venv/loaders"
"""Where `make thorough` installs them: nothing else that is tested is to find them."""

_declared: list[object] = []
"""What torch forgets as soon as nobody holds it."""


def packages() -> Path:
    """Return the folder that has them."""
    spec = find_spec("timm")
    if spec and spec.origin:  # in an environment that has everything
        return Path(spec.origin).parents[1]
    return ENVIRONMENT / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def make_importable() -> None:
    """Let this process import them, torchvision beside any build of torch."""
    site.addsitedir(str(packages()))
    declare_operators()


def declare_operators() -> None:
    """Declare the operators of torchvision that it says more about when it is imported.

    Its compiled operators load only beside a torch that was built for the same CUDA. Beside any other, torchvision
    passes over them in silence, and then fails: "operator torchvision::nms does not exist". No model here calls one.
    """
    spec = find_spec("torchvision")
    if _declared or spec is None or spec.origin is None:
        return
    import torch

    for file in Path(spec.origin).parent.glob("_C.*"):
        try:
            torch.ops.load_library(file)
        except OSError:
            operators = torch.library.Library("torchvision", "DEF")
            for name in ("nms", "qnms"):
                operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            _declared.append(operators)


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[ProcessPoolExecutor]:
    """Start a process that can import them. Here, transformers would import torchvision in every test that follows."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=make_importable) as pool:
        yield pool
