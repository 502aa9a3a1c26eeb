"""Imports of peers without what nothing here needs.

Some packages import data sets, trainers or plots together with their methods, and these ask for
torchvision or matplotlib. A package that is opened here runs no ``__init__`` of its own: only the
modules that are then imported from it run.
"""

import sys
from importlib import import_module
from importlib.machinery import PathFinder
from types import ModuleType


def module_of(name, opened):
    """Return a module of a peer, having opened the packages around it that cannot be imported."""
    for package in opened:
        if package not in sys.modules:
            parent = package.rpartition(".")[0]
            spec = PathFinder.find_spec(package, sys.modules[parent].__path__ if parent else None)
            sys.modules[package] = empty = ModuleType(package)
            empty.__path__ = list(spec.submodule_search_locations)
    return import_module(name)


def pytorch_ood():
    """Return its detectors."""
    return module_of("pytorch_ood.detector", ["pytorch_ood"])


def torch_uncertainty():
    """Return its methods, and its mutual information of (n_rows, n_models, n_classes)."""
    opened = ["torch_uncertainty", "torch_uncertainty.metrics"]
    opened.append("torch_uncertainty.metrics.classification")
    metric = module_of(f"{opened[-1]}.mutual_information", opened).MutualInformation
    return module_of("torch_uncertainty.methods", opened), metric(reduction="none")


def probly():
    """Return its representations, and its measures of (n_rows, n_models, n_classes)."""
    return (
        module_of("probly.representation", ["probly"]),
        module_of("probly.quantification.classification", ["probly"]),
    )
