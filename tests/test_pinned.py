"""Numbers that must stay as they are: every method, and the ways in which QUAM can search."""

import json
from pathlib import Path

import numpy as np
import pytest

from sklearn_quam import PenaltySearch

from .pinned_cases import cases, numbers

NUMBERS = json.loads((Path(__file__).parent / "pinned_numbers.json").read_text())


def quam(kind, network, arguments, search):
    return kind(network, random_state=0, search=PenaltySearch(**search), **arguments)


CASES = {name: case for name, *case in cases(quam)}


def test_every_pinned_number_has_a_case():
    assert set(NUMBERS) == set(CASES)


@pytest.mark.filterwarnings("ignore:The chains have not converged")
@pytest.mark.parametrize("name", NUMBERS)
def test_the_same_numbers(name):
    make, data, rows = CASES[name]
    found = numbers(make(), data, rows)
    for kind, columns in NUMBERS[name].items():
        for column, expected in columns.items():
            # The standard error of a single model is the root of a rounding.
            np.testing.assert_allclose(
                found[kind][column], expected, rtol=1e-6, atol=1e-8, err_msg=f"{kind}: {column}"
            )
