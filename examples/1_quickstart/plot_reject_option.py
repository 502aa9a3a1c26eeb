"""
Which cases should a person look at?
====================================

A classifier rarely has to decide alone: it may leave doubtful cases to a person. Here a skorch
net behind a ``ColumnTransformer`` classifies tumours as benign or malignant, by columns of
numbers and of text. QUAM measures the doubt of each answer.
"""

# %%
# A table with numbers, categories and gaps
# -----------------------------------------
# Breast cancer data from scikit-learn, made a little more like everyday tables: one measurement is
# turned into a category, another has gaps, and patients have names.

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from sklearn.compose import (
    make_column_selector,
    make_column_transformer,
)
from sklearn.datasets import load_breast_cancer
from sklearn.impute import SimpleImputer
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    OneHotEncoder,
    StandardScaler,
)
from skorch import NeuralNetClassifier
from torch import nn

from sklearn_quam import QUAMClassifier
from sklearn_quam.display import AccuracyRejectionDisplay

data = load_breast_cancer(as_frame=True)
X = data.data.iloc[:, :8].rename(lambda number: f"patient {number:03d}")
y = data.target.set_axis(X.index)
names = ["fine", "medium", "coarse"]
texture = pd.cut(X["mean texture"], [0, 16, 22, 99], labels=names)
X["mean texture"] = texture.astype(object)
gaps = np.random.default_rng(0).random(len(X)) < 0.1
X.loc[gaps, "mean smoothness"] = np.nan
X_train, X_test, y_train, y_test = train_test_split(
    X, y, test_size=0.4, random_state=0
)
# Some patients are held out: they show how doubtful known patients are.
X_train, X_val, y_train, y_val = train_test_split(
    X_train, y_train, test_size=0.3, random_state=0
)
X_train.head()

# %%
# The network is trained as usual
# -------------------------------
# Torch wants single precision, which the last transformer takes care of.

numbers = make_pipeline(SimpleImputer(), StandardScaler())
columns = make_column_transformer(
    (numbers, make_column_selector(dtype_include="number")),
    (OneHotEncoder(sparse_output=False), ["mean texture"]),
)
to_single = FunctionTransformer(
    np.asarray, kw_args={"dtype": np.float32}
)
torch.manual_seed(0)
hidden = [nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU()]
net = NeuralNetClassifier(
    nn.Sequential(*hidden, nn.Linear(32, 2)),
    criterion=nn.CrossEntropyLoss,
    optimizer=torch.optim.Adam,
    optimizer__weight_decay=1e-3,
    lr=5e-3,
    max_epochs=50,
    batch_size=64,
    iterator_train__shuffle=True,
    train_split=None,
    verbose=0,
)
pipeline = make_pipeline(columns, to_single, net).fit(X_train, y_train)
print(
    f"accuracy on the test data: {pipeline.score(X_test, y_test):.3f}"
)

# %%
# How far can each answer be trusted?
# -----------------------------------
# QUAM takes the fitted pipeline and the table as they are. The uncertainty becomes a table with the
# same index. A person should see these patients first:

quam = QUAMClassifier(pipeline, random_state=0)
quam.fit(X_train, y_train, X_val=X_val, y_val=y_val)
answer, uncertainty = quam.predict(X_test, return_uncertainty=True)
table = uncertainty.to_frame().assign(
    answer=data.target_names[answer], truth=data.target_names[y_test]
)
table.sort_values("doubt", ascending=False).head(8).round(3)

# %%
# Leave the doubtful cases to a person
# ------------------------------------
# The more doubtful cases a person decides, the better should be the answers for the others. A
# mistake has two causes: the case itself may be open, or the network may not know. Doubt counts
# both. All patients here are of one hospital, so that 1 - max p of the network finds mistakes as
# well or better.

correct = (table["answer"] == table["truth"]).to_numpy()
risk = 1 - quam.predict_proba(X_test).max(axis=1)
display = AccuracyRejectionDisplay.from_predictions(
    correct, uncertainty.doubt, name="doubt"
)
AccuracyRejectionDisplay.from_predictions(
    correct, risk, name="1 - max p", ax=display.ax_
)
plt.show()

# %%
# The network answers about 80 % of the patients. Held-out patients set the threshold, not these:

handed_on = table["doubt"] > quam.threshold(0.8)
table.assign(correct=correct).groupby(
    handed_on.map({True: "human", False: "network"})
).agg(
    patients=("correct", "size"),
    mistakes=("correct", lambda right: (~right).sum()),
)
