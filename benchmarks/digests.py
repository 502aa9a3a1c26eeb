"""Which stored results are of the present version: each has a digest of what made it.

A digest is of what a method computes, not of its source text: of its pinned numbers
(``tests/pinned_numbers.json``), and of the settings of the benchmark. Results with another digest
are "measured with an earlier version": ``earlier.json`` lists them, tables mark them, and a test
holds the list to the digests.
"""

import hashlib
import json
from functools import cache, partial
from pathlib import Path

from .detectors import DETECTORS, ON_INPUTS, WITHOUT_NETWORK

ROOT = Path(__file__).parents[1]
PINNED = ROOT / "tests" / "pinned_numbers.json"
RESULTS = ROOT / "benchmarks" / "results"
EARLIER = ROOT / "benchmarks" / "earlier.json"
# Methods that scripts of ``make check-peers`` compare, by file.
COMPARED = {
    "peers": ("Laplace", "LaplaceRegressor", "HMC", "HMCRegressor", *DETECTORS),
    "peers_on_mnist": ("Reference", "DeepEnsemble", "MCDropout", "Laplace", *DETECTORS),
}
# Digits of pinned numbers that count: another processor must not make results stale.
N_DIGITS = 5


@cache
def pinned():
    """Return pinned numbers by method and by what they are."""
    found = {}
    for key, values in json.loads(PINNED.read_text()).items():
        name, _, part = key.partition(": ")
        found.setdefault(name, {})[part] = [f"{value:.{N_DIGITS}g}" for value in values]
    return found


def names_of(method):
    """Return the names that the pinned numbers of a method have, and its arguments."""
    every = {**DETECTORS, **ON_INPUTS}
    if method in every:
        kind = every[method]
        if isinstance(kind, partial):
            return [kind.func.__name__], kind.keywords
        return [kind.__name__], {}
    if method in WITHOUT_NETWORK:
        return [], {}
    kind, _, variant = method.partition(", ")
    names = [f"{kind}Classifier"]
    return [*names, f"{names[0]}, {variant}"] if variant else names, {}


def digest(methods, settings):
    """Return the digest of what methods compute and of a benchmark's settings.

    Parameters
    ----------
    methods : sequence of str
        Names as results have them, such as "QUAM, linear search" or "ViM"; names of classes, too.
    settings : dict or list
        What json can store.
    """
    found = [settings]
    for method in [*methods, "doubt"]:
        names, arguments = ([method], {}) if method in pinned() else names_of(method)
        found += [arguments, {name: pinned()[name] for name in names if name in pinned()}]
    text = json.dumps(found, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def stamp(path, methods):
    """Write into a stored result which version made it."""
    content = json.loads(path.read_text())
    content["digest"] = digest(methods, content.get("settings"))
    path.write_text(json.dumps(content, indent=1))


def earlier():
    """Return methods with results of earlier versions, or "all", by file."""
    return json.loads(EARLIER.read_text())


def stale(present):
    """Return which stored results are not of the present version, as `earlier` has them.

    Parameters
    ----------
    present : dict of str to (dict of str to str or sequence of str)
        By file: the present digest of each entry; or the methods that made the whole file.
    """
    found = {}
    for path in sorted(RESULTS.glob("*.json")):
        stored, known = json.loads(path.read_text()), present.get(path.stem)
        if isinstance(known, dict):
            entries = stored["entries"]
            old = {k.rpartition(": ")[2] for k in entries if entries[k]["digest"] != known.get(k)}
            every = {k.rpartition(": ")[2] for k in entries}
            found[path.stem] = "all" if old == every else sorted(old)
        elif known is None or stored.get("digest") != digest(known, stored.get("settings")):
            found[path.stem] = "all"
    return {name: which for name, which in found.items() if which}
