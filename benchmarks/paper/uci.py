"""UCI regression: log score, error, and whether uncertainty is where the errors are.

Six data sets with their standard splits, of which five are used. A network with one hidden layer of
50 units is trained on 90 % of the training rows, for 2000 steps; the other 10 % tell the noise.
Every method judges this network (MC dropout one that was trained with dropout), in the expected
setting: the log score is that of the average prediction, in the units of the target.

    python -m benchmarks.paper.uci --data DIR --out DIR
"""

from functools import lru_cache

import numpy as np
import torch
from scipy.stats import spearmanr
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetRegressor
from torch import nn

import sklearn_quam
from sklearn_quam.metrics import gaussian_log_score

from .runs import dot_plot, options, report, run

DATA_SETS = ["yacht", "energy", "concrete", "wine-quality-red", "power-plant", "kin8nm"]
METHODS = {
    "Reference": {},
    "MCDropout": {},
    "DeepEnsemble": {},
    "Laplace": {},
    "MixtureLaplace": {},
    "SWAG": {},
    "CyclicalSGHMC": {},
    "QUAM": {"search": "penalty"},
}
BATCH_SIZE, N_STEPS = 64, 2000


class Network(nn.Sequential):
    def __init__(self, n_inputs, dropout=0.0):
        super().__init__(nn.Linear(n_inputs, 50), nn.ReLU(), nn.Dropout(dropout), nn.Linear(50, 1))


def load(folder, name, split):
    """Return training and test data, with standardised targets, and the scale of the targets."""
    with np.load(folder / "uci" / f"{name}.npz", allow_pickle=False) as data:
        X, y = data["X"].astype(np.float32), data["y"].astype(np.float32).ravel()
        is_test = np.zeros(len(X), dtype=bool)
        is_test[data["test_index"][split]] = True
    mean, scale = y[~is_test].mean(), y[~is_test].std()
    y = (y - mean) / scale
    return X[~is_test], y[~is_test], X[is_test], y[is_test], float(scale)


def network(n_inputs, n_rows, dropout, seed):
    n_batches = -(-n_rows // BATCH_SIZE)
    torch.manual_seed(seed)
    net = NeuralNetRegressor(
        Network,
        module__n_inputs=n_inputs,
        module__dropout=dropout,
        optimizer=torch.optim.Adam,
        optimizer__weight_decay=1e-4,
        lr=5e-3,
        max_epochs=-(-N_STEPS // n_batches),
        batch_size=BATCH_SIZE,
        iterator_train__shuffle=True,
        train_split=None,
        verbose=0,
    )
    return make_pipeline(StandardScaler(), net)


@lru_cache(maxsize=2)
def trained(folder, name, split, dropout):
    """Return a trained network, its data, the rows held out, test data and the scale of targets."""
    torch.set_num_threads(1)
    X, y, X_test, y_test, scale = load(folder, name, split)
    order = np.random.default_rng(split).permutation(len(X))
    held_out, used = order[: len(X) // 10], order[len(X) // 10 :]
    net = network(X.shape[1], len(used), dropout, split)
    net.fit(X[used], y[used, None])
    return net, (X[used], y[used]), (X[held_out], y[held_out]), (X_test, y_test), scale


def judge(folder, name, split, method):
    dropout = 0.1 if method == "MCDropout" else 0.0
    net, (X, y), (X_val, y_val), (X_test, y_test), scale = trained(folder, name, split, dropout)
    est = getattr(sklearn_quam, f"{method.partition(',')[0]}Regressor")(
        net, setting="expected", measure="variance", random_state=split, **METHODS[method]
    )
    est.fit(X, y, X_val=X_val, y_val=y_val)
    prediction, u = est.predict(X_test, return_uncertainty=True)
    error = np.abs(prediction - y_test)
    constant = np.ptp(u.epistemic) == 0
    return {
        "log score": gaussian_log_score(y_test, prediction, u.total) - float(np.log(scale)),
        "rmse": float(np.sqrt((error**2).mean()) * scale),
        "rank correlation": None if constant else float(spearmanr(u.epistemic, error).statistic),
    }


def summarise(results, chosen):
    rows = []
    for name in chosen.sets:
        for method in chosen.methods:
            each = [results[f"{name}, split {s}, {method}"] for s in chosen.splits]
            row = {"data": name, "method": method}
            for column in each[0]:
                values = [one[column] for one in each if one[column] is not None]
                if values:
                    row[column] = float(np.mean(values))
                    row[f"{column} sd"] = float(np.std(values, ddof=1) / np.sqrt(len(values)))
            rows.append(row)
    return rows


def main():
    chosen = options(
        __doc__, data=True, sets=DATA_SETS, splits=list(range(5)), methods=list(METHODS)
    )
    tasks = {
        f"{name}, split {split}, {method}": lambda n=name, s=split, m=method: judge(
            chosen.data, n, s, m
        )
        for name in chosen.sets
        for split in chosen.splits
        for method in chosen.methods
    }
    path = chosen.out / "uci.json"
    results = run(path, {"methods": METHODS, "steps": N_STEPS}, tasks)
    rows = summarise(results, chosen)
    columns = ["data", "method", "log score", "log score sd", "rmse", "rank correlation"]
    report(path, rows, columns)
    panels = [(n, [row for row in rows if row["data"] == n], "log score") for n in chosen.sets]
    dot_plot(panels, chosen.out / "uci.png")


if __name__ == "__main__":
    main()
