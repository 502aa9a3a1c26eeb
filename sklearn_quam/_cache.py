"""The part of a network that a search leaves alone is run once.

The module is traced and cut where the searched parameters begin: what comes before is computed
once for each row, what comes after is run for each model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

Rows = tuple[Tensor, ...]


@dataclass(frozen=True)
class SplitModule:
    """A network cut in two.

    Parameters
    ----------
    frozen : torch.nn.Module or None
        From the input to the values at the cut; None where the cut is at the input.
    rest : torch.nn.Module
        From the values at the cut to the output; its parameters keep their names.
    cached : bool
        Whether the module could be traced, so that nothing is computed twice.
    """

    frozen: nn.Module | None
    rest: nn.Module
    cached: bool

    def at_cut(self, inputs: Tensor) -> Rows:
        """Return the values at the cut, each with a row for each row of the input."""
        if self.frozen is None:
            return (inputs,)
        with torch.no_grad():
            return tuple(self.frozen(inputs))


def split_module(module: nn.Module, names: tuple[str, ...], probe: Tensor) -> SplitModule:
    """Cut a module where the searched parameters begin.

    Parameters
    ----------
    module : torch.nn.Module
        The network.
    names : tuple of str
        The searched parameters.
    probe : Tensor of shape (n_rows, ...)
        Some rows of input, at least three.

    Returns
    -------
    SplitModule
        The two parts; the whole module as the second one where it cannot be traced.
    """
    searched = {id(module.get_parameter(name)) for name in names}
    try:
        graph = fx.Tracer().trace(module)
        split = _split_graph(module, graph, searched, probe)
        if _agree(module, split, probe):
            return split
    except Exception:
        # Tracing runs the user's code and may fail in any way.
        pass
    return SplitModule(None, module, cached=False)


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
    module: nn.Module, graph: fx.Graph, searched: set[int], probe: Tensor
) -> SplitModule:
    values = _run(module, graph, probe)
    late = _depends_on(module, graph, searched)
    constant = _constants(graph)
    while True:
        cut = [
            node
            for node in graph.nodes
            if node not in late
            and node not in constant
            and any(user in late for user in node.users)
        ]
        # Sizes and the like depend on the number of rows: they are computed after the cut.
        awkward = [
            node for node in cut if node.op != "placeholder" and not _is_rows(values[node], probe)
        ]
        if not awkward:
            break
        late.update(awkward)
    if all(node.op == "placeholder" for node in cut):
        return SplitModule(None, module, cached=True)
    return SplitModule(
        _build(module, graph, set(graph.nodes) - late, [], cut),
        _build(module, graph, late | constant, cut, None),
        cached=True,
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


def _is_rows(value: Any, probe: Tensor) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0 and len(value) == len(probe)


def _depends_on(module: nn.Module, graph: fx.Graph, searched: set[int]) -> set[fx.Node]:
    """Return the nodes whose value changes with the searched parameters, the output among them."""
    late: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "call_module":
            own = any(id(p) in searched for p in module.get_submodule(node.target).parameters())
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
    inputs: list[fx.Node],
    outputs: list[fx.Node] | None,
) -> fx.GraphModule:
    """Return a module of some nodes of the graph, with other inputs or outputs."""
    part = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {
        node: part.placeholder(f"cut_{index}") for index, node in enumerate(inputs)
    }
    for node in graph.nodes:
        if node in nodes and node not in copies and node.op != "output":
            copies[node] = part.node_copy(node, lambda source: copies[source])
        elif node.op == "output" and outputs is None:
            part.output(fx.map_arg(node.args[0], lambda source: copies[source]))
    if outputs is not None:
        part.output(tuple(copies[node] for node in outputs))
    built = fx.GraphModule(module, part).eval()
    built.graph.eliminate_dead_code()
    built.delete_all_unused_submodules()
    built.recompile()
    return built
