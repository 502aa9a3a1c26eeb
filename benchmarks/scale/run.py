"""Puts families of benchmarks to every method, only to those whose results are stale."""

import json
import time
from functools import cache

import torch

from ..paper.runs import PACKAGES, versions_of
from .judge import judged


def stored_entries(family, folder):
    """Return the results of a family that are stored."""
    path = family.path(folder)
    return json.loads(path.read_text())["entries"] if path.exists() else {}


def stale(family, folder):
    """Return which results of a family are not of the present version, or not there."""
    stored = stored_entries(family, folder)
    return {
        name: digest
        for name, digest in family.digests().items()
        if stored.get(name, {}).get("digest") != digest
    }


@cache
def loaded(load, folder, case, rows):
    """Return a case, loaded and trained once."""
    torch.manual_seed(0)
    found = load(folder, case)
    return found if rows is None else found.split(*rows)


def measure(family, data, folder, name, digest):
    """Measure one result and store it."""
    torch.set_num_threads(1)
    case, _, method = name.rpartition(": ")
    start = time.process_time()
    own = loaded(family.load, data, case, family.rows)
    found = judged(own, family.make(own, method), method)
    entries = {**stored_entries(family, folder), name: {"digest": digest, **found}}
    # What has been renamed or left out must not stay.
    known = family.digests()
    entries = {key: each for key, each in entries.items() if key in known}
    write(family.path(folder), entries)
    return time.process_time() - start


def write(path, entries):
    """Write results, one a line."""
    lines = [f"{json.dumps(key)}: {json.dumps(rounded(each))}" for key, each in entries.items()]
    versions = json.dumps(versions_of(PACKAGES))
    text = f'{{"versions": {versions}, "entries": {{\n' + ",\n".join(lines) + "\n}}\n"
    aside = path.with_suffix(".part")  # an interruption must not leave half a file
    aside.write_text(text)
    aside.replace(path)


def rounded(value):
    """Return nested results with five digits."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return float(f"{value:.5g}") if isinstance(value, float) else value
