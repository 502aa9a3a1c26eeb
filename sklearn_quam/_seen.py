"""Whether a given network has seen the rows that it is scored on."""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from typing import Any

from torch import Tensor

from ._adapters import is_given
from ._cache import module_digest
from .base import BaseUncertaintyEstimator

_SEEN_TEXT = (
    "A network that was passed fitted is scored on rows that another estimator of the same network "
    "was fitted to. It is not trained anew for each fold: if it was trained on these rows, the "
    "scores are too good. Hold rows out before you train the network and score those only, with "
    "cv=PredefinedSplit(...); or pass an unfitted estimator, which is trained for each fold."
)
# Networks whose rows are remembered, with about a hundred bytes a row.
_MAX_NETWORKS = 4


class SeenDataWarning(UserWarning):
    """Issued where a given network is scored on rows that it has probably been trained on.

    Examples
    --------
    >>> import warnings
    >>> from sklearn_quam.model_selection import SeenDataWarning
    >>> warnings.simplefilter("ignore", SeenDataWarning)    # the rows are new to the network
    """


# What estimators of a network were fitted to, by a digest of its weights; None: has been warned of.
_rows_of_networks: OrderedDict[bytes, set[int] | None] = OrderedDict()
_lock = threading.Lock()


def _row_digests(inputs: Tensor) -> set[int]:
    return {hash(row.tobytes()) for row in inputs.detach().cpu().numpy()}


def warn_if_seen(method: Any, rows: Any) -> None:
    """Warn if a given network is scored on what another estimator says it was trained on."""
    if not isinstance(method, BaseUncertaintyEstimator):
        return
    if not is_given(method.estimator) and getattr(method, "estimators", None) is None:
        return
    scored, fitted = _row_digests(method._check_inputs(rows)), _row_digests(method._inputs)
    network = module_digest(method._reference.module)
    with _lock:
        known = _rows_of_networks.setdefault(network, set())
        _rows_of_networks.move_to_end(network)
        if len(_rows_of_networks) > _MAX_NETWORKS:
            _rows_of_networks.popitem(last=False)
        if known is None:
            return
        # Whoever scores an estimator's own training data knows what that means.
        is_seen = not known.isdisjoint(scored - fitted)
        _rows_of_networks[network] = None if is_seen else known | fitted
    if is_seen:
        warnings.warn(_SEEN_TEXT, SeenDataWarning, stacklevel=3)
