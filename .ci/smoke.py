"""Smoke test of an installed package: does it import, fit and answer, and does it say it is typed?

Usage: python -I .ci/smoke.py. With -I, neither this folder nor the source tree is on the path.
"""

from importlib.metadata import version
from pathlib import Path

import numpy as np
from sklearn.datasets import load_iris
from sklearn.neural_network import MLPClassifier, MLPRegressor

import sklearn_quam
from sklearn_quam import QUAMClassifier, QUAMRegressor, metrics

folder = Path(sklearn_quam.__file__).parent
assert folder.parent.name == "site-packages", f"not an installed package: {folder}"
assert version("sklearn_quam") == sklearn_quam.__version__
assert (folder / "py.typed").is_file()

X, y = load_iris(return_X_y=True)
for network, method, target in [
    (MLPClassifier(max_iter=1000, random_state=0), QUAMClassifier, y),
    (MLPRegressor(max_iter=1000, random_state=0), QUAMRegressor, X[:, 0]),
]:
    est = method(network.fit(X, target), random_state=0).fit(X, target)
    uncertainty = est.predict_uncertainty(X[:5])
    assert np.all(uncertainty.epistemic >= 0)
    np.testing.assert_allclose(uncertainty.total, uncertainty.aleatoric + uncertainty.epistemic)

assert set(metrics.__all__) <= set(dir(metrics))
print("sklearn_quam", sklearn_quam.__version__, "works")
