"""Some steps of a network as a module of its own, which can be stored and copied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate

from ...exceptions import NetworkError
from .tracing import attribute


class NotAChainError(ValueError):
    """What a module does is no chain of known steps."""


@dataclass(frozen=True)
class Result:
    """Stands for what an input or a step has returned, by its number."""

    number: int


@dataclass(frozen=True)
class Step:
    """One step.

    Parameters
    ----------
    op : {"get_attr", "call_module", "call_method", "call_function"}
        What is done.
    target : str or callable
        The path of the attribute or module, the name of the method, or the function.
    args, kwargs : tuple and dict
        Arguments; results of other steps among them.
    last_uses : tuple of int
        Results that no later step needs.
    """

    op: str
    target: Any
    args: tuple[Any, ...] = ()
    kwargs: Any = None
    last_uses: tuple[int, ...] = ()


class Steps(nn.Module):
    """Runs steps of a network, one after the other.

    Parameters
    ----------
    parts : dict of object
        Modules, parameters and other tensors that the steps use, by their path in the network:
        they keep their names.
    n_inputs : int
        Number of arguments; the results of steps are numbered after them.
    steps : list of Step
        What to do.
    output : object
        What to return; results of steps among it.
    """

    def __init__(
        self, parts: dict[str, Any], n_inputs: int, steps: list[Step], output: Any
    ) -> None:
        super().__init__()
        # Parts of a module that is there itself are there with it.
        for path in sorted(parts, key=len):
            place(self, path, parts[path])
        self._n_inputs = n_inputs
        self._steps = _with_last_uses(steps, output)
        self._output = output
        self.eval()

    def forward(self, *inputs: Any) -> Any:
        """Return what the steps make of the inputs."""
        results: list[Any] = list(inputs)

        def found(value: Any) -> Any:
            return results[value.number] if isinstance(value, Result) else value

        for step in self._steps:
            args = map_aggregate(step.args, found)
            kwargs = map_aggregate(step.kwargs, found) if step.kwargs else {}
            for number in step.last_uses:
                results[number] = None
            results.append(self._do(step, args, kwargs))
        return map_aggregate(self._output, found)

    def described(self) -> str:
        """Return what the steps are, in words."""
        return repr((self._n_inputs, self._steps, self._output))

    def one_after_the_other(self) -> list[Step]:
        """Return the steps, each of which works on what the one before has returned.

        Raises NotAChainError where they are anything else than such a chain.
        """
        for number, step in enumerate(self._steps):
            others: list[Any] = []
            map_aggregate((step.args[1:], step.kwargs), others.append)
            wanted = step.args[:1] == (Result(number),)
            if not wanted or any(isinstance(other, Result) for other in others):
                raise NotAChainError("Not a chain of steps.")
        if self._n_inputs != 1 or self._output != Result(len(self._steps)):
            raise NotAChainError("Not a chain of steps.")
        return self._steps

    def _do(self, step: Step, args: Any, kwargs: Any) -> Any:
        if step.op == "call_function":
            return step.target(*args, **kwargs)
        if step.op == "call_method":
            return getattr(args[0], step.target)(*args[1:], **kwargs)
        part = attribute(self, step.target)
        return part if step.op == "get_attr" else part(*args, **kwargs)


def place(module: nn.Module, path: str, value: Any) -> None:
    """Put something where a path of attributes leads to, unless something is there."""
    *owners, last = path.split(".")
    for name in owners:
        if not hasattr(module, name):
            module.add_module(name, nn.Module())
        module = getattr(module, name)
    if hasattr(module, last):
        return
    if isinstance(value, nn.Parameter):
        module.register_parameter(last, value)
    elif isinstance(value, nn.Module):
        module.add_module(last, value)
    elif not isinstance(value, Tensor):
        raise NetworkError(f"{path} of the traced network is no tensor, but {type(value)}.")
    else:
        module.register_buffer(last, value, persistent=False)


def _with_last_uses(steps: list[Step], output: Any) -> list[Step]:
    """Return the steps with the results that may be forgotten after each."""
    needed: set[int] = set()

    def note(value: Any) -> Any:
        if isinstance(value, Result):
            used.add(value.number)
        return value

    used: set[int] = set()
    map_aggregate(output, note)
    needed |= used
    noted = []
    for step in reversed(steps):
        used = set()
        map_aggregate((step.args, step.kwargs), note)
        last = tuple(sorted(used - needed))
        noted.append(Step(step.op, step.target, step.args, step.kwargs, last))
        needed |= used
    return noted[::-1]


def steps_of_graph(graph: fx.Graph, find: Callable[[str], Any]) -> Steps:
    """Return the steps of a traced network.

    Parameters
    ----------
    graph : torch.fx.Graph
        The steps; placeholders come first.
    find : callable
        Returns a module or tensor of the network by its path.

    Returns
    -------
    Steps
        The same as a module.
    """
    numbers: dict[fx.Node, Result] = {}
    parts: dict[str, Any] = {}
    steps: list[Step] = []
    output: Any = None
    for node in graph.nodes:
        args, kwargs = fx.map_arg((node.args, node.kwargs), numbers.__getitem__)  # type: ignore[arg-type]
        if node.op == "output":
            (output,) = args
            break
        numbers[node] = Result(len(numbers))
        if node.op in ("get_attr", "call_module"):
            parts[str(node.target)] = find(str(node.target))
        if node.op != "placeholder":
            steps.append(Step(node.op, node.target, args, kwargs))
    return Steps(parts, len(numbers) - len(steps), steps, output)
