"""
Which samples to label next
===========================

Labels cost money. A loop trains, asks for the labels of the most uncertain samples, and trains
again. It should need fewer labels than a loop that asks at random. The uncertainty may be the
entropy of the network, which costs nothing, or the epistemic uncertainty, which leaves out
samples that are ambiguous and stay so when they are labelled.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

from sklearn_quam import QUAMClassifier

warnings.simplefilter("ignore")

X, y = load_digits(return_X_y=True)
X_pool, X_test, y_pool, y_test = train_test_split(
    X / 16, y, test_size=500, random_state=0
)
N_START, N_QUERIES, N_ROUNDS = 50, 25, 6


# %%
# Each round scores 300 candidates, with linear search, which is quick.
def uncertainty(kind, net, X, y, candidates):
    if kind == "random":
        return np.random.default_rng(len(y)).uniform(
            size=len(candidates)
        )
    if kind == "entropy":
        proba = net.predict_proba(candidates).clip(1e-300)
        return -(proba * np.log(proba)).sum(axis=1)
    est = QUAMClassifier(net, search="linear", random_state=0).fit(X, y)
    return est.predict_uncertainty(candidates).epistemic


def accuracies(kind, seed):
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(X_pool))
    labelled, rest = order[:N_START], order[N_START:]
    found = []
    for _ in range(N_ROUNDS + 1):
        options = {"solver": "lbfgs", "alpha": 0.1, "max_iter": 200}
        net = MLPClassifier((64,), **options, random_state=0)
        known = X_pool[labelled], y_pool[labelled]
        net.fit(*known)
        found.append(net.score(X_test, y_test))
        candidates = rest[:300]
        scores = uncertainty(kind, net, *known, X_pool[candidates])
        chosen = candidates[np.argsort(-scores)[:N_QUERIES]]
        labelled = np.append(labelled, chosen)
        rest = rng.permutation(np.setdiff1d(rest, chosen))
    return found


curves = {
    kind: np.mean([accuracies(kind, seed) for seed in range(2)], axis=0)
    for kind in ("random", "entropy", "epistemic")
}

# %%
# In the first rounds the network has too few labels to know which samples are uncertain. Then both
# are better than chance. The entropy, which is free, is as good as the epistemic part here, or
# better.
n_labels = N_START + N_QUERIES * np.arange(N_ROUNDS + 1)
_, ax = plt.subplots(layout="constrained")
styles = {
    "ls": [":", "--", "-"],
    "c": ["#000000", "#0072B2", "#D55E00"],
}
for number, (kind, curve) in enumerate(curves.items()):
    style = {key: values[number] for key, values in styles.items()}
    ax.plot(n_labels, curve, label=kind, **style)
ax.set(xlabel="labels", ylabel="accuracy on test samples")
ax.legend(title="asks for the highest")
plt.show()
for kind, curve in curves.items():
    print(f"{kind:<10}", " ".join(f"{value:.3f}" for value in curve))
