"""Machines are shared: a slow moment is no failure."""

import pytest
from hypothesis import settings
from samples import FakeCluster

from mirrorlake import doubts

settings.register_profile("shared", deadline=None)
settings.load_profile("shared")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """A target made of lists: nothing is on its way there, so nobody waits for a stable end."""
    monkeypatch.setattr(doubts, "STABLE_SECONDS", 0.0)
    return FakeCluster()
