"""A network cut in two, so that what is the same for all models is run once.

The module is traced and cut where the models begin to differ, in their parameters or by dropout:
what comes before is computed once for each row, what comes after is run for each model.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from .reference import Rows

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
        digest.update(_bytes_of(value))
    return digest.digest()


def _bytes_of(tensor: Tensor) -> bytes:
    described = f"{tensor.dtype}{tuple(tensor.shape)}".encode()
    return described + tensor.detach().cpu().numpy().tobytes()


@dataclass(frozen=True)
class SplitModule:
    """A network cut in two.

    Parameters
    ----------
    frozen : torch.nn.Module or None
        From the input to the values at the cut; None where the cut is at the input.
    rest : torch.nn.Module
        From the values at the cut to the output; its parameters keep their names.
    place : {"inside", "at_input", "failed"}
        Where the cut is; "failed" where the module cannot be traced, so that all of it runs for
        every model.
    digest : bytes
        What is the same for the same frozen part only.
    remembered : RememberedRows or None
        Where to look values at the cut up, and to keep them.
    """

    frozen: nn.Module | None
    rest: nn.Module
    place: str
    digest: bytes = b""
    remembered: RememberedRows | None = None

    def at_cut(self, inputs: Tensor) -> Rows:
        """Return the values at the cut, each with a row for each row of the input."""
        if self.frozen is None:
            return (inputs,)
        # On an accelerator, to look the rows up would take longer than to run them again.
        memory = self.remembered if inputs.device.type == "cpu" else None
        if memory is not None:
            key = self.digest + hashlib.blake2b(_bytes_of(inputs), digest_size=16).digest()
            found = memory.find(key)
            if found is not None:
                return found
        # A single row is run twice: modules that squeeze their values would lose its axis.
        rows = inputs.repeat_interleave(2, dim=0) if len(inputs) == 1 else inputs
        with torch.no_grad():
            values = tuple(value[: len(inputs)] for value in self.frozen(rows))
        if memory is not None:
            memory.keep(key, values)
        return values


class _Tracer(fx.Tracer):
    """Looks into stacks of encoder layers, so that they can be cut between two layers."""

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple, kwargs: dict[str, Any]
    ) -> Any:
        if type(m) is not nn.TransformerEncoder or len(args) != 1 or kwargs:
            return super().call_module(m, forward, args, kwargs)
        (value,) = args
        for layer in m.layers:
            value = layer(value)
        return value if m.norm is None else m.norm(value)


# Tells for a step of a traced network, and the submodule that it runs, whether it is meant.
Where = Callable[[fx.Node, nn.Module | None], bool]


def split_module(
    module: nn.Module, names: tuple[str, ...], probe: Tensor, differs: Where | None = None
) -> SplitModule:
    """Cut a module where the models begin to differ.

    Parameters
    ----------
    module : torch.nn.Module
        The network.
    names : tuple of str
        The parameters in which they differ.
    probe : Tensor of shape (n_rows, ...)
        Some rows of input, at least three.
    differs : callable, default=None
        Tells for a node of the traced graph, and its submodule if it runs one, whether the models
        differ in what it does for another reason.

    Returns
    -------
    SplitModule
        The two parts; the whole module as the second one where it cannot be traced.
    """
    searched = {id(module.get_parameter(name)) for name in names}
    try:
        graph = _Tracer().trace(module)
        split = _split_graph(module, graph, _depends_on(module, graph, searched, differs), probe)
        if split.rest is not module:
            _keep_names(module, split.rest, names)
        if _agree(module, split, probe):
            return split
    except Exception:
        # Tracing runs the user's code and may fail in any way.
        pass
    return SplitModule(None, module, "failed")


def _agree(module: nn.Module, split: SplitModule, probe: Tensor) -> bool:
    """Check the traced parts against the module, on other numbers of rows than were traced."""
    for rows in (probe, probe[:-1]):
        with torch.no_grad():
            expected, got = module(rows), split.rest(*split.at_cut(rows))
        pairs = zip(
            expected if isinstance(expected, (tuple, list)) else [expected],
            got if isinstance(got, (tuple, list)) else [got],
            strict=True,
        )
        for a, b in pairs:
            if a.shape != b.shape or not torch.allclose(a, b, rtol=1e-4, atol=1e-5):
                return False
    return True


def _split_graph(
    module: nn.Module, graph: fx.Graph, searching: set[fx.Node], probe: Tensor
) -> SplitModule:
    values, fewer = _run(module, graph, probe), _run(module, graph, probe[:-1])
    late = set(searching)
    constant = _constants(graph)
    while True:
        cut = [
            node
            for node in graph.nodes
            if node not in late
            and node not in constant
            and any(user in late for user in node.users)
        ]
        axes = {
            node: 0 if node.op == "placeholder" else _row_axis(values[node], fewer[node], probe)
            for node in cut
        }
        # Sizes and the like depend on the number of rows: they are computed after the cut, too.
        awkward = [node for node, axis in axes.items() if axis is None]
        if not awkward:
            break
        late.update(awkward)
    if all(node.op == "placeholder" for node in cut):
        return SplitModule(None, module, "at_input")
    frozen = _build(module, graph, set(graph.nodes) - searching, {}, axes)
    rest = _build(module, graph, late | constant, axes, None)
    digest = module_digest(frozen) + (frozen.code + _settings(frozen)).encode()
    return SplitModule(frozen, rest, "inside", digest)


def _settings(module: nn.Module) -> str:
    """Return the kinds and attributes of all parts: a module's repr leaves some of them out."""
    parts = [part for part in module.modules() if part is not module]
    return repr(
        [
            (type(part), [item for item in vars(part).items() if not item[0].startswith("_")])
            for part in parts
        ]
    )


def _run(module: nn.Module, graph: fx.Graph, probe: Tensor) -> dict[fx.Node, Any]:
    """Return the value of every node for some rows."""
    values: dict[fx.Node, Any] = {}

    class Recorder(fx.Interpreter):
        def run_node(self, node: fx.Node) -> Any:
            values[node] = super().run_node(node)
            return values[node]

    with torch.no_grad():
        Recorder(module, graph=graph, garbage_collect_values=False).run(probe)
    return values


def _row_axis(value: Any, fewer: Any, probe: Tensor) -> int | None:
    """Return the axis of a value that has one entry for each row, or None without such an axis.

    The second value is that for one row less: an axis may have the probe's length by chance.
    """
    if not isinstance(value, Tensor) or value.ndim != fewer.ndim:
        return None
    changed = [axis for axis in range(value.ndim) if value.shape[axis] != fewer.shape[axis]]
    if len(changed) != 1:
        return None
    (axis,) = changed
    lengths = value.shape[axis], fewer.shape[axis]
    return axis if lengths == (len(probe), len(probe) - 1) else None


def _depends_on(
    module: nn.Module, graph: fx.Graph, searched: set[int], differs: Where | None
) -> set[fx.Node]:
    """Return the nodes whose value is not the same for all models, the output among them."""
    late: set[fx.Node] = set()
    for node in graph.nodes:
        part = module.get_submodule(node.target) if node.op == "call_module" else None
        if differs is not None and differs(node, part):
            own = True
        elif part is not None:
            own = any(id(p) in searched for p in part.parameters())
        elif node.op == "get_attr":
            own = id(_attribute(module, node.target)) in searched
        else:
            own = node.op == "output"
        if own or any(source in late for source in node.all_input_nodes):
            late.add(node)
    return late


def _attribute(module: nn.Module, target: str) -> Any:
    value: Any = module
    for part in target.split("."):
        value = getattr(value, part)
    return value


def _constants(graph: fx.Graph) -> set[fx.Node]:
    """Return the nodes that do not depend on the input: they hold no rows."""
    constant: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "get_attr" or (
            node.op.startswith("call")
            and all(source in constant for source in node.all_input_nodes)
        ):
            constant.add(node)
    return constant


def _build(
    module: nn.Module,
    graph: fx.Graph,
    nodes: set[fx.Node],
    inputs: dict[fx.Node, Any],
    outputs: dict[fx.Node, Any] | None,
) -> fx.GraphModule:
    """Return a module of some nodes of the graph, with other inputs or outputs.

    Inputs and outputs come with the axis of their rows, which is the first one at the cut.
    """
    part = fx.Graph()
    copies = {node: part.placeholder(f"cut_{index}") for index, node in enumerate(inputs)}
    for node, axis in inputs.items():
        if axis:
            copies[node] = part.call_method("movedim", (copies[node], 0, axis))
    for node in graph.nodes:
        if node in nodes and node not in copies and node.op != "output":
            copies[node] = part.node_copy(node, lambda source: copies[source])
        elif node.op == "output" and outputs is None:
            part.output(fx.map_arg(node.args[0], lambda source: copies[source]))
    if outputs is not None:
        part.output(
            tuple(
                part.call_method("movedim", (copies[node], axis, 0)) if axis else copies[node]
                for node, axis in outputs.items()
            )
        )
    built = fx.GraphModule(module, part).eval()
    built.graph.eliminate_dead_code()
    built.delete_all_unused_submodules()
    built.recompile()
    return built


def _keep_names(module: nn.Module, part: nn.Module, names: tuple[str, ...]) -> None:
    """Let a part of a module know the searched parameters that it does not run by these names."""
    known = dict(part.named_parameters(remove_duplicate=False))
    for name in names:
        if name not in known:
            path, _, last = name.rpartition(".")
            owner = part
            for step in filter(None, path.split(".")):
                if not hasattr(owner, step):
                    owner.add_module(step, nn.Module())
                owner = getattr(owner, step)
            owner.register_parameter(last, module.get_parameter(name))
