"""How much memory a computation takes, measured by doing it once."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class _Counter(TorchDispatchMode):
    """Counts the memory of tensors that are made while it is active, until they are gone."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0
        self._held = 0
        self._known: dict[int, weakref.ref] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing is compiled here, and to import the compiler takes seconds.
        return False

    def __torch_dispatch__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        # What was there before is not counted, nor is a view of it.
        self._meet(args, is_new=False)
        found = function(*args, **(kwargs or {}))
        self._meet(found, is_new=True)
        return found

    def _meet(self, value: Any, is_new: bool) -> None:
        if isinstance(value, Tensor):
            if value.layout is torch.strided:
                self._note(value.untyped_storage(), is_new)
        elif isinstance(value, (tuple, list)):
            for part in value:
                self._meet(part, is_new)

    def _note(self, storage: torch.UntypedStorage, is_new: bool) -> None:
        key = storage._cdata
        if key in self._known:
            return
        size = storage.nbytes() if is_new else 0
        self._held += size
        self.largest = max(self.largest, self._held)

        def forget(_: object) -> None:
            del self._known[key]
            self._held -= size

        self._known[key] = weakref.ref(storage, forget)


def peak_bytes(run: Callable[[], object]) -> int:
    """Return the most memory that the tensors which a function makes take at the same time.

    Parameters
    ----------
    run : callable
        The function.

    Returns
    -------
    int
        Bytes, without what single operations need for themselves while they run.
    """
    with _Counter() as counter:
        run()
    return counter.largest
