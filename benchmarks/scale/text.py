"""Text: questions whose intent a scikit-learn MLP tells from sentence embeddings.

CLINC150's questions as embeddings of MiniLM-L6. One network knows all 150 intents; questions out of
its scope are to be found, and test questions whose coordinates were shuffled independently of each
other: far away, and made. Another has not seen 15 of the intents, drawn at random: their test
questions are the nearest to what it knows.

Settings were chosen with validation questions, and the 100 out-of-scope questions of the validation
set (``--tune``).

The folder of the data holds ``clinc_minilm.npz`` (train_x, train_y, val_x, val_y, test_x, test_y,
oos_test_x, oos_val_x).

    python -m benchmarks.scale.text --data DIR
"""

import numpy as np
from sklearn.neural_network import MLPClassifier

from .case import Case, Members, shuffled
from .run import benchmark

NETWORK = {"hidden_layer_sizes": [256], "early_stopping": True}
N_MEMBERS = 5
N_TEST, N_SHUFFLED = 1000, 300
N_LEFT_OUT = 15
ALL, SOME = "150 intents", "135 intents"
VARIANTS = {
    "QUAM, temperature 1": {"temperature": 1.0},
    "QUAM, temperature 10": {"temperature": 10.0},
    "QUAM, temperature 100": {"temperature": 100.0},
    "QUAM, goal 16": {"search__goal": 16.0},
    "QUAM, all targets": {"search__targets": "all"},
    "QUAM, last layer": {"parameters": "last_layer"},
    "QUAM, prior precision 0.01": {"search__prior_precision": 0.01},
    "QUAM, 512 rows": {"search__n_rows": 512},
}


def load(folder, case, tuning):
    with np.load(folder / "clinc_minilm.npz", allow_pickle=False) as data:
        part = "val" if tuning else "test"
        X, X_test, X_out = (
            data[name].astype(np.float32) for name in ("train_x", f"{part}_x", f"oos_{part}_x")
        )
        y, y_test = data["train_y"].astype(np.int64), data[f"{part}_y"].astype(np.int64)
    others = {"out_of_scope": shuffled(X_out)}
    if case == SOME:
        left_out = np.random.default_rng(0).choice(y.max() + 1, N_LEFT_OUT, replace=False)
        known, known_test = ~np.isin(y, left_out), ~np.isin(y_test, left_out)
        others = {"unseen_intents": shuffled(X_test[~known_test])}
        X, y, X_test, y_test = X[known], y[known], X_test[known_test], y_test[known_test]
    X_test, y_test = shuffled(X_test, y_test, n_rows=N_TEST)
    if case == ALL:
        others["shuffled"] = np.random.default_rng(1).permuted(X_test[:N_SHUFFLED], axis=0)
    return Case(
        network=train(X, y, 0),
        X=X,
        y=y,
        X_test=X_test,
        y_test=y_test,
        others=others,
        members=Members(lambda: [train(X, y, seed) for seed in range(1, N_MEMBERS + 1)]),
        arguments={"MCDropout": {"p": 0.2}},
    )


def train(X, y, seed):
    return MLPClassifier(**NETWORK, random_state=seed).fit(X, y)


if __name__ == "__main__":
    benchmark(
        __doc__,
        "text",
        load,
        settings={"cases": [ALL, SOME], "network": NETWORK, "members": N_MEMBERS, "rows": N_TEST},
        few=50,
        variants=VARIANTS,
    )
