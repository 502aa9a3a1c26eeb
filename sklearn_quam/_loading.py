"""Estimators that were saved, back from their files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from . import baselines, ood, quam
from ._network.stored import GivenNetworks
from ._storing.files import package_version, read_file
from .base._saving import FORMAT, NETWORKS, Saved, restored
from .base._wrapping import parameters_now
from .exceptions import UnreadableFileError

# All that a file may hold: a name in it is looked up here, and nowhere else.
_PUBLIC = [getattr(room, name) for room in (baselines, ood) for name in room.__all__]
METHODS: dict[str, Any] = {
    cls.__name__: cls
    for cls in (quam.QUAMClassifier, quam.QUAMRegressor, *_PUBLIC)
    if isinstance(cls, type) and issubclass(cls, Saved)
}


def load(path: str | os.PathLike, estimator: Any) -> Any:
    """Return a fitted estimator or detector that its ``save`` has written.

    The file holds numbers and plain values under names that this package declares; no code, and
    nothing that could be looked up and run. A file that was damaged is refused by a digest of its
    content. The digest is no signature: numbers and weights are those of whoever has written the
    file, so that a stranger's file can answer what it likes, but do nothing else.

    Parameters
    ----------
    path : str or path
        The file.
    estimator : estimator, torch.nn.Module or list of these
        A network of the structure that was saved, whatever its weights: these come from the file,
        into a copy. A module as it is constructed, an initialised skorch net, or a fitted
        scikit-learn network with the same labels. None for a detector that was
        fitted to features. Of a pipeline, the fitted transformers are taken
        as they are. An ensemble that was given as ``estimators=[...]`` takes a list again.

    Returns
    -------
    object
        The fitted estimator.

    Raises
    ------
    UnreadableFileError
        If the file is damaged, not one of ours or of another version, or does not fit the network.

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
    ...     est.save(Path(folder) / "est.safetensors")
    ...     again = load(Path(folder) / "est.safetensors", estimator=net)
    >>> bool((again.predict_proba(X) == est.predict_proba(X)).all())
    True
    """
    try:
        return _loaded(Path(path), estimator)
    except UnreadableFileError as error:
        raise UnreadableFileError(f"{os.fspath(path)!r} cannot be loaded: {error}.") from error


def _loaded(path: Path, estimator: Any) -> Any:
    header, arrays = read_file(path)
    if not isinstance(header, dict) or type(header.get("format")) is not int:
        raise UnreadableFileError("it was not written by save")
    if header["format"] != FORMAT:
        raise UnreadableFileError(
            f"it was written by sklearn_quam {header.get('made_by')}, in a format that this "
            f"version, {package_version()}, does not read"
        )
    name = header.get("method")
    if not isinstance(name, str) or name not in METHODS:
        raise UnreadableFileError(f"it holds a method that is not known, {name!r}")
    cls, several = METHODS[name], isinstance(estimator, (list, tuple))
    if several and "estimators" not in cls._get_param_names():
        raise UnreadableFileError(f"a {name} takes one network, not a list of them")
    given = GivenNetworks(list(estimator) if several else [estimator], cls._task)
    content = restored(cls, header, arrays, given)
    networks = {one: None for one in NETWORKS if one in cls._get_param_names()}
    networks["estimators" if several else "estimator"] = estimator
    method = cls(**content["arguments"], **networks)
    try:
        method._validate_params()
    except ValueError as error:
        raise UnreadableFileError(f"its arguments are not allowed: {error}") from error
    _check_labels(content["attributes"].get("classes_"), given)
    vars(method).update(content["attributes"])
    method.estimator_ = estimator[0] if several else estimator
    method._fitted = content["fitted"]
    method._fitted_parameters = parameters_now(method)
    return method


def _check_labels(classes: np.ndarray | None, given: GivenNetworks) -> None:
    """Refuse a network that was trained with other labels, where it knows them."""
    for network in given.networks:
        if classes is None or network.classes is None or network.labels_are_indices:
            continue
        if network.classes.tolist() != classes.tolist():
            raise UnreadableFileError(
                f"it has the labels {classes.tolist()[:10]}, but the network that was passed has "
                f"{network.classes.tolist()[:10]}"
            )
