"""Compute budget: what more targets buy QUAM, and as many samples MC dropout.

AUROC with which Omniglot's characters are told from MNIST's digits, against the work for an image
in units of one forward pass of the network. A step of a search runs the mini-batch and the image
forward and backward, which counts three times, through the fully connected layers that are
searched; the convolutions are run once. MC dropout runs the network once for each sample.

    python -m benchmarks.paper.budget --data DIR --out DIR
"""

import numpy as np
from sklearn.metrics import roc_auc_score

from . import mnist
from .lenet import load_images
from .runs import options, report, run, save_figure

# Multiplications of a forward pass.
CONVOLUTIONS = 6 * 25 * 24**2 + 16 * 6 * 25 * 8**2
DENSE = 256 * 120 + 120 * 84 + 84 * 10
TARGETS = [1, 2, 3, 5, 10]


def passes_of_quam(n_targets, n_steps=100):
    rows = mnist.PENALTY["search__batch_size"] + 1
    searched = 3 * rows * n_steps * n_targets * DENSE
    return 1 + searched / (CONVOLUTIONS + DENSE)


def judge(fitted, images, name, arguments):
    est = fitted(name, arguments, 42)
    known, unknown = (est.predict_uncertainty(part).epistemic for part in images)
    labels = np.repeat([0, 1], [len(known), len(unknown)])
    return float(roc_auc_score(labels, np.concatenate([known, unknown])))


def plot(rows, path):
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=(5, 3.2), layout="constrained")
    for method, colour, style in (("QUAM", "#0072B2", "o-"), ("MCDropout", "#D55E00", "^--")):
        own = [row for row in rows if row["method"] == method]
        passes, auroc = [r["passes"] for r in own], [r["auroc"] for r in own]
        ax.semilogx(passes, auroc, style, color=colour, label=method)
    ax.set(xlabel="forward passes for an image (equivalents)", ylabel="AUROC, Omniglot")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False)
    save_figure(figure, path)


def main():
    chosen = options(__doc__, data=True, images=100)
    fitted = mnist.Fitted(chosen.data)
    images = [load_images(chosen.data, name, chosen.images) for name in ("mnist", "omniglot")]
    tasks, passes = {}, {}
    for n_targets in TARGETS:
        arguments = {**mnist.PENALTY, "search__targets": n_targets}
        name = f"QUAM, {n_targets} targets"
        passes[name] = passes_of_quam(n_targets)
        tasks[name] = lambda a=arguments: judge(fitted, images, "QUAM", a)
    for n_samples in [100, *(round(passes_of_quam(n)) for n in TARGETS)]:
        name = f"MCDropout, {n_samples} samples"
        passes[name] = float(n_samples)
        tasks[name] = lambda n=n_samples: judge(fitted, images, "MCDropout", {"n_samples": n})
    settings = {"QUAM": mnist.PENALTY, "images": chosen.images}
    path = chosen.out / "budget.json"
    results = run(path, settings, tasks)
    rows = [
        {"method": name.partition(",")[0], "what": name, "passes": passes[name], "auroc": auroc}
        for name, auroc in results.items()
    ]
    report(path, rows, ["method", "what", "passes", "auroc"], {"passes": "{:.0f}"})
    plot(rows, chosen.out / "budget.png")


if __name__ == "__main__":
    main()
