"""Calibration and selective prediction of every method.

In the expected setting, the average of all plausible models predicts: its expected calibration
error, its log score, its accuracy, and the area under accuracy over the share of rows that are kept
when the most uncertain are rejected. Networks: an MLP that has seen 300 of scikit-learn's digits,
and with ``--data`` a LeNet on MNIST, with mistaken images taken more often than they occur.

    python -m benchmarks.paper.calibration --data DIR --out DIR
"""

from sklearn.metrics import log_loss

from sklearn_quam.metrics import accuracy_rejection_auc, expected_calibration_error

from .cases import METHODS, by_network, run_on_all, summarise
from .runs import dot_plot, options, report


def judge(case, method):
    est = case.fit(method, setting="expected")
    proba, u = est.predict_proba(case.X_test, return_uncertainty=True)
    right = est.classes_[proba.argmax(axis=1)] == case.y_test
    return {
        "accuracy": float(right.mean()),
        "ece": expected_calibration_error(case.y_test, proba, labels=est.classes_),
        "log score": -float(log_loss(case.y_test, proba, labels=est.classes_)),
        "rejection, total": accuracy_rejection_auc(right, u.total),
        "rejection, epistemic": accuracy_rejection_auc(right, u.epistemic),
    }


def main():
    chosen = options(
        __doc__, data="optional", seeds=[10, 11, 12], images=200, methods=list(METHODS)
    )
    path = chosen.out / "calibration.json"
    rows = summarise(run_on_all(chosen, path, {}, judge))
    report(path, rows)
    dot_plot(by_network(rows, ["log score", "rejection, total"]), chosen.out / "calibration.png")


if __name__ == "__main__":
    main()
