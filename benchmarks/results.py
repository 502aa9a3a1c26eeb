"""Measure again what is stale, the most important first; go on where it was interrupted.

A result is stale if its digest (`benchmarks.digests`) is not the present one. Results of families
are stored one by one; those of other scripts when the script has finished, which keeps what it has
done in ``benchmarks/results/new/`` until then. At the end the list of results that are still of an
earlier version is written (``--mark`` does only that), and all tables and figures.

    make results DATA=DIR
    python -m benchmarks.results --data DIR --seconds 3600 --only imagenet mnist
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from . import digests
from .detectors import DETECTORS
from .digests import COMPARED, EARLIER, RESULTS, ROOT, digest, stamp
from .scale import run
from .scale.case import FIRST
from .summary import FAMILIES

CLASSIFIERS = ("Reference", "MCDropout", "DeepEnsemble", "Laplace", "SWAG", "CyclicalSGHMC", "QUAM")
REGRESSORS = tuple(f"{name}Regressor" for name in CLASSIFIERS)
# By file: the script, the methods that it depends on, and whether it takes the folder of data.
SCRIPTS = {
    "costs": ("costs", ("QUAM",), False),
    "brute_force": ("brute_force", ("QUAM",), False),
    "calibration": ("paper.calibration", CLASSIFIERS, True),
    "mistakes": ("paper.mistakes", CLASSIFIERS, True),
    "sets": ("sets", CLASSIFIERS, False),
    "digits": ("digits", ("QUAM", "QUAM, linear search", "QUAM, penalty search"), False),
    "two_moons": ("paper.two_moons", (*CLASSIFIERS, "HMC", "QUAM, penalty search"), False),
    "sine": ("paper.sine", (*REGRESSORS, "HMCRegressor"), False),
    "simplex": ("paper.simplex", ("HMC", "QUAM", "DeepEnsemble", "MCDropout"), False),
    "intervals": ("intervals", REGRESSORS, False),
    "defaults": ("defaults", ("QUAM",), False),
    "beyond_range": ("beyond_range", CLASSIFIERS, True),
    "combination": ("combination", ("QUAM", "NearestNeighbor", "Energy", "PNML", "ViM"), True),
    "uci": ("paper.uci", (*REGRESSORS, "QUAM, penalty search"), True),
    "baselines": ("baselines", (*CLASSIFIERS, "HMC"), False),
    "importance": ("paper.importance", (), False),
    "peer_loop": ("peer_loop", ("QUAM",), True),
    "memory": ("memory", ("QUAM",), False),
    "detector_defaults": ("detector_defaults", tuple(DETECTORS), True),
    "diversity": ("paper.diversity", ("QUAM",), True),
    "scaling": ("scaling", ("QUAM", "QUAM, linear search", "QUAM, penalty search"), False),
    "peak": ("peak", ("QUAM",), False),
    "many_rows": ("many_rows", ("QUAM", "QUAM, penalty search"), False),
}


def present():
    """Return what `digests.stale` compares with."""
    families = {name: family.digests() for name, family in FAMILIES.items()}
    return families | COMPARED | {name: methods for name, (_, methods, _) in SCRIPTS.items()}


def tasks(data, only):
    """Yield names and functions of what is stale, the most important first."""
    first, late = [], []
    for family in FAMILIES.values():
        if only and family.name not in only:
            continue
        for name, own in run.stale(family, RESULTS).items():
            measured = partial(run.measure, family, data, RESULTS, name, own)
            method = name.rpartition(": ")[2]
            order = family.methods.index(method)
            part = first if method in FIRST else late
            part.append((order, f"{family.name}, {name}", measured))
    old = digests.stale(present())
    scripts = [name for name in SCRIPTS if name in old and (not only or name in only)]
    scripts = [(name, partial(measure, name, data)) for name in scripts]
    yield from (task[1:] for task in first)
    yield from scripts[:2]
    # Method by method: means over families take methods that all of them have.
    yield from (task[1:] for task in sorted(late, key=lambda task: task[0]))
    yield from scripts[2:]


def measure(name, data):
    """Run a script, and store its result with its digest."""
    module, methods, takes_data = SCRIPTS[name]
    folder = RESULTS / "new" / digest(methods, [])
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", f"benchmarks.{module}", "--out", str(folder)]
    start = time.perf_counter()
    subprocess.run([*command, *(["--data", str(data)] if takes_data else [])], cwd=ROOT, check=True)
    path = folder / f"{name}.json"
    stamp(path, methods)
    for found in folder.glob(f"{name}*.*"):
        shutil.move(found, RESULTS / found.name)
    return time.perf_counter() - start


def mark():
    """Write which stored results are of an earlier version."""
    lines = json.dumps(digests.stale(present()), indent=1)
    EARLIER.write_text(lines + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--only", nargs="+", default=[], help="names of results")
    parser.add_argument("--seconds", type=float, default=1e9, help="start nothing after that")
    parser.add_argument("--list", action="store_true", help="say what is stale, and do nothing")
    parser.add_argument("--mark", action="store_true", help="measure nothing")
    options = parser.parse_args()
    start = time.perf_counter()
    if not options.mark:
        for name, task in tasks(options.data, options.only):
            if options.list or time.perf_counter() - start > options.seconds:
                print(f"stale: {name}")
            else:
                print(f"{name}: {task():.1f} s", flush=True)
    if not options.list:
        mark()
        subprocess.run([sys.executable, "docs/benchmark_tables.py"], cwd=ROOT, check=True)
        subprocess.run([sys.executable, "-m", "benchmarks.tradeoff"], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
