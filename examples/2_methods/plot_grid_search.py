"""
Tune QUAM with GridSearchCV
===========================

Which parameters to search, and at which temperature? scikit-learn's own tools answer that. The
score is how well the uncertainty separates validation data from data that the network does not
know. Use one set of unknown data for tuning, another for reporting.
"""

# %%
# A network that has never seen some digits
# -----------------------------------------
# It is trained without 2, 3, 5 and 9. 3 and 5 are used to tune, 2 and 9 to report.

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import (
    GridSearchCV,
    PredefinedSplit,
    train_test_split,
)
from sklearn.neural_network import MLPClassifier

from sklearn_quam import QUAMClassifier, ReferenceClassifier
from sklearn_quam.display import UncertaintyHistogramDisplay
from sklearn_quam.model_selection import make_ood_scorer

X, y = load_digits(return_X_y=True)
X = (X / 16).astype(np.float32)
known = ~np.isin(y, (2, 3, 5, 9))
X_tune, X_report = (
    X[np.isin(y, (3, 5))][:30],
    X[np.isin(y, (2, 9))][:80],
)
X_train, X_rest, y_train, y_rest = train_test_split(
    X[known], y[known], random_state=0
)
X_valid, X_test = X_rest[:30], X_rest[30:110]
network = MLPClassifier((64, 64), max_iter=300, random_state=0).fit(
    X_train, y_train
)

# %%
# The grid
# --------
# The network is given: nothing is trained. It must not be judged on samples that it was trained on.
# So the folds are not drawn at random: the validation samples are one fold. Arguments of the
# search itself, :class:`~sklearn_quam.NaturalSearch`, begin with ``search__``; its ``n_rows`` are
# the training samples that measure the cost of a model. The temperature is in nats of the
# training set.

fold = np.r_[np.full(len(X_train), -1), np.zeros(len(X_valid), int)]
search = GridSearchCV(
    QUAMClassifier(network, random_state=0),
    {
        "parameters": ["last_layer", "auto"],
        "temperature": [1, 10, 100],
        "search__n_rows": [32, 128],
    },
    scoring=make_ood_scorer(X_tune),
    cv=PredefinedSplit(fold),
    refit=False,
)
search.fit(np.r_[X_train, X_valid], np.r_[y_train, y_rest[:30]])
results = pd.DataFrame(search.cv_results_["params"]).assign(
    auroc=search.cv_results_["mean_test_score"],
    seconds=search.cv_results_["mean_score_time"],
)
results.sort_values("auroc", ascending=False).round(3)

# %%
# On other data
# -------------

quam = QUAMClassifier(network, random_state=0).set_params(
    **search.best_params_
)
quam.fit(X_train, y_train)
display = UncertaintyHistogramDisplay.from_estimator(
    quam, X_test, X_report
)
plt.show()

# %%
# The entropy of the network itself, for comparison:

plain = ReferenceClassifier(network).fit(X_train, y_train)
entropy = plain.predict_uncertainty(np.r_[X_test, X_report]).total
is_unknown = np.r_[np.zeros(len(X_test)), np.ones(len(X_report))]
print(f"AUROC of the entropy: {roc_auc_score(is_unknown, entropy):.3f}")
