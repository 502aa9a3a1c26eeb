"""
Who should be looked at by a human?
===================================

A classifier of patients rarely has to decide alone: it may hand the doubtful cases on. Here a small
network behind a ``ColumnTransformer`` tells benign from malignant tumours, by columns of numbers
and of text, and QUAM says which of its answers to trust.
"""

# %%
# A table with numbers, categories and gaps
# -----------------------------------------
# Breast cancer data from scikit-learn, made a little more like everyday tables: one measurement is
# turned into a category, another has gaps.

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.datasets import load_breast_cancer
from sklearn.impute import SimpleImputer
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from sklearn_quam import QUAMClassifier, ReferenceClassifier
from sklearn_quam.display import AccuracyRejectionDisplay

data = load_breast_cancer(as_frame=True)
X, y = data.data.iloc[:, :8].copy(), data.target_names[data.target]
X["mean texture"] = pd.cut(X["mean texture"], [0, 16, 22, 99], labels=["fine", "medium", "coarse"])
X["mean texture"] = X["mean texture"].astype(object)
X.loc[np.random.default_rng(0).random(len(X)) < 0.1, "mean smoothness"] = np.nan
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.5, random_state=0)
X_train.head()

# %%
# The network is trained as usual
# -------------------------------

numbers = make_pipeline(SimpleImputer(), StandardScaler())
columns = make_column_transformer(
    (numbers, make_column_selector(dtype_include="number")),
    (OneHotEncoder(handle_unknown="ignore"), ["mean texture"]),
)
network = MLPClassifier((32, 32), alpha=0.01, max_iter=1000, random_state=0)
pipeline = make_pipeline(columns, network).fit(X_train, y_train)
pipeline.score(X_test, y_test)

# %%
# How far can each answer be trusted?
# -----------------------------------
# The fitted pipeline is taken as it is. Predictions and uncertainty come as frames with the index
# of the table.

quam = QUAMClassifier(pipeline, random_state=0).fit(X_train, y_train)
answer, uncertainty = quam.predict(X_test, return_uncertainty=True)
table = uncertainty.to_frame(index=X_test.index).assign(answer=answer, truth=y_test)
table.sort_values("total", ascending=False).head()

# %%
# Hand the doubtful cases on
# --------------------------
# The more of the doubtful cases are handed on, the better are the answers for the others.

correct = answer == y_test
entropy = ReferenceClassifier(pipeline).fit(X_train, y_train).predict_uncertainty(X_test).total
display = AccuracyRejectionDisplay.from_predictions(correct, uncertainty.total, name="QUAM, total")
AccuracyRejectionDisplay.from_predictions(correct, entropy, name="entropy", ax=display.ax_)
plt.show()

# %%
# With a fifth of the cases looked at by a human:

kept = table.total <= table.total.quantile(0.8)
print(f"accuracy on all: {correct.mean():.3f}, on those kept: {correct[kept].mean():.3f}")
