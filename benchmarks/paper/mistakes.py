"""Mistakes and adversarial inputs: found by the epistemic uncertainty of every method?

Mistakes of a network among its test rows, and test rows that were changed by projected gradient
descent (by up to a tenth of the range of inputs) so that the network is wrong about them, are to be
told from rows that it classifies correctly. For mistakes, the total uncertainty is reported, too.
Networks: an MLP that has seen 300 of scikit-learn's digits, and with ``--data`` a LeNet on MNIST.

    python -m benchmarks.paper.mistakes --data DIR --out DIR
"""

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch.nn.functional import cross_entropy

from sklearn_quam.metrics import bootstrap_interval

from .cases import METHODS, by_network, run_on_all, summarise
from .runs import dot_plot, options, report

STEPS = 20


def attacked(network, X, y, size):
    """Return rows moved by at most `size` in each input, so that the loss grows."""
    module = getattr(network, "module_", network).eval()
    X, y = torch.tensor(X), torch.tensor(y)
    changed = X.clone()
    for _ in range(STEPS):
        changed.requires_grad_()
        (gradient,) = torch.autograd.grad(cross_entropy(module(changed), y), changed)
        step = changed.detach() + 2.5 * size / STEPS * gradient.sign()
        changed = torch.clamp(step, X - size, X + size).clamp(X.min(), X.max())
    return changed.detach().numpy()


def judge(case, method, size):
    est = case.fit(method)
    component = "total" if method == "Reference" else "epistemic"
    right = est.predict(case.X_test) == case.y_test
    uncertainty = est.predict_uncertainty(case.X_test)
    known = getattr(uncertainty, component)
    changed = attacked(case.network, case.X_test[right], case.y_test[right], size)
    fooled = est.predict(changed) != case.y_test[right]
    strange = getattr(est.predict_uncertainty(changed[fooled]), component)
    result = {"n_mistakes": int((~right).sum()), "n_fooled": int(fooled.sum())}
    result["mistakes, total"] = float(roc_auc_score(~right, uncertainty.total))
    for name, positive in (("mistakes", known[~right]), ("attacks", strange)):
        labels = np.repeat([0, 1], [right.sum(), len(positive)])
        interval = bootstrap_interval(
            roc_auc_score,
            labels,
            np.concatenate([known[right], positive]),
            stratify=labels,
            n_resamples=300,
            random_state=0,
        )
        result |= {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
    return result


def main():
    chosen = options(
        __doc__,
        data="optional",
        seeds=[10, 11, 12],
        images=200,
        methods=[method for method in METHODS if method != "QUAM, one temperature"],
        size=0.1,
    )
    path = chosen.out / "mistakes.json"
    results = run_on_all(
        chosen,
        path,
        {"size": chosen.size, "steps": STEPS},
        lambda case, method: judge(case, method, chosen.size * np.ptp(case.X_train)),
    )
    rows = summarise(results)
    report(path, rows)
    dot_plot(by_network(rows, ["mistakes", "attacks"]), chosen.out / "mistakes.png")


if __name__ == "__main__":
    main()
