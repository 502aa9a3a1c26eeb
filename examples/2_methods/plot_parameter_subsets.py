"""
Which parameters to search
==========================

QUAM may change all weights of a network, or only some. With fewer of them, models have less freedom
to disagree. The time depends less on their number than on their place: layers before the first
searched one run only once for each sample, and searches of whole linear layers at the end of the
network are large matrix products. Searches of parts of layers and of low-rank updates are not. Try
which choice suits your data and network.
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
X_train, X_test, y_train, _ = train_test_split(
    X[known], y[known], random_state=0
)
X_new = np.r_[X_test[:25], X[~known][:25]]
is_unknown = np.arange(50) >= 25
network = MLPClassifier((32, 32), max_iter=300, random_state=0)
network.fit(X_train, y_train)

# %%
# Five choices
# ------------
# ``"auto"``, the default, takes all layers of a network like this one. The AUROC says how well the
# epistemic uncertainty separates known from unknown digits. With so few of them, small differences
# may be chance. The entropy of the network itself costs nothing more than a prediction.

choices = {name: name for name in ("auto", "last_layer", "bias")}
choices |= {"2 layers": 2, "LoRA": LoRA(rank=2)}
rows = {}
for name, choice in choices.items():
    quam = QUAMClassifier(network, parameters=choice, random_state=0)
    quam.fit(X_train, y_train)
    start = perf_counter()
    epistemic = quam.predict_uncertainty(X_new).epistemic
    rows[name] = {
        "searched": quam.n_parameters_searched_,
        "ms a sample": 1000 * (perf_counter() - start) / len(X_new),
        "AUROC": roc_auc_score(is_unknown, epistemic),
    }
reference = ReferenceClassifier(network).fit(X_train, y_train)
entropy = reference.predict_uncertainty(X_new).total
print(f"AUROC of the entropy: {roc_auc_score(is_unknown, entropy):.3f}")
table = pd.DataFrame(rows).T.astype({"searched": int})
table.round(3)

# %%
# Up and to the left is better. The dashed line is the entropy of the network.

_, ax = plt.subplots(figsize=(6, 3.5), layout="constrained")
ax.plot(table["ms a sample"], table["AUROC"], "o", color="#0072B2")
for name, row in table.iterrows():
    place = row["ms a sample"], row["AUROC"]
    ax.annotate(name, place, (6, 4), textcoords="offset points")
ax.axhline(roc_auc_score(is_unknown, entropy), color="0.4", ls="--")
ax.set(xlabel="milliseconds a sample", ylabel="AUROC")
ax.margins(x=0.25, y=0.12)
plt.show()

# %%
# ``parameter_names_`` has the names of the parameters that are searched.

quam = QUAMClassifier(network, parameters=2).fit(X_train, y_train)
print(quam.parameter_names_)
