"""A network cut in two, so that what is the same for all models is run once.

The module is traced and cut where the models begin to differ, in their parameters or by dropout:
what comes before is computed once for each row, what comes after is run for each model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from ...exceptions import NetworkError
from ..inputs.rows import Inputs, Rows
from ..likelihood import Likelihood
from ..outputs import NetworkErrors
from ..predictions import Prediction
from ..reference import cannot_process, predict_batch
from .hooks import cut_by_hooks
from .remembered import RememberedRows, bytes_of, module_digest
from .steps import Steps, place, steps_of_graph
from .tracing import Trace, attribute, trace


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
        What is the same for the same frozen part only; empty where nothing is kept.
    remembered : RememberedRows or None
        Where to look values at the cut up, and to keep them.
    """

    frozen: nn.Module | None
    rest: nn.Module
    place: str
    digest: bytes = b""
    remembered: RememberedRows | None = None

    def at_cut(self, inputs: Inputs | Tensor) -> Rows:
        """Return the values at the cut, each with a row for each row of the input."""
        inputs = Inputs.of(inputs)
        if self.frozen is None:
            return inputs.parts
        # On an accelerator, to look the rows up would take longer than to run them again.
        memory = self.remembered if inputs.device.type == "cpu" else None
        if memory is not None:
            digest = hashlib.blake2b(digest_size=16)
            for part in inputs.parts:
                digest.update(bytes_of(part))
            key = self.digest + digest.digest()
            found = memory.find(key)
            if found is not None:
                return found
        rows = inputs.at_least_two().parts
        with torch.no_grad(), NetworkErrors(partial(cannot_process, inputs)):
            values = tuple(value[: len(inputs)] for value in self.frozen(*rows))
        if memory is not None:
            memory.keep(key, values)
        return values

    def remembering(self, memory: RememberedRows | None) -> SplitModule:
        """Return the same parts; values at the cut are looked up in a memory, and kept there."""
        if memory is None or self.frozen is None:
            return self
        return replace(self, digest=_digest(self.frozen), remembered=memory)

    @torch.no_grad()
    def given(self, inputs: Inputs, likelihood: Likelihood) -> tuple[Rows, Prediction]:
        """Return the values at the cut, and what the given network makes of them."""
        rows = self.at_cut(inputs)
        return rows, predict_batch(self.rest, likelihood, inputs, rows)


# Tells for a step of a traced network, and the submodule that it runs, whether it is meant.
Where = Callable[[fx.Node, nn.Module | None], bool]
# Returns what counts of a network's output.
Pick = Callable[[Any], Any]


def whole(output: Any) -> Any:
    """Return an output as it is."""
    return output


def split_module(
    module: nn.Module,
    names: tuple[str, ...],
    probe: Inputs | Tensor,
    differs: Where | None = None,
    pick: Pick = whole,
) -> SplitModule:
    """Cut a module where the models begin to differ.

    Parameters
    ----------
    module : torch.nn.Module
        The network.
    names : tuple of str
        The parameters in which they differ.
    probe : Inputs or Tensor of shape (n_rows, ...)
        Some rows of input, at least three.
    differs : callable, default=None
        Tells for a node of the traced graph, and its submodule if it runs one, whether the models
        differ in what it does for another reason.
    pick : callable, default=whole
        Returns what counts of the network's output; the second part returns only this.

    Returns
    -------
    SplitModule
        The two parts; the whole module as the second one where it cannot be cut.
    """
    probe = Inputs.of(probe)
    searched = {id(module.get_parameter(name)) for name in names}  # all are there
    if type(module).__module__.startswith("torch.nn.modules") and not list(module.children()):
        return SplitModule(None, module, "at_input")

    def by_steps() -> SplitModule:
        # Its own code runs with what stands for values, which may fail in any way.
        with NetworkErrors():
            traced = trace(module, probe, pick)
        late = _depends_on(module, traced.graph, searched, differs)
        return _split_trace(module, traced, late, len(probe))

    def by_layers() -> SplitModule:
        frozen, rest = cut_by_hooks(module, names, probe, pick)
        return SplitModule(frozen, rest, "inside")

    for cut in (by_steps, by_layers) if names else (by_steps,):
        try:
            split = cut()
            for name in names:
                place(split.rest, name, module.get_parameter(name))
            if _agree(module, split, probe, pick):
                return split
        except NetworkError:
            # This runs the user's code, which may fail in any way.
            continue
    return SplitModule(None, module, "failed")


def _agree(module: nn.Module, split: SplitModule, probe: Inputs, pick: Pick) -> bool:
    """Check the traced parts against the module, on other numbers of rows than were traced."""
    for rows in (probe, probe[:-1]):
        with torch.no_grad(), NetworkErrors():
            expected, values = pick(module(*rows.parts)), split.at_cut(rows)
            before = [value.clone() for value in values]
            got = split.rest(*values)
        # Values at the cut are used for many models: none of them may write into them.
        if not same_outputs(expected, got) or not all(map(torch.equal, before, values)):
            return False
    return True


def same_outputs(expected: Any, got: Any) -> bool:
    """Tell whether two networks return the same, but for rounding."""
    pairs = zip(
        expected if isinstance(expected, (tuple, list)) else [expected],
        got if isinstance(got, (tuple, list)) else [got],
        strict=True,
    )
    return all(a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in pairs)


def _split_trace(
    module: nn.Module, traced: Trace, searching: set[fx.Node], n_rows: int
) -> SplitModule:
    graph, late = traced.graph, set(searching)
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
            node: 0 if node.op == "placeholder" else _row_axis(*traced.values[node], n_rows)
            for node in cut
        }
        # Sizes and the like depend on the number of rows: they are computed after the cut, too.
        awkward = [node for node, axis in axes.items() if axis is None]
        if not awkward:
            break
        late.update(awkward)
    if all(node.op == "placeholder" for node in cut):
        inputs = dict.fromkeys(node for node in graph.nodes if node.op == "placeholder")
        rest = _build(module, traced, set(graph.nodes), inputs, None)
        return SplitModule(None, rest, "at_input")
    frozen = _build(module, traced, set(graph.nodes) - searching, {}, axes)
    rest = _build(module, traced, late | constant, axes, None)
    return SplitModule(frozen, rest, "inside")


def _digest(frozen: nn.Module) -> bytes:
    """Return what tells the frozen part of a network from others, as long as it lives."""
    # A module's repr leaves some attributes out, and classes may have the same name.
    parts = [
        (id(type(part)), [item for item in vars(part).items() if not item[0].startswith("_")])
        for part in frozen.modules()
    ]
    steps = frozen.described() if isinstance(frozen, Steps) else ""
    return module_digest(frozen) + (repr(parts) + steps).encode()


def _row_axis(value: Any, fewer: Any, n_rows: int) -> int | None:
    """Return the axis of a value that has one entry for each row, or None without such an axis.

    The second value is that for one row less: an axis may have the probe's length by chance.
    """
    if not isinstance(value, Tensor) or value.ndim != fewer.ndim:
        return None
    changed = [axis for axis in range(value.ndim) if value.shape[axis] != fewer.shape[axis]]
    if len(changed) != 1:
        return None
    (axis,) = changed
    return axis if (value.shape[axis], fewer.shape[axis]) == (n_rows, n_rows - 1) else None


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
            own = id(attribute(module, node.target, None)) in searched
        else:
            own = node.op == "output"
        if own or any(source in late for source in node.all_input_nodes):
            late.add(node)
    return late


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


def _writes(node: fx.Node) -> bool:
    """Tell whether a step writes into what it is given, as methods whose name says so do."""
    return node.op == "call_method" and str(node.target).endswith("_")


def _build(
    module: nn.Module,
    traced: Trace,
    nodes: set[fx.Node],
    inputs: dict[fx.Node, Any],
    outputs: dict[fx.Node, Any] | None,
) -> Steps:
    """Return a module of some steps of the network, with other inputs or outputs.

    Inputs and outputs come with the axis of their rows, which is the first one at the cut.
    """
    part = fx.Graph()
    copies = {node: part.placeholder(f"cut_{index}") for index, node in enumerate(inputs)}
    for node, axis in inputs.items():
        if axis:
            copies[node] = part.call_method("movedim", (copies[node], 0, axis))
    for node in traced.graph.nodes:
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
    for node in reversed(part.nodes):
        if not node.users and node.op not in ("placeholder", "output") and not _writes(node):
            part.erase_node(node)

    def find(path: str) -> Any:
        return traced.constants[path] if path in traced.constants else attribute(module, path)

    return steps_of_graph(part, find)
