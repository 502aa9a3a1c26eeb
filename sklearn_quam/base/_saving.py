"""Fitted estimators in a file without code: arrays, plain values, and weights of networks."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from sklearn.utils.validation import check_is_fitted
from torch import nn

from .._network.adapters import is_torch, read_network, split_pipeline
from .._storing.files import package_version, read_packed, write_packed
from .._storing.pack import Packed, pack, structure_of, unpack
from ._wrapping import parameters_now

_FORMAT = 1
# Arguments and attributes that hold networks: they are passed to `load`.
_NETWORKS = ("estimator", "estimators", "estimator_", "estimators_")


class Saved:
    """An estimator that can be stored without code."""

    _task: ClassVar[str]

    def save(self, path: str | os.PathLike) -> None:
        """Write the fitted estimator to a file, but for the code of its network.

        Parameters
        ----------
        path : str or path
            The file. `sklearn_quam.load` reads it, given a network of the same structure. It holds
            arrays and plain values, no pickles; of the training data it holds what was kept by
            ``fit``.
        """
        check_is_fitted(self)
        content = _content(self)
        try:
            packed = pack(content)
        except TypeError as error:
            raise TypeError(
                f"{type(self).__name__} cannot be saved without pickle: {error} Pass names instead "
                "of a function as parameters= or metric=, and labels that are texts or numbers."
            ) from error
        mark = {"format": _FORMAT, "made_by": package_version(), "content": packed.tree}
        write_packed(Path(path), Packed(mark, packed.arrays))

    def __getstate__(self) -> dict[str, Any]:
        return _without_torch(super().__getstate__())  # type: ignore[arg-type]

    def __setstate__(self, state: dict[str, Any]) -> None:
        stored = state.get("_fitted")
        if isinstance(stored, dict):
            given = _Given(_networks_of(state), self._task)
            packed = Packed(json.loads(stored["tree"]), stored["arrays"])
            state = {**state, "_fitted": unpack(packed, given)}
        super().__setstate__(state)  # type: ignore[misc]


def _content(estimator: Any) -> dict[str, Any]:
    """Return what is to be known about a fitted estimator besides its network."""
    arguments = estimator.get_params(deep=False)
    return {
        "class": type(estimator),
        "arguments": {k: v for k, v in arguments.items() if k not in _NETWORKS},
        "attributes": {
            name: value
            for name, value in vars(estimator).items()
            if name not in arguments and name not in _NETWORKS and not name.startswith("_")
        },
        "single_output": getattr(estimator, "_single_output", None),
        "fitted": estimator._fitted,
        "transformers": [_described(s) for s in _transformers(_networks_of(vars(estimator)))],
    }


def _without_torch(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of an estimator around scikit-learn's networks without torch.

    Tools that store estimators without pickle know scikit-learn and numpy only.
    """
    networks = _networks_of(state)
    if "_fitted" not in state or any(is_torch(split_pipeline(one)[1]) for one in networks):
        return state
    try:
        packed = pack(state["_fitted"])
    except TypeError:
        # Labels may be of any kind.
        return state
    return {**state, "_fitted": {"tree": json.dumps(packed.tree), "arrays": packed.arrays}}


def load(path: str | os.PathLike, estimator: Any) -> Any:
    """Return a fitted estimator or detector that its ``save`` has written.

    Nothing in the file is run: it holds arrays and plain values, and names of classes of this
    package only. A file of somebody you do not know can be wrong, but it can do no harm.

    Parameters
    ----------
    path : str or path
        The file.
    estimator : estimator, torch.nn.Module or list of these
        A network of the structure that was saved, whatever its weights: these come from the file,
        into a copy. A module as it is constructed, an initialised skorch net, or a fitted
        scikit-learn network. Of a pipeline, the fitted transformers are taken as they are. An
        ensemble that was given as ``estimators=[...]`` takes a list again.

    Returns
    -------
    object
        The fitted estimator.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn_quam import QUAMClassifier, load
    >>> X, y = load_iris(return_X_y=True)
    >>> net = LogisticRegression(max_iter=1000).fit(X, y)
    >>> est = QUAMClassifier(net, random_state=0).fit(X, y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     est.save(Path(folder) / "est.npz")
    ...     again = load(Path(folder) / "est.npz", estimator=net)
    >>> bool((again.predict_proba(X) == est.predict_proba(X)).all())
    True
    """
    packed = read_packed(Path(path))
    mark = packed.tree
    if not isinstance(mark, dict) or "content" not in mark or "format" not in mark:
        raise ValueError(f"{os.fspath(path)!r} was not written by save.")
    if mark["format"] != _FORMAT:
        raise ValueError(
            f"{os.fspath(path)!r} was written by sklearn_quam {mark.get('made_by')}, in a format "
            f"that this version, {package_version()}, does not read."
        )
    several = isinstance(estimator, (list, tuple))
    kind = unpack(Packed(dict(mark["content"]["dict"])["class"]))
    given = _Given(list(estimator) if several else [estimator], kind._task)
    content = unpack(Packed(mark["content"], packed.arrays), given)
    given.check(content["transformers"])
    networks = {"estimators": estimator} if several else {"estimator": estimator}
    restored = content["class"](**content["arguments"], **networks)
    vars(restored).update(content["attributes"])
    restored.estimator_ = estimator[0] if several else estimator
    if content["single_output"] is not None:
        restored._single_output = content["single_output"]
    restored._fitted = content["fitted"]
    restored._fitted_parameters = parameters_now(restored)
    return restored


class _Given:
    """Networks and transformers that are passed to `load`."""

    def __init__(self, estimators: list[Any], task: str) -> None:
        self._transformers = _transformers(estimators)
        self._modules = [
            read_network(split_pipeline(one)[1], task=task).module for one in estimators
        ]

    def network(self, structure: dict[str, Any]) -> nn.Module:
        """Return a network of a structure, or the first one: what differs is told later."""
        for module in self._modules:
            if json.loads(json.dumps(structure_of(module))) == structure:
                return module
        return self._modules[0]

    def estimator(self, number: int) -> Any:
        """Return the transformers in front of a network."""
        if not self._transformers:
            raise ValueError(
                "The network was saved behind transformers: pass the fitted pipeline to load."
            )
        return copy.deepcopy(self._transformers[min(number, len(self._transformers) - 1)])

    def check(self, described: list[str]) -> None:
        """Refuse other transformers than there were."""
        if [_described(step) for step in self._transformers] != described:
            raise ValueError(
                "The transformers in front of the network are not those that it was saved with. "
                "Pass the pipeline that was fitted then."
            )


def _networks_of(state: dict[str, Any]) -> list[Any]:
    """Return the networks that a user would pass to `load`."""
    if state.get("estimators") is not None:
        return list(state["estimators"])
    return [state["estimator_"]] if "estimator_" in state else []


def _transformers(estimators: list[Any]) -> list[Any]:
    found = (split_pipeline(one)[0] for one in estimators)
    return [transformers for transformers in found if transformers is not None]


def _described(transformers: Any) -> str:
    """Return what is the same for transformers that do the same: the numbers that they hold."""
    steps = [
        [type(step).__name__]
        + [
            [name, value]
            for name, value in sorted(vars(step).items())
            if isinstance(value, (bool, int, float, str, np.ndarray, np.generic))
        ]
        for _, step in transformers.steps
        if hasattr(step, "__dict__")
    ]
    return pack(steps).digest()
