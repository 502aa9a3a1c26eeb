"""
Which parameters to search
==========================

QUAM may change all weights of a network, or only some. The fewer, the less freedom models have to
disagree. The time depends less on their number than on where they are: what lies before the first
searched layer is computed only once for each row, and whole linear layers at the end of the network
are searched by large matrix products, which parts of layers and low-rank updates are not. What is
right for your data and network is best found by trying.
"""

# %%
# Digits without 3 and 8
# ----------------------

from time import perf_counter

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

from sklearn_quam import LoRA, QUAMClassifier, ReferenceClassifier

X, y = load_digits(return_X_y=True)
X = (X / 16).astype(np.float32)
known = ~np.isin(y, (3, 8))
X_train, X_test, y_train, _ = train_test_split(X[known], y[known], random_state=0)
X_test, X_unknown = X_test[:25], X[~known][:25]
X_new, is_unknown = np.r_[X_test, X_unknown], np.r_[np.zeros(25), np.ones(25)]
network = MLPClassifier((32, 32), max_iter=300, random_state=0).fit(X_train, y_train)

# %%
# Five choices
# ------------
# ``"auto"``, the default, takes all layers of a network like this one. The AUROC tells how well the
# epistemic uncertainty separates known from unknown digits. With so few of them, small differences
# may be chance.

choices = {
    '"auto"': "auto",
    "2": 2,
    '"last_layer"': "last_layer",
    '"bias"': "bias",
    "LoRA(rank=2)": LoRA(rank=2),
}
rows = {}
for name, parameters in choices.items():
    quam = QUAMClassifier(network, parameters=parameters, random_state=0).fit(X_train, y_train)
    start = perf_counter()
    epistemic = quam.predict_uncertainty(X_new).epistemic
    rows[name] = {
        "searched": quam.n_parameters_searched_,
        "ms a row": 1000 * (perf_counter() - start) / len(X_new),
        "AUROC": roc_auc_score(is_unknown, epistemic),
    }
table = pd.DataFrame(rows).T.astype({"searched": int})
table.round(3)

# %%
# The entropy of the network itself costs nothing more than a prediction:

entropy = ReferenceClassifier(network).fit(X_train, y_train).predict_uncertainty(X_new).total
baseline = roc_auc_score(is_unknown, entropy)
print(f"AUROC of the entropy: {baseline:.3f}")

# %%
# What is gained for the time
# ---------------------------
# Up and to the left is better.

figure, ax = plt.subplots(figsize=(8, 4), layout="constrained")
colours = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
for (name, row), colour, marker in zip(table.iterrows(), colours, "os^Dv", strict=True):
    label = f"{name}: {row['searched']:,.0f} parameters"
    ax.scatter(row["ms a row"], row["AUROC"], s=130, color=colour, marker=marker, label=label)
ax.axhline(baseline, color="0.4", ls="--", lw=1.2, label="entropy of the network", zorder=0)
ax.set(xlabel="milliseconds a row", ylabel="AUROC, unknown against known digits")
ax.set_xlim(left=0)
ax.margins(y=0.12)
ax.spines[["top", "right"]].set_visible(False)
figure.legend(loc="outside right center", frameon=False, labelspacing=1.0, title="parameters=")
plt.show()

# %%
# Which parameters a choice stands for is told by ``parameter_names_``.

print(QUAMClassifier(network, parameters=2).fit(X_train, y_train).parameter_names_)
