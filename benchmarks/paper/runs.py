"""What the scripts share: options, results that an interrupted run goes on from, figures."""

import argparse
import json
from importlib.metadata import version
from pathlib import Path

import numpy as np
from tqdm.auto import tqdm

PACKAGES = ("sklearn_quam", "scikit-learn", "torch", "numpy", "skorch")
RESULTS = Path(__file__).parents[1] / "results"


def options(description, *, data=False, **defaults):
    """Return the command line's options: --out, --data if it is needed or "optional", and others.

    Options with a list as default take several values; True or False make a switch.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for results and figure")
    if data:
        needed = data != "optional"
        parser.add_argument("--data", type=Path, required=needed, help="folder of the data sets")
    for name, default in defaults.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(default, bool):
            parser.add_argument(flag, action="store_true", default=default)
        elif isinstance(default, list):
            parser.add_argument(flag, type=type(default[0]), nargs="+", default=default)
        else:
            parser.add_argument(flag, type=type(default), default=default)
    return parser.parse_args()


def run(path, settings, tasks):
    """Run what has not been run yet and return all results.

    Parameters
    ----------
    path : Path
        A json file that holds the settings, the versions of the packages and the results. What it
        holds already is not computed again, as long as the settings are the same.
    settings : dict
        Everything that the results depend on. Arguments of a search are kept by their own names:
        ``search__n_steps`` as ``n_steps``.
    tasks : dict of str to callable
        Each returns a result that json can store.

    Returns
    -------
    dict
        Results by the name of the task.
    """
    settings = _own_names(json.loads(json.dumps(settings, default=_plain)))
    stored = json.loads(path.read_text()) if path.exists() else {}
    results = stored.get("results", {}) if stored.get("settings") == settings else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    for name, task in tqdm(tasks.items(), desc=path.stem):
        if name in results:
            continue
        results[name] = task()
        versions = versions_of(PACKAGES)
        _write(path, {"settings": settings, "versions": versions, "results": results})
    return {name: results[name] for name in tasks}


def versions_of(packages):
    return {package: version(package) for package in packages}


def report(path, rows, columns=None, formats=None, key="summary"):
    """Print some columns of a summary, and keep them beside the results for the documentation."""
    columns = columns or list(rows[0])
    print(table(rows, columns, formats))
    content = json.loads(path.read_text())
    content[key] = [{column: row.get(column) for column in columns} for row in rows]
    _write(path, content)


def _write(path, content):
    # Written aside first: an interruption must not leave half a file.
    aside = path.with_suffix(".part")
    aside.write_text(json.dumps(content, indent=1, default=_plain))
    aside.replace(path)


def _plain(value):
    """Return numpy's numbers and arrays as plain ones."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be stored: {value!r}")


def _own_names(settings):
    """Return settings, nested to any depth, with the arguments of a search named by themselves."""
    if not isinstance(settings, dict):
        return settings
    return {name.removeprefix("search__"): _own_names(value) for name, value in settings.items()}


def save_figure(figure, path):
    """Write a figure for the documentation."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, bbox_inches="tight")


def dot_plot(panels, path, label=None):
    """Draw a value of every method, the best in another colour; panels beside each other.

    Parameters
    ----------
    panels : list of tuple
        For each panel its title, its rows (dicts with "method") and the name of the value; if rows
        also have ``<value>_low`` and ``<value>_high``, an interval is drawn.
    path : Path
        Where the figure goes.
    label : str, default=None
        What the values are; None takes their names.
    """
    import matplotlib.pyplot as plt

    n_rows = -(-len(panels) // 4)
    n_columns = -(-len(panels) // n_rows)
    methods = list(dict.fromkeys(row["method"] for _, rows, _ in panels for row in rows))
    height = n_rows * (0.8 + 0.22 * len(methods))
    figure, axes = plt.subplots(
        n_rows, n_columns, figsize=(2.6 * n_columns, height), layout="constrained", sharey=True
    )
    axes = list(np.atleast_1d(axes).flat)
    for ax in axes[len(panels) :]:
        ax.set_visible(False)
    for ax, (title, rows, value) in zip(axes, panels, strict=False):
        best = max(rows, key=lambda row, value=value: row[value])
        for row in rows:
            colour = "#D55E00" if row is best else "#0072B2"
            place = methods.index(row["method"])
            ax.plot(row[value], place, "o", color=colour)
            if f"{value}_low" in row:
                ax.hlines(place, row[f"{value}_low"], row[f"{value}_high"], color=colour)
        ax.set_yticks(range(len(methods)), methods)
        ax.set_ylim(len(methods) - 0.5, -0.5)
        ax.set_title(title, fontsize=9)
        ax.set_xlabel(label or value.replace("auroc", "AUROC"))
        ax.grid(axis="x", alpha=0.3)
        ax.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path)


def table(rows, columns, formats=None):
    """Return rows (dicts) as a plain text table."""
    formats = formats or {}
    texts = [[_text(row.get(c), formats.get(c, "{:.3f}")) for c in columns] for row in rows]
    widths = [max(len(c), *(len(t[i]) for t in texts)) for i, c in enumerate(columns)]
    lines = ["  ".join(c.ljust(w) for c, w in zip(columns, widths, strict=True))]
    lines += ["  ".join(t.ljust(w) for t, w in zip(text, widths, strict=True)) for text in texts]
    return "\n".join(lines)


def means(rows):
    """Return the mean of each column of rows (dicts)."""
    return {column: float(np.mean([row[column] for row in rows])) for column in rows[0]}


def run_against_hmc(description, name, methods, settings, *, judge, summarise, plot):
    """Judge methods for several seeds, compare them with HMC, and draw those of the first seed."""
    chosen = options(description, seeds=[10, 11, 12], methods=list(methods))
    tasks = {
        f"{method} {seed}": lambda method=method, seed=seed: judge(method, seed)
        for seed in chosen.seeds
        for method in chosen.methods
    }
    path = chosen.out / f"{name}.json"
    results = run(path, {"methods": methods, **settings}, tasks)
    report(path, summarise(results, chosen.seeds, chosen.methods))
    worst = max(results[f"HMC {seed}"]["r_hat"] for seed in chosen.seeds)
    print(f"R-hat of HMC's predictions: at most {worst:.3f}")
    plot(results, chosen.seeds[0], chosen.methods, chosen.out / f"{name}.png")


def _text(value, form):
    if value is None:
        return "-"
    return form.format(value) if isinstance(value, float) else str(value)
