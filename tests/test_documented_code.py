"""Code on pages of the documentation that no doctest runs."""

import pickle
import re
import textwrap
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "adding_a_method.rst"


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


def test_every_promise_names_a_test():
    page = (DOCS / "promises.rst").read_text()
    promises = re.findall(r"^- .*$", page, re.M)
    sources = [path.read_text() for path in Path(__file__).parent.rglob("*.py")]
    tests = {name for source in sources for name in re.findall(r"^def (test_\w+)", source, re.M)}
    for promise in promises:
        named = set(re.findall(r"``(test_\w+)``", promise))
        assert named, promise
        assert named <= tests, promise
    assert len(page.splitlines()) <= 40
