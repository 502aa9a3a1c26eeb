"""What holds for all tests."""

import pytest

from sklearn_quam import _cache


@pytest.fixture(autouse=True)
def _empty_memory(monkeypatch):
    """No test finds what another one has computed."""
    monkeypatch.setattr(_cache, "_remembered", _cache._Memory())
