"""Values at cuts that were computed last, and digests by which they are found."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict

from torch import Tensor, nn

from ..inputs.rows import Rows

_MAX_BYTES_REMEMBERED = 2**27


class RememberedRows:
    """Values at cuts that were computed last, as far as they fit.

    An estimator and its clones share one: a grid search would compute the same values for every
    candidate. It is never stored.
    """

    def __init__(self) -> None:
        self._values: OrderedDict[bytes, Rows] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def find(self, key: bytes) -> Rows | None:
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            found = self._values.get(key)
        # Copies go in and out: whoever gets them may write into them.
        return None if found is None else _copies(found)

    def keep(self, key: bytes, rows: Rows) -> None:
        size = _size(rows)
        with self._lock:
            if key in self._values or size > _MAX_BYTES_REMEMBERED:
                return
            self._values[key] = _copies(rows)
            self._bytes += size
            while self._bytes > _MAX_BYTES_REMEMBERED:
                self._bytes -= _size(self._values.popitem(last=False)[1])


def _copies(rows: Rows) -> Rows:
    return tuple(part.clone() for part in rows)


def _size(rows: Rows) -> int:
    return sum(part.numel() * part.element_size() for part in rows)


def module_digest(module: nn.Module) -> bytes:
    """Return a digest of a module's weights: copies of a network have the same.

    Parameters
    ----------
    module : torch.nn.Module
        The network.

    Returns
    -------
    bytes
        The digest.
    """
    digest = hashlib.blake2b(digest_size=16)
    for name, value in (*module.named_parameters(), *module.named_buffers()):
        digest.update(name.encode())
        digest.update(bytes_of(value))
    return digest.digest()


def bytes_of(tensor: Tensor) -> bytes:
    described = f"{tensor.dtype}{tuple(tensor.shape)}".encode()
    return described + tensor.detach().cpu().numpy().tobytes()
