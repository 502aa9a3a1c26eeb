"""What holds for all tests."""

import pytest


def pytest_collection_modifyitems(items):
    """Let the networks of tests be random: most are never trained, and know nothing."""
    for item in items:
        if item.path.is_relative_to(item.config.rootpath / "tests"):
            ignored = "ignore::sklearn_quam.exceptions.PoorFitWarning"
            # In front: what a test says itself comes after it, and wins.
            item.add_marker(pytest.mark.filterwarnings(ignored), append=False)
