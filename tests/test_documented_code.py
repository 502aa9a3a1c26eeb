"""Code on pages of the documentation that no doctest runs."""

import pickle
import re
import textwrap
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone

PAGE = Path(__file__).parent.parent / "docs" / "adding_a_method.rst"


def code_blocks(page):
    found = re.findall(r"^\.\. code-block:: python\n\n((?:    .*\n|\n)+)", page.read_text(), re.M)
    return [textwrap.dedent(block) for block in found]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_method_of_the_page_on_adding_one_works():
    method, use = code_blocks(PAGE)
    names = {"__name__": __name__}
    exec(method + use, names)
    est, X, y = names["est"], names["X"], names["y"]
    u, diagnostics = est.predict_uncertainty(X[:9], return_diagnostics=True)
    assert (u.epistemic > 0).all()
    assert (diagnostics.effective_sample_size > 1).all()
    again = clone(est).fit(X, y).predict_uncertainty(X[:9])
    np.testing.assert_array_equal(again.epistemic, u.epistemic)
    globals().update(ShiftedRows=names["ShiftedRows"], AugmentationClassifier=type(est))
    stored = pickle.loads(pickle.dumps(est)).predict_uncertainty(X[:9])
    np.testing.assert_array_equal(stored.epistemic, u.epistemic)
    with pytest.raises(ValueError, match=r"scale .*changed after fit"):
        est.set_params(scale=0.2).predict_uncertainty(X[:9])
