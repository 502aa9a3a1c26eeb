"""Every method over all tasks: mean ranks, and rows a second.

Collects what ``benchmarks.tables`` and the scripts in ``benchmarks/scale`` have measured: it runs
nothing itself. A task is a kind of rows that is to be told from known ones (by the AUROC of the
epistemic uncertainty, of the network's entropy, or of a detector's score), or the mistakes of a
network. Sets that settings were chosen on are left out, and so are Flickr's images, which show what
the network knows. Ranks are taken among the methods that all tasks have; those of a family of tasks
are averaged, and then those of the families: nineteen small tables must not outweigh ImageNet.
Intervals of the mean rank are of a bootstrap over tasks, within families. Rows a second are
geometric means over the families.

    python -m benchmarks.ranks
"""

import json

import numpy as np
from scipy.stats import rankdata

from .paper.runs import options, report, run, save_figure
from .scale.run import named

# By file: how it is called, and the sets that count. Of the tables, all do.
FAMILIES = {
    "imagenet": ("ImageNet", ("scenes", "plants", "chest_xray")),
    "cifar10": ("CIFAR-10", ("cifar100_test", "tiny_imagenet")),
    "mnist": ("MNIST", ("FMNIST", "KMNIST", "EMNIST", "OMNIGLOT")),
    "text": ("text", ("out_of_scope", "unseen_intents", "shuffled")),
    "tables": ("tables", None),
}
MISTAKES = "mistakes, epistemic"
N_RESAMPLES = 1000


def aurocs_of(stored, sets):
    """Return AUROCs by task and method, means over networks, and rows a second by method."""
    if sets is None:
        tasks = {
            row["table"]: {name: value for name, value in row.items() if name != "table"}
            for row in stored["by table"]
        }
        return tasks, {row["method"]: row["rows a second"] for row in stored["summary"]}
    tasks = {part: {row["method"]: row[part] for row in stored["ood"]} for part in sets}
    tasks[MISTAKES] = {row["method"]: row[MISTAKES] for row in stored["own"]}
    speed = {row["method"]: row["rows a second"] for row in stored["speed"]}
    return tasks, speed | {named(method, "expected"): rows for method, rows in speed.items()}


def ranked(tasks, methods):
    """Return ranks of methods for each task, the best is 1."""
    values = np.array([[task[method] for method in methods] for task in tasks])
    return rankdata(-values.round(6), axis=1)


def interval(ranks, rng):
    """Return the ends of a 95 % interval of the mean over families, by method."""
    draws = []
    for _ in range(N_RESAMPLES):
        resampled = [own[rng.integers(len(own), size=len(own))].mean(axis=0) for own in ranks]
        draws.append(np.mean(resampled, axis=0))
    return np.quantile(draws, [0.025, 0.975], axis=0)


def collected(folder):
    families, mistakes, speeds = {}, {}, {}
    for file, (family, sets) in FAMILIES.items():
        stored = json.loads((folder / f"{file}.json").read_text())
        tasks, speeds[family] = aurocs_of(stored, sets)
        mistaken = tasks.pop(MISTAKES, None)
        if mistaken:
            mistakes[family] = mistaken
        families[family] = tasks
    return families, mistakes, speeds


def summarise(families, mistakes, speeds):
    every = [task for tasks in families.values() for task in tasks.values()]
    methods = [name for name in every[0] if all(name in task for task in every)]
    ranks = [ranked(tasks.values(), methods) for tasks in families.values()]
    overall = np.mean([own.mean(axis=0) for own in ranks], axis=0)
    low, high = interval(ranks, np.random.default_rng(0))
    of_mistakes = ranked(mistakes.values(), methods).mean(axis=0)
    rows = []
    for column in np.argsort(overall):
        method = methods[column]
        mean = [np.mean([task[method] for task in tasks.values()]) for tasks in families.values()]
        speed = [own[method] for own in speeds.values()]
        rows.append(
            {
                "method": method,
                "mean rank": float(overall[column]),
                "low": float(low[column]),
                "high": float(high[column]),
                "mean AUROC": float(np.mean(mean)),
                **{family: float(value) for family, value in zip(families, mean, strict=True)},
                "rank for mistakes": float(of_mistakes[column]),
                "rows a second": float(np.exp(np.mean(np.log(speed)))),
            }
        )
    return rows


def plot(rows, path):
    """Draw mean ranks with their intervals, for unknown rows and for mistakes."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1, 2, figsize=(8, 0.6 + 0.25 * len(rows)), layout="constrained", sharey=True
    )
    for place, row in enumerate(rows):
        colour = "#D55E00" if row["method"].startswith("QUAM") else "#0072B2"
        axes[0].plot(row["mean rank"], place, "o", color=colour)
        axes[0].hlines(place, row["low"], row["high"], color=colour)
        axes[1].plot(row["rank for mistakes"], place, "s", color=colour)
    axes[0].set_yticks(range(len(rows)), [row["method"] for row in rows])
    axes[0].set_ylim(len(rows) - 0.5, -0.5)
    axes[0].set_xlabel("mean rank, unknown rows (1 is best)")
    axes[1].set_xlabel("mean rank, mistakes")
    for ax in axes:
        ax.grid(axis="x", alpha=0.3)
        ax.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path)


def main():
    chosen = options(__doc__)
    families, mistakes, speeds = collected(chosen.out)
    path = chosen.out / "ranks.json"
    # It is made of what others have measured: never of what it held before.
    path.unlink(missing_ok=True)
    run(path, {"families": FAMILIES}, {"tasks": lambda: families})
    rows = summarise(families, mistakes, speeds)
    report(path, rows, formats={"rows a second": "{:.0f}"})
    plot(rows, chosen.out / "ranks.png")


if __name__ == "__main__":
    main()
