"""
A scikit-learn MLP in a pipeline
================================

Everything works inside and outside of a ``Pipeline``: :class:`~sklearn_quam.QUAMClassifier` may
wrap a fitted pipeline, or be the last step of one. ``score_samples`` then scores outliers, as
scikit-learn's own detectors do.
"""

# %%
import matplotlib.pyplot as plt
from sklearn.datasets import load_wine
from sklearn.metrics import roc_auc_score
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_quam import QUAMClassifier, ReferenceClassifier
from sklearn_quam.display import UncertaintyHistogramDisplay

X, y = load_wine(return_X_y=True, as_frame=True)
known = y < 2  # the third cultivar is left out
X_train, y_train = X[known][::2], y[known][::2]
X_test, X_other = X[known][1::2], X[~known]
pipeline = make_pipeline(StandardScaler(), MLPClassifier((50,), max_iter=500, random_state=0))
pipeline.fit(X_train, y_train)

# %%
# The fitted pipeline is wrapped
# ------------------------------

quam = QUAMClassifier(pipeline, random_state=0).fit(X_train, y_train)
UncertaintyHistogramDisplay.from_estimator(quam, X_test, X_other)
plt.show()

# %%
# The entropy of the network itself tells the third cultivar less well:

plain = ReferenceClassifier(pipeline).fit(X_train, y_train)
for name, est, component in (("QUAM", quam, "epistemic"), ("entropy", plain, "total")):
    scores = [getattr(est.predict_uncertainty(part), component) for part in (X_test, X_other)]
    labels = [0] * len(X_test) + [1] * len(X_other)
    print(f"{name}: AUROC {roc_auc_score(labels, [*scores[0], *scores[1]]):.3f}")
