"""How the cost of QUAM grows, and what a million rows would take on a cluster.

One thing grows at a time: test rows, classes, parameters, training rows, processes, dask workers.
The rest stays as it is: the made table of ``many_rows`` with 20 features, 5 known classes and
10,000 training rows, an MLP 20-64-64, 200 rows to judge, half of them of a class that was left out.
How long a search takes does not depend on what the weights are, so networks are trained briefly.

Seconds are processor seconds of one thread, so that other work on the machine counts little; the
median of up to three runs. "forward passes" is how many predictions of the network for a row would
take as long, measured beside them. With workers, seconds of the clock stand beside the processor
seconds of all processes together.

Each series is fitted twice, by least squares of logarithms: a power of the size, and a constant
plus a share of the size. A small model then adds up what a million rows take: seconds were
measured, dividing them by the number of cores and all transfers are on paper. It is tried on 20,000
rows and two processes, which it was not fitted on.

    python -m benchmarks.scaling
"""

import os
import pickle
import signal
import time
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec

import numpy as np
import torch
from joblib import parallel_config

from sklearn_quam import QUAMClassifier

from .growth import constant_and_share, extrapolate, power_law
from .many_rows import load, train
from .paper.runs import options, report, run, save_figure

BASE = {"n_test": 200, "n_classes": 5, "width": 64, "n_training": 10_000}
SERIES = {
    "test rows": ("n_test", [10, 30, 100, 300, 1_000, 3_000, 10_000]),
    "classes": ("n_classes", [2, 5, 10, 20, 50, 100, 200]),
    "parameters": ("width", [16, 32, 64, 128, 256, 512]),
    "training rows": ("n_training", [1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000]),
}
MOST_SEARCHED = 20  # with more classes, QUAM searches for eleven of them
TRAINING = {"lr": 3e-3, "batch_size": 512, "n_epochs": 1, "min_steps": 200}
N_TRAINED = 10_000  # more rows are given to QUAM, not to the training
SEARCHES = ("natural", "linear")
MEMORY_LIMIT = "2GB"
N_REPEATS, ENOUGH_SECONDS = 3, 15.0
N_FORWARD = 1_000
N_PENALTY = 20
# Rows that are spread over workers, and those that the model is tried on.
N_SPREAD, N_TRIED = 4_000, 20_000
SIZES_SENT = (1_000, 10_000, 100_000)  # training rows of methods that are pickled
LIMIT_SECONDS = 600
MILLION = 1_000_000
CLUSTERS = ((1, 1), (1, 8), (4, 8), (16, 16))  # machines, cores of each
LINKS = {"1 Gbit/s": 1e9, "10 Gbit/s": 1e10}
COLOURS = {"natural": "#0072B2", "linear": "#D55E00"}
MARKERS = {"natural": "o", "linear": "^"}


# -- measuring ------------------------------------------------------------------------------------


def timed(task):
    """Return the median of the processor seconds of a few runs, fewer of long ones."""
    found = []
    while len(found) < N_REPEATS and sum(found) < ENOUGH_SECONDS:
        start = time.process_time()
        task()
        found.append(time.process_time() - start)
    return float(np.median(found))


def prepare(seed, *, n_test, n_classes, width, n_training):
    """Return a network, its training data and rows to judge."""
    X, y, X_new = load(n_training, -(-n_test // 2), seed, n_classes + 1)
    network = train(X[:N_TRAINED], y[:N_TRAINED], seed, width, TRAINING)
    return network, X, y, X_new[:n_test]


def quam(network, search="natural", **arguments):
    return QUAMClassifier(
        network, search=search, random_state=0, memory_limit=MEMORY_LIMIT, verbose=0, **arguments
    )


def seconds_of_search(network, X, y, X_new, search):
    """Return what `fit` and all rows take."""
    est = quam(network, search)
    fit_seconds = timed(partial(est.fit, X, y))
    est.predict_uncertainty(X_new[:2])
    seconds = timed(partial(est.predict_uncertainty, X_new))
    return {"fit_seconds": fit_seconds, "seconds": seconds, "seconds_per_row": seconds / len(X_new)}


def measure(seed, changed):
    """Return the cost of both searches where something differs from the base."""
    network, X, y, X_new = prepare(seed, **{**BASE, **changed})
    rows = torch.tensor(np.resize(X_new, (N_FORWARD, X_new.shape[1])))
    with torch.no_grad():
        network(rows)
        forward = timed(lambda: [network(rows) for _ in range(100)]) / 100 / N_FORWARD
    found = {"n_parameters": sum(p.numel() for p in network.parameters()), "forward": forward}
    return found | {name: seconds_of_search(network, X, y, X_new, name) for name in SEARCHES}


def measure_penalty(seed):
    """Return seconds a row of the penalty search and of the others, one after the other."""
    network, X, y, X_new = prepare(seed, **BASE)
    few = X_new[:: len(X_new) // N_PENALTY]
    found = {"penalty": seconds_of_search(network, X, y, few, "penalty")}
    return found | {name: seconds_of_search(network, X, y, X_new, name) for name in SEARCHES}


@contextmanager
def at_most(seconds):
    """Raise an error in what takes longer: workers may be lost for reasons of their own."""

    def stop(*_):
        raise TimeoutError(f"Not done after {seconds} seconds.")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def costs_of(task):
    """Return seconds, processor seconds of all processes, and bytes sent within the machine."""
    import psutil

    def used():
        me = psutil.Process()
        times = [p.cpu_times() for p in (me, *me.children(recursive=True))]
        sent = psutil.net_io_counters(pernic=True)["lo"].bytes_sent
        return np.array([time.perf_counter(), sum(t.user + t.system for t in times), sent])

    load_before, start = os.getloadavg()[0], used()
    task()
    clock, processor, sent = used() - start
    return {"clock": clock, "processor": processor, "sent": sent, "load": load_before}


def spread_over_processes(seed, n_rows, n_jobs):
    """Return what rows cost with some processes, which run already."""
    network, X, y, X_new = prepare(seed, **{**BASE, "n_test": n_rows})
    est = quam(network, n_jobs=n_jobs).fit(X, y)
    with at_most(LIMIT_SECONDS):
        est.predict_uncertainty(X_new[:20])
        return costs_of(partial(est.predict_uncertainty, X_new))


def spread_over_cluster(seed, n_rows, n_workers):
    """Return what rows cost on a cluster of processes of this machine, one thread each."""
    from distributed import Client, LocalCluster

    network, X, y, X_new = prepare(seed, **{**BASE, "n_test": n_rows})
    est = quam(network, n_jobs=n_workers).fit(X, y)
    cluster = {"n_workers": n_workers, "threads_per_worker": 1, "processes": True}
    with (
        at_most(LIMIT_SECONDS),
        LocalCluster(**cluster, dashboard_address=None) as started,
        Client(started, timeout="60s"),
        parallel_config(backend="dask"),
    ):
        est.predict_uncertainty(X_new[:20])
        return costs_of(partial(est.predict_uncertainty, X_new))


def measure_bytes(seed, n_training):
    """Return how large a fitted method, a row and its answer are when they are sent."""
    network, X, y, X_new = prepare(seed, **{**BASE, "n_training": n_training})
    fitted = (est := quam(network).fit(X, y))._fitted
    inputs = est._check_inputs(X_new)
    question = est._question(inputs)
    chunk = inputs[fitted.chunks(inputs, question.limits)[0]]
    (results,) = fitted.results_of_chunks([chunk], question)
    return {
        "method": len(pickle.dumps(fitted)),
        "row": len(pickle.dumps(chunk)) / len(chunk),
        "answer": len(pickle.dumps(results)) / len(chunk),
    }


# -- what it comes to ------------------------------------------------------------------------------


def series_of(results, name):
    """Return sizes and results of a series."""
    argument, values = SERIES[name]
    found = [results[f"{name} {value}"] for value in values]
    sizes = [row["n_parameters"] for row in found] if argument == "width" else values
    return np.array(sizes), found


def growth(results):
    """Return the fits of each series, a row for each search and what was timed."""
    wanted = [
        ("test rows", "seconds", "all rows", lambda sizes: sizes > 0),
        ("classes", "seconds_per_row", "a row", lambda sizes: sizes <= MOST_SEARCHED),
        ("classes", "seconds_per_row", "a row", lambda sizes: sizes > MOST_SEARCHED),
        ("parameters", "seconds_per_row", "a row", lambda sizes: sizes > 0),
        ("training rows", "seconds_per_row", "a row", lambda sizes: sizes > 0),
        ("training rows", "fit_seconds", "fit", lambda sizes: sizes > 0),
        ("parameters", "fit_seconds", "fit", lambda sizes: sizes > 0),
        ("classes", "fit_seconds", "fit", lambda sizes: sizes > 0),
    ]
    rows = []
    for name, key, what, chosen in wanted:
        sizes, found = series_of(results, name)
        for search in SEARCHES:
            seconds = np.array([row[search][key] for row in found])[chosen(sizes)]
            some = sizes[chosen(sizes)]
            power, line = power_law(some, seconds), constant_and_share(some, seconds)
            rows.append(
                {
                    "what grows": name,
                    "range": f"{some[0]:,} to {some[-1]:,}",
                    "seconds of": f"{what}, {search}",
                    "first": seconds[0],
                    "last": seconds[-1],
                    "exponent": power["exponent"],
                    "residual": power["residual"],
                    "constant": line["constant"],
                    "slope": line["slope"],
                    "residual of the line": line["residual"],
                }
            )
    return rows


def relative(results):
    """Return the cost of the base in units that do not depend on the machine."""
    base, beside = results[f"classes {BASE['n_classes']}"], results["penalty"]
    rows = []
    for search in ("penalty", *SEARCHES):
        own = beside[search]
        rows.append(
            {
                "search": search,
                "seconds a row": own["seconds_per_row"],
                "times as fast as penalty": beside["penalty"]["seconds_per_row"]
                / own["seconds_per_row"],
                "forward passes": own["seconds_per_row"] / base["forward"],
                "seconds of fit": own["fit_seconds"],
            }
        )
    return rows


def workers(results):
    """Return what the same rows cost with one and two workers."""
    alone = results["processes 1"]
    return [
        {
            "workers": name,
            "seconds": own["clock"],
            "times as fast": alone["clock"] / own["clock"],
            "processor seconds": own["processor"],
            "relative": own["processor"] / alone["processor"],
            "megabytes sent": own["sent"] / 1e6,
            "other load": own["load"],
        }
        for name, own in results.items()
        if name.startswith(("processes", "dask")) and "tried" not in name
    ]


def model_of(results, n_training):
    """Return what the model takes from measurements, for some number of training rows."""
    sizes, found = series_of(results, "training rows")
    own = found[list(sizes).index(n_training)]["natural"]
    methods = [results[f"bytes {n}"]["method"] for n in SIZES_SENT]
    line, sent = constant_and_share(SIZES_SENT, methods), results[f"bytes {SIZES_SENT[0]}"]
    return {
        "fit_seconds": own["fit_seconds"],
        "seconds_per_row": own["seconds_per_row"],
        "bytes_of_method": line["constant"] + line["slope"] * n_training,
        "bytes_per_row": sent["row"] + sent["answer"],
    }


def million(results):
    """Return what a million rows would take."""
    rows = []
    for n_training in (10_000, 1_000_000):
        model = model_of(results, n_training)
        for n_machines, n_cores in CLUSTERS:
            for link, speed in LINKS.items():
                found = extrapolate(MILLION, n_machines, n_cores, **model, bits_per_second=speed)
                minutes = {f"{part}, min": value / 60 for part, value in found.items()}
                cluster = {"machines x cores": f"{n_machines} x {n_cores}", "link": link}
                rows.append({"training rows": f"{n_training:,}", **cluster, **minutes})
    return rows


def check(results):
    """Return what the model says about rows that it was not fitted on, and what was measured."""
    sizes, found = series_of(results, "test rows")
    line = constant_and_share(sizes, [row["natural"]["seconds"] for row in found])
    measured = results["processes tried"]
    model = {"seconds_per_row": line["slope"], "constant": line["constant"], "fit_seconds": 0}
    work, clock = (extrapolate(N_TRIED, 1, n, **model)["total"] for n in (1, 2))
    found = [
        ("processor seconds of both processes", work, measured["processor"]),
        ("seconds of the clock", clock, measured["clock"]),
    ]
    if "dask 2" in results:
        # The method goes to the scheduler, to a worker, and from there to the other one.
        sent = results[f"bytes {BASE['n_training']}"]
        said = 3 * sent["method"] + 2 * N_SPREAD * (sent["row"] + sent["answer"])
        found.append(("megabytes, two dask workers", said / 1e6, results["dask 2"]["sent"] / 1e6))
    return [
        {"what": what, "predicted": said, "measured": own, "error": said / own - 1}
        for what, said, own in found
    ]


def traffic(results):
    """Return how large what is sent is."""
    return [
        {
            "training rows": f"{n:,}",
            "fitted method, megabytes": results[f"bytes {n}"]["method"] / 1e6,
            "row, bytes": results[f"bytes {n}"]["row"],
            "its answer, bytes": results[f"bytes {n}"]["answer"],
        }
        for n in SIZES_SENT
    ]


def plot(results, path):
    """Draw each series with the better of its two fits, and the million rows."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(10.5, 6.2), layout="constrained")
    panels = [
        ("test rows", "seconds", "seconds for all rows"),
        ("classes", "seconds_per_row", "seconds a row"),
        ("parameters", "seconds_per_row", "seconds a row"),
        ("training rows", "seconds_per_row", "seconds a row"),
        ("training rows", "fit_seconds", "seconds of fit"),
    ]
    for ax, (name, key, label) in zip(axes.flat, panels, strict=False):
        sizes, found = series_of(results, name)
        for search in SEARCHES:
            seconds = np.array([row[search][key] for row in found])
            style = {"color": COLOURS[search]}
            ax.plot(sizes, seconds, MARKERS[search], label=search, **style)
            some = sizes <= MOST_SEARCHED if name == "classes" else sizes > 0
            along = np.geomspace(sizes[some][0], sizes[some][-1], 50)
            power = power_law(sizes[some], seconds[some])
            line = constant_and_share(sizes[some], seconds[some])
            curve = line["constant"] + line["slope"] * along
            if power["residual"] < line["residual"]:
                curve = power["factor"] * along ** power["exponent"]
            ax.plot(along, curve, lw=1, **style)
        ax.set(xscale="log", yscale="log", xlabel=name, ylabel=label)
    axes[0, 0].legend(frameon=False)
    ax = axes[1, 2]
    processes = np.unique(np.geomspace(2, 1024, 40).astype(int))
    for n_training, colour in ((10_000, "#009E73"), (1_000_000, "#CC79A7")):
        model = model_of(results, n_training)
        for link, style in (("1 Gbit/s", "--"), ("10 Gbit/s", "-")):
            speed = {"bits_per_second": LINKS[link]}
            hours = [
                extrapolate(MILLION, n, 1, **model, **speed)["total"] / 3600 for n in processes
            ]
            label = f"{n_training:,} training rows, {link}"
            ax.plot(processes, hours, style, color=colour, label=label)
    ax.set(xscale="log", yscale="log", xlabel="processes", ylabel="hours for a million rows")
    ax.set_ylim(bottom=ax.get_ylim()[0] / 30)  # room for the legend
    ax.set_title("on paper", fontsize=9)
    ax.legend(frameon=False, fontsize=7, loc="lower left")
    for ax in axes.flat:
        ax.grid(alpha=0.3)
        ax.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path)


def main():
    chosen = options(__doc__, seed=10)
    seed = chosen.seed
    torch.set_num_threads(1)
    tasks = {
        f"{name} {value}": partial(measure, seed, {argument: value})
        for name, (argument, values) in SERIES.items()
        for value in values
    }
    tasks["penalty"] = partial(measure_penalty, seed)
    tasks |= {f"bytes {n}": partial(measure_bytes, seed, n) for n in SIZES_SENT}
    tasks |= {f"processes {n}": partial(spread_over_processes, seed, N_SPREAD, n) for n in (1, 2)}
    if find_spec("distributed"):
        tasks |= {f"dask {n}": partial(spread_over_cluster, seed, N_SPREAD, n) for n in (1, 2)}
    tasks["processes tried"] = partial(spread_over_processes, seed, N_TRIED, 2)
    settings = {"base": BASE, "training": TRAINING, "trained": N_TRAINED, "seed": seed}
    settings |= {"memory_limit": MEMORY_LIMIT, "spread": N_SPREAD, "tried": N_TRIED}
    path = chosen.out / "scaling.json"
    results = run(path, settings, tasks)
    short = {"constant": "{:.2g}", "slope": "{:.2g}", "first": "{:.2g}", "last": "{:.2g}"}
    report(path, growth(results), formats=short)
    report(path, relative(results), formats={"seconds a row": "{:.2g}"}, key="relative")
    report(path, workers(results), key="workers")
    report(path, traffic(results), key="traffic")
    report(path, check(results), key="check")
    report(path, million(results), key="million")
    plot(results, chosen.out / "scaling.png")


if __name__ == "__main__":
    main()
