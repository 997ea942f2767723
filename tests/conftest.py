"""Fixtures that all tests share."""

import os
from pathlib import Path

import pytest
import torch

from torch_qmm import _C

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"


@pytest.fixture(params=_C.cpu_isas())
def isa(request):
    """Runs a test once on each instruction set that this processor has."""
    before = _C.cpu_isa()
    _C.set_cpu_isa(request.param)
    yield request.param
    _C.set_cpu_isa(before)


@pytest.fixture(scope="session")
def mps() -> torch.device:
    """torch's mps device: a Mac's own, or else the simulated one of tests/metalsim."""
    if not torch.backends.mps.is_available():
        from tests import metalsim

        try:
            metalsim.install()
        except metalsim.NotInstalledError as error:
            missing(str(error))
    return torch.device("mps")


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def missing(what: str) -> None:
    """Something that `make test` sets up isn't there: a failure in CI, a skip on a user's machine."""
    if os.environ.get("CI"):
        pytest.fail(f"{what}; `make test` sets it up", pytrace=False)
    pytest.skip(what)
