"""Networks without their code: what a file holds of one, and how another is filled with it."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from sklearn.pipeline import Pipeline
from torch import Tensor, nn

from .._storing.schema import Instead
from ..exceptions import UnreadableFileError
from .adapters import Network, is_pretrained, read_network, split_pipeline
from .wrapped import InOwnPrecision, TakesNamed

_PLAIN = (bool, int, float, str, type(None))
_DTYPES = (
    (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    + (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
    + (torch.bool, torch.complex64, torch.complex128)
)
_DEVICES = ("cpu", "cuda", "mps", "xpu")


@dataclass(frozen=True)
class StoredModule:
    """A network without its code."""

    # Types and plain attributes of its modules, as text
    values: dict[str, str]
    weights: dict[str, Tensor]
    named: tuple[str, ...] | None
    own_precision: bool


def stored_module(module: nn.Module) -> StoredModule:
    """Return a network, as `build_reference` has prepared it, without its code."""
    values = {}
    for name, part in module.named_modules():
        values[f"type of {name or 'the network'}"] = type(part).__name__
        for key, value in vars(part).items():
            several = isinstance(value, (tuple, list))
            plain = all(isinstance(one, _PLAIN) for one in (value if several else [value]))
            if plain and not key.startswith("_") and key != "training":
                values[f"{name}.{key}".lstrip(".")] = repr(list(value) if several else value)
    named = module._named_inputs if isinstance(module, TakesNamed) else None
    own_precision = isinstance(vars(module).get("forward"), InOwnPrecision)
    return StoredModule(values, _weights_of(module), named, own_precision)


class GivenNetworks:
    """Networks that are passed to `load`, and the transformers in front of them."""

    def __init__(self, estimators: list[Any], task: str) -> None:
        estimators = [one for one in estimators if one is not None]
        finals = [split_pipeline(one) for one in estimators]
        unfitted = [type(final).__name__ for _, final in finals if not is_pretrained(final)]
        if unfitted:
            raise UnreadableFileError(
                f"estimator= takes a network of the structure that was saved, but {unfitted} "
                "is not fitted. Pass a fitted one; its weights do not matter"
            )
        try:
            self.networks: list[Network] = [read_network(final, task=task) for _, final in finals]
        except TypeError as error:
            words = str(error).rstrip(".")
            raise UnreadableFileError(f"it needs the network of a {task}. {words}") from error
        self._transformers = {described(steps): steps for steps, _ in finals if steps is not None}

    def module(self, stored: StoredModule) -> nn.Module:
        """Return a copy of the network that is like the one that was stored, with its weights."""
        if not self.networks:
            raise UnreadableFileError(
                "it needs a network. Pass a fitted one of the structure that was saved"
            )
        found: list[list[str]] = []
        for network in self.networks:
            module = copy.deepcopy(network.module)
            # As `build_reference` prepares it.
            if stored.named is not None:
                module = TakesNamed(module, stored.named)
            if stored.own_precision:
                module.forward = InOwnPrecision(module)
            differing = _differences(module, stored)
            if not differing:
                for name, weight in _weights_of(module).items():
                    # Ties between parameters stay.
                    weight.data = stored.weights[name].clone()
                return module
            found.append(differing)
        raise UnreadableFileError(
            "the network that was passed is not like the one that was saved: "
            f"{'; '.join(min(found, key=len)[:5])}. Pass a network of the same structure"
        )

    def transformers(self, description: str) -> Pipeline:
        """Return a copy of the transformers that were described."""
        if description not in self._transformers:
            raise UnreadableFileError(
                "the transformers in front of the network are not those that it was saved with. "
                "Pass the pipeline that was fitted then"
                if self._transformers
                else "the network was saved behind transformers: pass the fitted pipeline"
            )
        return copy.deepcopy(self._transformers[description])


def instead(given: GivenNetworks | None = None) -> dict[type, Instead]:
    """Return what stands for networks, transformers, types and devices in a file."""
    names = {str(dtype): dtype for dtype in _DTYPES}
    network, steps = (str, str) if given is None else (given.module, given.transformers)
    return {
        nn.Module: Instead(StoredModule, stored_module, network),
        Pipeline: Instead(str, described, steps),
        torch.dtype: Instead(str, str, names.__getitem__),
        torch.device: Instead(str, str, present),
    }


def present(name: str) -> torch.device:
    """Return a device that was stored, or the host where there is no such device."""
    kind = name.partition(":")[0]
    if kind not in _DEVICES:
        raise UnreadableFileError(f"the device {name!r} is not known")
    missing = kind != "cpu" and not getattr(torch, kind).is_available()
    return torch.device("cpu") if missing else torch.device(name)


def described(transformers: Pipeline) -> str:
    """Return what is the same for transformers that do the same: the numbers that they hold."""
    digest = hashlib.sha256()
    for _, step in transformers.steps:
        for part in _contents(step, ()):
            digest.update(part)
    return digest.hexdigest()


def _contents(value: Any, above: tuple[int, ...]) -> Iterator[bytes]:
    """Yield what a value holds as bytes, with the parts of its parts, such as fitted columns."""
    if isinstance(value, Tensor):
        value = value.detach().cpu().double().numpy()
    elif hasattr(value, "to_numpy"):
        value = value.to_numpy()
    parts: Any = ()
    if isinstance(value, np.ndarray) and value.dtype != object:
        yield f"{value.dtype}{value.shape};".encode() + value.tobytes()
        return
    if isinstance(value, np.ndarray):
        yield f"{value.shape};".encode()
        parts = enumerate(value.tolist())
    elif isinstance(value, (list, tuple)):
        parts = enumerate(value)
    elif isinstance(value, dict):
        parts = sorted(((repr(name), part) for name, part in value.items()), key=itemgetter(0))
    elif isinstance(value, (set, frozenset)):
        parts = ((name, None) for name in sorted(map(repr, value)))
    elif hasattr(value, "__qualname__") or not hasattr(value, "__dict__"):
        text = getattr(value, "__qualname__", None) or repr(value)
        # Addresses differ from process to process.
        yield (type(value).__name__ if " at 0x" in text else text).encode() + b";"
        return
    else:
        kept = [item for item in vars(value).items() if _lasts(*item)]
        parts = sorted(kept, key=itemgetter(0))
    yield type(value).__name__.encode()
    if id(value) not in above:
        for name, part in parts:
            yield f"{name}=".encode()
            yield from _contents(part, (*above, id(value)))


def _lasts(name: str, value: Any) -> bool:
    """Return whether an attribute is not one that a process keeps for itself alone."""
    is_address = name.startswith("_") and name.endswith("_id") and isinstance(value, int)
    return name != "memory" and not is_address


def _weights_of(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _differences(module: nn.Module, stored: StoredModule) -> list[str]:
    """Return in what a network differs from one that was stored, in words."""
    now = stored_module(module)
    shapes, own = (
        {name: tuple(tensor.shape) for name, tensor in one.weights.items()} for one in (stored, now)
    )
    found = []
    for before, after in ((shapes, own), (stored.values, now.values)):
        found += [
            f"{name}: {after.get(name, 'nothing')} instead of {before.get(name, 'nothing')}"
            for name in sorted(before.keys() | after.keys())
            if before.get(name) != after.get(name)
        ]
    return found
