"""What holds for all tests."""

import pytest


def pytest_collection_modifyitems(items):
    """Let the networks of tests be random: most are never trained, and know nothing."""
    for item in items:
        if item.path.is_relative_to(item.config.rootpath / "tests"):
            # Some of them run model by model on purpose.
            for name in ("PoorFitWarning", "SlowNetworkWarning"):
                ignored = f"ignore::sklearn_quam.exceptions.{name}"
                # In front: what a test says itself comes after it, and wins.
                item.add_marker(pytest.mark.filterwarnings(ignored), append=False)


class _StandingStill:
    """A clock that stands still: no test takes long enough for a bar or a warning."""

    @staticmethod
    def monotonic():
        return 0.0


@pytest.fixture(autouse=True)
def _no_time_passes(monkeypatch):
    """Let nothing that is said depend on how busy the machine is."""
    monkeypatch.setattr("sklearn_quam._posterior.progress.time", _StandingStill)
