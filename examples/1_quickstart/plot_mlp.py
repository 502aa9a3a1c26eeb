"""
A scikit-learn MLP in a pipeline
================================

Here :class:`~sklearn_quam.QUAMClassifier` wraps a fitted pipeline. It may also be the last step of
one: the pipeline's ``score_samples`` then scores outliers, as scikit-learn's own detectors do.
"""

# %%
import matplotlib.pyplot as plt
import pandas as pd
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
pipeline = make_pipeline(
    StandardScaler(), MLPClassifier((50,), max_iter=500, random_state=0)
)
pipeline.fit(X_train, y_train)

# %%
# The fitted pipeline is wrapped
# ------------------------------

quam = QUAMClassifier(pipeline, random_state=0).fit(X_train, y_train)
UncertaintyHistogramDisplay.from_estimator(quam, X_test, X_other)
plt.show()

# %%
# The entropy of the network itself, for comparison:

plain = ReferenceClassifier(pipeline).fit(X_train, y_train)
X_both = pd.concat([X_test, X_other])
is_other = [0] * len(X_test) + [1] * len(X_other)
epistemic = quam.predict_uncertainty(X_both).epistemic
entropy = plain.predict_uncertainty(X_both).total
print("AUROC of QUAM:   ", round(roc_auc_score(is_other, epistemic), 3))
print("AUROC of entropy:", round(roc_auc_score(is_other, entropy), 3))
