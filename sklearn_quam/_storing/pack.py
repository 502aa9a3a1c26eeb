"""Fitted objects as a tree of plain values beside arrays, and back.

What is packed holds names of classes of this package only, and the networks' weights; their code is
not in it. To unpack runs nothing but this package: what a stranger has packed cannot do more.
"""

from __future__ import annotations

import copy
import copyreg
import hashlib
import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from sklearn.base import BaseEstimator
from torch import Tensor, nn

_PACKAGE = __name__.split(".")[0]
_PLAIN = (bool, int, float, str, type(None))
# Functions that a packed object may name as what makes it again, besides its class.
_MAKERS = {
    f"{_PACKAGE}._network.free:_cut_again",
    f"{_PACKAGE}.baselines._sampling.dropout:_thinned_again",
    f"{_PACKAGE}.ood.nearest_neighbor:_among",
}


@dataclass
class Packed:
    """Something packed.

    Parameters
    ----------
    tree : object
        Plain values: what json can hold.
    arrays : dict of ndarray
        The numbers that the tree refers to.
    """

    tree: Any
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    def digest(self) -> str:
        """Return what is the same for the same content only."""
        digest = hashlib.sha256(json.dumps(self.tree, sort_keys=True).encode())
        for name, array in self.arrays.items():
            digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data if array.size else b"")
        return digest.hexdigest()


def pack(value: Any) -> Packed:
    """Return something as plain values and arrays.

    Parameters
    ----------
    value : object
        Plain values, arrays, tensors, networks, objects of this package, and collections of these.

    Returns
    -------
    Packed
        The same, without code.
    """
    packer = _Packer()
    return Packed(packer.pack(value), packer.arrays)


class Outside(Protocol):
    """Hands out what is not stored, because it is not of this package."""

    def network(self, structure: dict[str, Any]) -> nn.Module:
        """Return a network of a structure, to be filled with weights; see `structure_of`."""

    def estimator(self, number: int) -> Any:
        """Return an estimator, such as a scaler: they are counted in the order of packing."""


def unpack(packed: Packed, outside: Outside | None = None) -> Any:
    """Return what was packed.

    Parameters
    ----------
    packed : Packed
        What `pack` returned.
    outside : Outside, default=None
        Has what is not stored.

    Returns
    -------
    object
        A copy of what was packed.
    """
    return _Unpacker(packed.arrays, outside).unpack(packed.tree)


class _Packer:
    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        # By identity, with the thing itself: its number must not go to another thing meanwhile.
        self._known: dict[int, tuple[Any, str]] = {}
        self._networks: dict[int, tuple[nn.Module, int]] = {}
        self._n_outside = 0

    def pack(self, value: Any) -> Any:
        if type(value) in _PLAIN:
            return value
        if type(value) in (list, tuple, torch.Size):
            return {type(value).__name__: [self.pack(part) for part in value]}
        if type(value) in (set, frozenset):
            return {"set": [self.pack(part) for part in sorted(value, key=repr)]}
        for kind, how in self._KINDS.items():
            if isinstance(value, kind):
                return how(self, value)
        return self._pack_object(value)

    def _pack_dict(self, value: dict) -> dict[str, Any]:
        return {"dict": [[self.pack(key), self.pack(part)] for key, part in value.items()]}

    def _pack_scalar(self, value: np.generic) -> dict[str, Any]:
        return {"scalar": self._array(np.asarray(value), value)}

    def _pack_dtype(self, value: torch.dtype) -> dict[str, Any]:
        return {"dtype": str(value).removeprefix("torch.")}

    def _pack_device(self, value: torch.device) -> dict[str, Any]:
        return {"device": str(value)}

    def _pack_random_state(self, value: np.random.RandomState) -> dict[str, Any]:
        return {"random_state": self.pack(value.get_state())}

    def _pack_type(self, value: type) -> dict[str, Any]:
        return {"type": _name_of(value)}

    def _array(self, array: np.ndarray, owner: Any) -> str:
        if id(owner) not in self._known:
            name = f"a{len(self.arrays)}"
            self.arrays[name] = array
            self._known[id(owner)] = (owner, name)
        return self._known[id(owner)][1]

    def _pack_array(self, value: np.ndarray) -> dict[str, Any]:
        if value.dtype == object:
            parts = [self.pack(part) for part in value.ravel()]
            return {"objects": parts, "shape": list(value.shape)}
        if value.dtype.hasobject:
            raise TypeError(f"An array of {value.dtype} cannot be stored without pickle.")
        return {"array": self._array(np.asarray(value), value)}

    def _pack_tensor(self, value: Tensor) -> dict[str, Any]:
        tensor = value.detach().cpu()
        wide = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
        name = self._array(wide.resolve_conj().resolve_neg().numpy(), value)
        dtype = str(value.dtype).removeprefix("torch.")
        return {"tensor": name, "dtype": dtype, "device": str(value.device)}

    def _pack_network(self, value: nn.Module) -> dict[str, Any]:
        if id(value) in self._networks:
            return {"network": self._networks[id(value)][1]}
        number = len(self._networks)
        self._networks[id(value)] = (value, number)
        weights = {**dict(value.named_parameters()), **dict(value.named_buffers())}
        return {
            "network": number,
            "kind": structure_of(value),
            "weights": {name: self.pack(tensor) for name, tensor in weights.items()},
        }

    def _pack_object(self, value: Any) -> dict[str, Any]:
        if isinstance(value, BaseEstimator) and not _is_own(type(value)):
            self._n_outside += 1
            return {"outside": self._n_outside - 1}
        # What holds code may say how to do without.
        made = value._packed() if hasattr(value, "_packed") else value.__reduce_ex__(4)
        maker, arguments, state, *more = (*made, None, None, None)[:5]
        if any(part is not None for part in more):
            raise TypeError(f"{type(value).__name__} cannot be stored without pickle.")
        if maker is copyreg.__newobj__:  # type: ignore[attr-defined]
            cls, *arguments = arguments
            maker = cls
        name = _name_of(maker)
        tree = {"object": name, "arguments": [self.pack(part) for part in arguments]}
        return tree if state is None else {**tree, "state": self.pack(state)}

    _KINDS: ClassVar[dict[type, Callable[[Any, Any], Any]]] = {
        dict: _pack_dict,
        np.generic: _pack_scalar,
        np.ndarray: _pack_array,
        Tensor: _pack_tensor,
        nn.Module: _pack_network,
        torch.dtype: _pack_dtype,
        torch.device: _pack_device,
        np.random.RandomState: _pack_random_state,
        type: _pack_type,
    }


class _Unpacker:
    def __init__(self, arrays: dict[str, np.ndarray], outside: Outside | None) -> None:
        self._arrays, self._from = arrays, outside
        self._tensors: dict[str, Tensor] = {}
        self._networks: dict[int, nn.Module] = {}

    def unpack(self, tree: Any) -> Any:
        if not isinstance(tree, dict):
            return tree
        kind = next(iter(tree))
        return getattr(self, f"_{kind}")(tree[kind], tree)

    def _list(self, parts: list, _: dict) -> list:
        return [self.unpack(part) for part in parts]

    def _tuple(self, parts: list, tree: dict) -> tuple:
        return tuple(self._list(parts, tree))

    def _Size(self, parts: list, tree: dict) -> torch.Size:  # noqa: N802
        return torch.Size(self._list(parts, tree))

    def _set(self, parts: list, tree: dict) -> set:
        return set(self._list(parts, tree))

    def _dict(self, parts: list, _: dict) -> dict:
        return {self.unpack(key): self.unpack(part) for key, part in parts}

    def _array(self, name: str, _: dict) -> np.ndarray:
        return self._arrays[name]

    def _scalar(self, name: str, _: dict) -> Any:
        return self._arrays[name][()]

    def _objects(self, parts: list, tree: dict) -> np.ndarray:
        array = np.empty(len(parts), dtype=object)
        array[:] = self._list(parts, tree)
        return array.reshape(tree["shape"])

    def _tensor(self, name: str, tree: dict) -> Tensor:
        if name not in self._tensors:
            tensor = torch.tensor(self._arrays[name]).to(getattr(torch, tree["dtype"]))
            self._tensors[name] = tensor.to(_present(tree["device"]))
        return self._tensors[name]

    def _dtype(self, name: str, _: dict) -> torch.dtype:
        dtype = getattr(torch, name)
        assert isinstance(dtype, torch.dtype)
        return dtype

    def _device(self, name: str, _: dict) -> torch.device:
        return _present(name)

    def _random_state(self, state: Any, _: dict) -> np.random.RandomState:
        random_state = np.random.RandomState()
        random_state.set_state(self.unpack(state))
        return random_state

    def _type(self, name: str, _: dict) -> type:
        return _class_named(name)

    def _network(self, number: int, tree: dict) -> nn.Module:
        if number not in self._networks:
            if self._from is None:
                raise ValueError("A network is stored by its weights alone: pass the network.")
            module = copy.deepcopy(self._from.network(tree["kind"]))
            weights = {name: self.unpack(part) for name, part in tree["weights"].items()}
            fill(module, tree["kind"], weights)
            self._networks[number] = module
        return self._networks[number]

    def _outside(self, number: int, _: dict) -> Any:
        if self._from is None:
            raise ValueError("An estimator from outside of the package is not stored: pass it.")
        return self._from.estimator(number)

    def _object(self, name: str, tree: dict) -> Any:
        arguments = [self.unpack(part) for part in tree["arguments"]]
        if name in _MAKERS:
            return _named(name)(*arguments)
        cls = _class_named(name)
        value = cls.__new__(cls, *arguments)
        state = self.unpack(tree.get("state"))
        if state is None:
            return value
        if hasattr(value, "__setstate__"):
            value.__setstate__(state)
        else:
            value.__dict__.update(state)
        return value


def structure_of(module: nn.Module) -> dict[str, Any]:
    """Return what can be told of a network besides its weights.

    Parameters
    ----------
    module : torch.nn.Module
        The network.

    Returns
    -------
    dict
        Its layers as text, and the plain values that they hold.
    """
    values = {
        f"{name}.{key}".lstrip("."): list(value) if isinstance(value, tuple) else value
        for name, part in module.named_modules()
        for key, value in vars(part).items()
        if not key.startswith("_") and key != "training" and _is_plain(value)
    }
    return {"layers": repr(module), "values": values}


def fill(module: nn.Module, kind: dict[str, Any], weights: dict[str, Tensor]) -> None:
    """Put stored weights into a network, which has to be like the one that was stored.

    Parameters
    ----------
    module : torch.nn.Module
        The network, changed in place.
    kind : dict
        What `structure_of` said about the stored one.
    weights : dict of Tensor
        Its parameters and buffers.
    """
    own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    differing = [
        f"{name}: {tuple(own[name].shape) if name in own else 'missing'} instead of "
        f"{shapes.get(name, 'nothing')}"
        for name in sorted(own.keys() | shapes.keys())
        if name not in own or tuple(own[name].shape) != shapes.get(name)
    ]
    found = structure_of(module)
    # Values come back from json: a tuple in them is a list.
    stored, now = kind["values"], json.loads(json.dumps(found["values"]))
    differing += [
        f"{name}: {now.get(name)!r} instead of {stored.get(name)!r}"
        for name in sorted(stored.keys() | now.keys())
        if repr(stored.get(name)) != repr(now.get(name))
    ]
    if not differing and found["layers"] != kind["layers"]:
        differing = [f"{found['layers']} instead of {kind['layers']}"]
    if differing:
        raise ValueError(
            "The network that was passed is not like the one that was saved: "
            f"{'; '.join(differing[:5])}. Pass a network of the same structure."
        )
    with torch.no_grad():
        for name, tensor in weights.items():
            # Ties between parameters stay.
            own[name].data = tensor.clone()


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(isinstance(part, _PLAIN) for part in value)
    return isinstance(value, _PLAIN)


def _is_own(thing: Any) -> bool:
    """Tell whether a class or function is of this package."""
    return thing.__module__.split(".")[0] == _PACKAGE


def _name_of(thing: Any) -> str:
    """Return where in this package a class or function is."""
    name = f"{thing.__module__}:{thing.__qualname__}"
    if not _is_own(thing) or "<" in name:
        raise TypeError(f"{thing.__qualname__} cannot be stored without pickle.")
    return name


def _named(name: str) -> Any:
    module, _, path = name.partition(":")
    if module.split(".")[0] != _PACKAGE:
        raise ValueError(f"{name!r} is no part of {_PACKAGE}: the file was tampered with.")
    thing = importlib.import_module(module)
    for part in path.split("."):
        thing = getattr(thing, part)
    return thing


def _class_named(name: str) -> type:
    cls = _named(name)
    # What a module of this package merely imports is not of this package.
    if not isinstance(cls, type) or cls.__module__ != name.partition(":")[0]:
        raise ValueError(f"{name!r} is no class of {_PACKAGE}: the file was tampered with.")
    return cls


def _present(device: str) -> torch.device:
    """Return a device that was stored, or the host where there is no such device."""
    found = torch.device(device)
    missing = found.type == "cuda" and not torch.cuda.is_available()
    missing |= found.type == "mps" and not torch.backends.mps.is_available()
    return torch.device("cpu") if missing else found
