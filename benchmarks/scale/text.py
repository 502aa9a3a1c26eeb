"""Text: questions whose intent a scikit-learn MLP tells from sentence embeddings.

CLINC150's questions as embeddings of MiniLM-L6. One network knows all 150 intents; questions out of
its scope are to be found, and test questions whose coordinates were shuffled independently of each
other: far away, and made. Another has not seen 15 of the intents, drawn at random: their test
questions are the nearest to what it knows.

The folder of the data holds ``clinc_minilm.npz`` (train_x, train_y, val_x, val_y, test_x,
test_y, oos_test_x, oos_val_x).
"""

import numpy as np
from sklearn.neural_network import MLPClassifier

from .case import Case, Family, Members, shuffled

NETWORK = {"hidden_layer_sizes": [256], "early_stopping": True}
N_MEMBERS = 5
N_SHUFFLED = 300
N_LEFT_OUT = 15
ALL, SOME = "150 intents", "135 intents"


def load(folder, case, tuning=False):
    with np.load(folder / "clinc_minilm.npz", allow_pickle=False) as data:
        part = "val" if tuning else "test"
        names = ("train_x", f"{part}_x", f"oos_{part}_x")
        X, X_test, X_out = (data[name].astype(np.float32) for name in names)
        y, y_test = data["train_y"].astype(np.int64), data[f"{part}_y"].astype(np.int64)
    others = {"out_of_scope": shuffled(X_out)}
    if case == SOME:
        left_out = np.random.default_rng(0).choice(y.max() + 1, N_LEFT_OUT, replace=False)
        known, known_test = ~np.isin(y, left_out), ~np.isin(y_test, left_out)
        others = {"unseen_intents": shuffled(X_test[~known_test])}
        X, y, X_test, y_test = X[known], y[known], X_test[known_test], y_test[known_test]
    X_test, y_test = shuffled(X_test, y_test)
    if case == ALL:
        others["shuffled"] = np.random.default_rng(1).permuted(X_test[-N_SHUFFLED:], axis=0)
    members = Members(lambda: [train(X, y, seed) for seed in range(1, N_MEMBERS + 1)])
    return Case(train(X, y, 0), X, y, X_test, y_test, others, members)


def train(X, y, seed):
    return MLPClassifier(**NETWORK, random_state=seed).fit(X, y)


FAMILY = Family(
    name="text",
    title="text",
    load=load,
    cases=(ALL, SOME),
    near=("out_of_scope", "unseen_intents"),
    far=("shuffled",),
    rows=(300, 500, 300),
    settings={"network": NETWORK, "members": N_MEMBERS},
    arguments={"MCDropout": {"p": 0.2}},
)
