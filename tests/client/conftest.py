import pytest

from .asking import Asking, Awaiting, Waiting


@pytest.fixture(params=[Waiting, Awaiting], ids=["sync", "async"])
def ask(request: pytest.FixtureRequest) -> Asking:
    asking: Asking = request.param()
    return asking
