"""From a thousand to many training rows: what QUAM finds, and what it costs.

A made table of 20 features and 6 classes, one of which is left out of the training; an MLP 20-64-64
is trained with Adam on 1,000 to 200,000 rows of the others, each smaller set a part of the larger,
for 5 epochs or 1,000 steps, whichever is more. The AUROC tells rows of the left-out class from
known ones that were not trained on. The penalty search is slow and judges fewer rows, which the
natural search judges too ("few"). "natural / penalty" and "linear / penalty" are rows a second
relative to the penalty search, measured one after the other.

    python -m benchmarks.many_rows
"""

from functools import partial

import numpy as np
import torch
from sklearn.datasets import make_classification
from torch import nn
from torch.nn.functional import cross_entropy

from .paper.runs import options, report, run
from .searches import auroc, named, plain_scores, quam

N_CLASSES = 6  # the last one is left out
TABLE = {"n_features": 20, "n_informative": 12, "n_redundant": 4, "class_sep": 1.5}
TRAINING = {"lr": 3e-3, "batch_size": 512, "n_epochs": 5, "min_steps": 1000}


def load(n_rows, n_points, seed, n_classes=N_CLASSES):
    """Return n_rows to train with, and n_points known and as many unknown rows to judge."""
    # Classes have the same number of rows but for chance; a tenth more than needed.
    n_all = int(1.1 * (n_rows + n_points) * n_classes / (n_classes - 1)) + 100 * n_classes
    n_all = max(n_all, 2 * n_classes * n_points)
    X, y = make_classification(
        n_all, n_classes=n_classes, flip_y=0, shuffle=True, random_state=seed, **TABLE
    )
    known = np.flatnonzero(y != n_classes - 1)
    fit, test = known[:n_rows], known[n_rows : n_rows + n_points]
    unknown = np.flatnonzero(y == n_classes - 1)[:n_points]
    X = ((X - X[fit].mean(axis=0)) / X[fit].std(axis=0)).astype(np.float32)
    return X[fit], y[fit], np.concatenate([X[test], X[unknown]])


def train(X, y, seed, width=64, training=TRAINING):
    torch.manual_seed(seed)
    X, y = torch.tensor(X), torch.tensor(y)
    network = nn.Sequential(
        nn.Linear(X.shape[1], width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, int(y.max()) + 1),
    )
    optimizer = torch.optim.Adam(network.parameters(), training["lr"])
    n_batches = -(-len(X) // training["batch_size"])
    for _ in range(max(training["n_epochs"], -(-training["min_steps"] // n_batches))):
        for rows in torch.randperm(len(X)).split(training["batch_size"]):
            optimizer.zero_grad()
            cross_entropy(network(X[rows]), y[rows]).backward()
            optimizer.step()
    return network.eval()


def judge(X, y, X_new, seed, n_penalty):
    """Return the AUROC of each method and the cost of the searches, all measured in one go."""
    network, n_known = train(X, y, seed), len(X_new) // 2
    with torch.no_grad():
        scores = plain_scores(network(torch.tensor(X_new)).numpy())
        correct = (network(torch.tensor(X)).argmax(1).numpy() == y).mean()
    results = {"training accuracy": correct, "entropy": auroc(scores["entropy"], n_known)}
    few = np.r_[:n_penalty, n_known : n_known + n_penalty]
    speeds = {}
    for search in ("natural", "linear"):
        found = quam(network, X, y, X_new, search)
        for setting, epistemic in found["scores"].items():
            results[named(search, setting)] = auroc(epistemic, n_known)
        results[f"{search}, fit seconds"] = found["fit_seconds"]
        speeds[search] = 1 / found["seconds_per_row"]
        if search == "natural" and n_penalty:
            results["natural, few"] = auroc(found["scores"]["given"][few], n_penalty)
    if n_penalty:
        found = quam(network, X, y, X_new[few], "penalty", settings=("given",))
        results["penalty, few"] = auroc(found["scores"]["given"], n_penalty)
        results["penalty, fit seconds"] = found["fit_seconds"]
        for search, speed in speeds.items():
            results[f"{search} / penalty"] = speed * found["seconds_per_row"]
    return results


def main():
    chosen = options(
        __doc__,
        rows=[1_000, 10_000, 50_000, 200_000],
        points=200,
        penalty_points=60,
        seed=10,
    )
    torch.set_num_threads(1)
    X, y, X_new = load(max(chosen.rows), chosen.points, chosen.seed)
    tasks = {
        f"{n} rows": partial(judge, X[:n], y[:n], X_new, chosen.seed, chosen.penalty_points)
        for n in chosen.rows
    }
    settings = {"table": TABLE, "training": TRAINING, "most_rows": max(chosen.rows)}
    settings |= {key: getattr(chosen, key) for key in ("points", "penalty_points", "seed")}
    path = chosen.out / "many_rows.json"
    results = run(path, settings, tasks)
    rows = [{"training rows": n, **results[f"{n} rows"]} for n in chosen.rows]
    ratios = [column for column in rows[0] if column.endswith(("/ penalty", "seconds"))]
    report(path, rows, formats=dict.fromkeys(ratios, "{:.1f}"))


if __name__ == "__main__":
    main()
