"""Numbers that stay as they are, or are changed on purpose: see `tests.pin`."""

import json

import numpy as np
import pytest

from . import pin


@pytest.fixture(scope="module")
def pinned():
    return json.loads(pin.PATH.read_text())


def test_every_pinned_number_has_a_method(pinned):
    assert {key.partition(":")[0] for key in pinned} == set(pin.NAMES)


@pytest.mark.parametrize("name", pin.NAMES)
def test_the_same_numbers(name, pinned):
    found = pin.numbers(name)
    assert set(found) == {key for key in pinned if key.startswith(f"{name}:")}
    for key, array in found.items():
        # In double precision: libraries that add up in another order agree to six digits, also
        # after some steps of a chain. What is zero but for rounding is compared absolutely.
        np.testing.assert_allclose(np.ravel(array), pinned[key], rtol=1e-6, atol=1e-9, err_msg=key)
