"""What tests of replays ask for by name: graphs that are replayed, and programs of few tensors and of many."""

import pytest
from replaying import graphs

from bothways.capture.program import groups


@pytest.fixture
def recorder():
    with graphs() as found:
        yield found


@pytest.fixture(params=[groups.FROM, 4], ids=["few", "many"])
def few_and_many(request, monkeypatch):
    """As programs of few tensors, and as those of many, which take them as one tuple."""
    monkeypatch.setattr(groups, "FROM", request.param)
