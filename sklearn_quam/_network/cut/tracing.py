"""The steps of a network, recorded while a few rows run through it.

torch's own symbolic tracing exchanges methods of `nn.Module` for the whole process while it runs,
so that unrelated networks in other threads fail. Here the modules of a copy get classes of their
own instead, which share the weights of the network and nothing else.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from ..adapters import TargetUnits
from ..inputs.rows import Inputs

# Methods of a tensor that tell its size or kind: what they return holds for any numbers in it.
_SIZES = {"size", "dim", "ndimension", "numel", "nelement", "element_size", "get_device"}
_KINDS = {"is_floating_point", "is_complex", "stride", "type"}


@dataclass(frozen=True)
class Trace:
    """The steps of a network.

    Parameters
    ----------
    graph : torch.fx.Graph
        The steps.
    values : dict
        What each step returned: for all rows of the probe, and for all but the last.
    constants : dict of object
        Values by the name that the graph gives to them, which the network itself does not have.
    """

    graph: fx.Graph
    values: dict[fx.Node, tuple[Any, Any]]
    constants: dict[str, Any]


def trace(module: nn.Module, probe: Inputs, pick: Callable[[Any], Any]) -> Trace:
    """Return the steps of a network.

    Parameters
    ----------
    module : torch.nn.Module
        The network, which is left alone.
    probe : Inputs
        Some rows of input, at least three.
    pick : callable
        Returns what counts of the network's output.

    Returns
    -------
    Trace
        The steps. Whatever depends on values of rows, such as control flow, raises an error.
    """
    return _Tracer(module).record(probe, pick)


def copy_sharing(module: nn.Module, but: tuple[str, ...] = ()) -> nn.Module:
    """Return a copy of a network that has the same tensors, but for some parameters.

    Parameters
    ----------
    module : torch.nn.Module
        The network.
    but : tuple of str
        Parameters that are copied.

    Returns
    -------
    torch.nn.Module
        The copy.
    """
    own = {id(module.get_parameter(name)) for name in but}
    tensors = [*module.parameters(), *module.buffers()]
    return copy.deepcopy(module, {id(t): t for t in tensors if id(t) not in own})


def attribute(module: nn.Module, path: str, *default: Any) -> Any:
    """Return what a module has at the end of a path of attributes, or the default."""
    value: Any = module
    for name in path.split("."):
        value = getattr(value, name, *default)
    return value


class _Value(fx.Proxy):
    """Stands for a value while the network runs; what is done with it is recorded."""

    tracer: _Tracer

    def __getattr__(self, name: str) -> Any:
        if not callable(getattr(self.tracer.values[self.node][0], name)):
            return self.tracer.create_proxy("call_function", getattr, (self, name), {})

        def method(*args: Any, **kwargs: Any) -> Any:
            return self.tracer.create_proxy("call_method", name, (self, *args), kwargs)

        return method

    def __len__(self) -> int:
        return self.tracer.length(self)


class _Tracer(fx.Tracer):
    """Records the steps of a network, without the parts of its base class that patch torch."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._given = module
        self.values: dict[fx.Node, tuple[Any, Any]] = {}
        self._parameters_seen: dict[str, fx.Proxy] = {}

    def record(self, probe: Inputs, pick: Callable[[Any], Any]) -> Trace:
        root = copy_sharing(self._given)
        own = set(vars(root))
        kinds: dict[type, type] = {}
        for part in root.modules():
            kind = type(part)
            if kind not in kinds:
                kinds[kind] = _recorded(kind, self)
            part.__class__ = kinds[kind]
        self.root, self.root_module_name = root, ""
        self.submodule_paths = {part: name for name, part in root.named_modules()}
        self.graph = fx.Graph()
        self.tensor_attrs = {}
        for path, part in root.named_modules():
            for name, value in vars(part).items():
                if isinstance(value, Tensor):
                    self.tensor_attrs[value] = f"{path}.{name}" if path else name
        inputs = []
        # Copies: a network may write into what it gets.
        for rows in probe.parts:
            node = self.create_node("placeholder", "rows", (), {})
            self.values[node] = (rows.clone(), rows[:-1].clone())
            inputs.append(self.proxy(node))
        with torch.no_grad():
            # With its hooks; it is not a step itself.
            output = nn.Module.__call__(root, *inputs)
            self.create_node("output", "output", (self.create_arg(pick(output)),), {})
        constants = {name: value for name, value in vars(root).items() if name not in own}
        return Trace(self.graph, self.values, constants)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Value(node, self)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        if node.op not in ("placeholder", "output"):
            self.values[node] = (self._run(node, 0), self._run(node, 1))
        return node

    def create_proxy(self, *args: Any, **kwargs: Any) -> Any:
        proxy = super().create_proxy(*args, **kwargs)
        first, fewer = self.values[proxy.node]
        # Sizes that do not depend on the number of rows are plain numbers.
        if _tells_size(proxy.node) and not isinstance(first, Tensor) and first == fewer:
            return first
        return proxy

    def _run(self, node: fx.Node, which: int) -> Any:
        """Run a step on the values it gets for all rows, or for all but the last."""
        if node.op == "get_attr":
            path = str(node.target)
            return (
                vars(self.root)[path] if path in vars(self.root) else attribute(self._given, path)
            )
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: self.values[n][which])
        if node.op == "call_module":
            return self._given.get_submodule(str(node.target))(*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        return node.target(*args, **kwargs)  # type: ignore[operator]

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple, kwargs: dict[str, Any]
    ) -> Any:
        # Looks into stacks of encoder layers, so that they can be cut between two layers.
        kind = type(m).__bases__[0]
        if kind is not nn.TransformerEncoder or len(args) != 1 or kwargs:
            return super().call_module(m, forward, args, kwargs)
        (value,) = args
        stack: Any = m
        for layer in stack.layers:
            value = layer(value)
        return value if stack.norm is None else stack.norm(value)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, TargetUnits) or super().is_leaf_module(m, module_qualified_name)

    def parameter(self, found: Any) -> Any:
        """Return what stands for a parameter, and anything else as it is."""
        return self.getattr("", found, self._parameters_seen)

    def length(self, obj: fx.Proxy) -> int:
        first, fewer = (len(value) for value in self.values[obj.node])
        if first != fewer:
            raise fx.proxy.TraceError("The number of rows is not known.")
        return first

    def iter(self, obj: Any) -> Iterator:
        return (obj[index] for index in range(self.length(obj)))


def _tells_size(node: fx.Node) -> bool:
    """Tell whether a step looks at the size or the kind of a tensor, not at the numbers in it."""
    if node.op == "call_method":
        return node.target in _SIZES | _KINDS
    if node.target is operator.getitem:
        return _tells_size(node.args[0])  # type: ignore[arg-type]
    return node.target is getattr


def _recorded(kind: type, tracer: _Tracer) -> type:
    """Return a subclass whose calls and parameters are recorded."""

    class Recorded(kind):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return tracer.call_module(self, super().__call__, args, kwargs)

        def __getattr__(self, name: str) -> Any:
            return tracer.parameter(super().__getattr__(name))

    # By this it is known whether a module is one of torch's own, which are single steps.
    Recorded.__module__, Recorded.__qualname__ = kind.__module__, kind.__qualname__
    return Recorded
