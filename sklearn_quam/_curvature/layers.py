"""What goes through the layers of a network: inputs, and gradients at outputs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from .._network.free import FreeNetwork
from .._network.likelihood import Likelihood, Output
from .._network.limits import accumulation_dtype, rows_within, slices
from .._network.outputs import NetworkErrors
from .._network.reference import Rows
from .scores import Places, View, WholeNetwork
from .structures import Curvature, Kronecker

# Rows whose activations and gradients are held together.
_ROWS_AT_ONCE = 256


def has_kronecker_factors(layer: nn.Module) -> bool:
    """Tell whether the curvature of a layer can be written as a Kronecker product here."""
    if isinstance(layer, (nn.Conv1d, nn.Conv2d)):
        if type(layer) not in (nn.Conv1d, nn.Conv2d):
            return False
        plain = layer.groups == 1 and layer.padding_mode == "zeros"
        return plain and not isinstance(layer.padding, str)
    return type(layer) is nn.Linear


def _inputs_of(layer: nn.Module, values: Tensor) -> Tensor:
    """Return what a layer's weight is multiplied with, (n_rows, n_places, n_in)."""
    if isinstance(layer, nn.Linear):
        return values.reshape(len(values), -1, values.shape[-1])
    options: dict[str, Any] = {
        name: getattr(layer, name) for name in ("kernel_size", "dilation", "padding", "stride")
    }
    if isinstance(layer, nn.Conv1d):
        values = values[:, :, None]
        fill = {"kernel_size": 1, "dilation": 1, "padding": 0, "stride": 1}
        options = {name: (fill[name], *option) for name, option in options.items()}
    return nn.functional.unfold(values, **options).mT


def _outputs_of(layer: nn.Module, values: Tensor) -> Tensor:
    """Return a layer's outputs, or their gradients, as (n_rows, n_places, n_out)."""
    if isinstance(layer, nn.Linear):
        return values.reshape(len(values), -1, values.shape[-1])
    return values.flatten(2).mT


@dataclass
class _Recorder:
    """Notes what goes through some layers in a forward pass."""

    layers: dict[str, nn.Module]

    def __enter__(self) -> _Recorder:
        self.calls: list[tuple[str, Tensor, Tensor]] = []
        self._handles = [
            layer.register_forward_hook(self._hook(name)) for name, layer in self.layers.items()
        ]
        return self

    def _hook(self, name: str) -> Callable[..., Tensor]:
        # Other threads may run the same module: what they do is not noted here.
        thread = threading.get_ident()

        def hook(_: nn.Module, args: tuple, output: Any) -> Any:
            if threading.get_ident() != thread:
                return output
            if not isinstance(output, Tensor):
                # Attention returns its weights, too; what it takes is all that is asked of it.
                self.calls.append((name, args[0].detach(), args[0]))
                return output
            if not output.requires_grad:
                output.requires_grad_()
            self.calls.append((name, args[0].detach(), output))
            # A copy: what comes next may write into it.
            return output.clone()

        return hook

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()


def rows_first(layers: dict[str, nn.Module], module: nn.Module, probe: Rows) -> set[str]:
    """Return the layers that get the rows on their first axis, and nothing else on it.

    Parameters
    ----------
    layers : dict of torch.nn.Module
        Layers, by their names.
    module : torch.nn.Module
        The network.
    probe : tuple of Tensor of shape (n_rows, ...)
        What it takes, for a few rows.

    Returns
    -------
    set of str
        Names, of layers that never run as well.
    """
    found = set(layers)
    for rows in (probe, tuple(part[:-1] for part in probe)):
        with _Recorder(layers) as recorder, torch.no_grad(), NetworkErrors():
            module(*rows)
        found -= {name for name, values, _ in recorder.calls if len(values) != len(rows[0])}
    return found


def add_kronecker_moments(
    blocks: dict[str, Kronecker],
    module: nn.Module,
    rows: Rows,
    weight: Tensor,
    scores_and_root: Callable[[Output], tuple[Tensor, Tensor]],
) -> None:
    """Add training rows to the Kronecker factors of layers.

    Parameters
    ----------
    blocks : dict of Kronecker
        Where to add them, by the name of the layer.
    module : torch.nn.Module
        The network, or the part of it behind a cut.
    rows : tuple of Tensor of shape (n_rows, ...)
        What it takes, for training rows.
    weight : Tensor of shape (n_rows,)
        Sample weights.
    scores_and_root : callable
        Returns, for an output of the network, the scores (n_rows, n_scores) and a root of their
        Fisher information.
    """
    layers = {name: module.get_submodule(name) for name in blocks}
    dtype = accumulation_dtype(weight.device)
    for chunk in slices(len(weight), _rows_at_once(layers, module, rows, scores_and_root)):
        part, scale = tuple(values[chunk] for values in rows), weight[chunk].to(dtype)
        if len(scale) == 1:
            # Run twice: modules that squeeze their output would lose the axis of a single row.
            part = tuple(values.repeat_interleave(2, dim=0) for values in part)
            scale = scale.repeat(2) / 2
        with _Recorder(layers) as recorder, torch.enable_grad():
            with NetworkErrors():
                output = module(*part)
            scores, root = scores_and_root(output)
        scaled = (root.mT.to(scores.dtype) @ scores[..., None])[..., 0]
        for name, inputs_, gradients in _by_layer(recorder, layers, scaled):
            root_scale = scale.sqrt()[:, None, None, None]
            blocks[name].add_moments(inputs_.to(dtype), gradients.to(dtype) * root_scale, scale)


def _rows_at_once(
    layers: dict[str, nn.Module],
    module: nn.Module,
    rows: Rows,
    scores_and_root: Callable[[Output], tuple[Tensor, Tensor]],
) -> int:
    """Return for how many rows what goes through the layers, and comes back, can be held."""
    few = tuple(part[:1].repeat_interleave(2, dim=0) for part in rows)
    with _Recorder(layers) as recorder, torch.no_grad():
        with NetworkErrors():
            output = module(*few)
        scores, root = scores_and_root(output)
    n_numbers = 0
    for name, taken, returned in recorder.calls:
        n_numbers += _inputs_of(layers[name], taken).numel() + root.shape[-1] * returned.numel()
    # In single and double precision, weighted and not.
    return min(_ROWS_AT_ONCE, rows_within(20 * n_numbers // len(scores)))


def _by_layer(
    recorder: _Recorder, layers: dict[str, nn.Module], scores: Tensor
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield inputs and gradients of each layer; where it runs twice it has the more places."""
    outputs = [output for _, _, output in recorder.calls]
    with NetworkErrors():
        by_score = [
            torch.autograd.grad(
                scores[:, index].sum(), outputs, retain_graph=True, materialize_grads=True
            )
            for index in range(scores.shape[1])
        ]
    for name, layer in layers.items():
        calls = [i for i, (called, _, _) in enumerate(recorder.calls) if called == name]
        inputs = [_inputs_of(layer, recorder.calls[i][1]) for i in calls]
        gradients = [
            torch.stack([_outputs_of(layer, parts[i]) for parts in by_score], dim=1) for i in calls
        ]
        # Zeros of a layer that changes nothing ask for gradients themselves in torch 2.5.
        yield name, torch.cat(inputs, dim=1), torch.cat(gradients, dim=2).detach()


@dataclass(frozen=True, eq=False)
class LayerView:
    """A whole network whose free parameters are those of layers with Kronecker factors.

    Scores are those of `WholeNetwork`. Derivatives come from one backward pass for each score,
    which all rows share, and are kept as products.

    Parameters
    ----------
    whole : WholeNetwork
        How scores depend on the free parameters.
    layers : tuple of str
        Names of the layers.
    n_numbers : int
        Inputs and gradients of a row.
    """

    whole: WholeNetwork
    layers: tuple[str, ...]
    n_numbers: int

    @property
    def network(self) -> FreeNetwork:
        """The network, cut where its free parameters begin."""
        return self.whole.network

    @property
    def likelihood(self) -> Likelihood:
        """What the scores mean."""
        return self.whole.likelihood

    @property
    def n_scores(self) -> int:
        """Number of scores."""
        return self.whole.n_scores

    def scores_and_design(self, rows: Rows) -> tuple[Tensor, Places]:
        """Return scores and their derivatives for some rows, given by their values at the cut."""
        n_rows, dtype = len(rows[0]), accumulation_dtype(rows[0].device)
        # A single row is run twice: modules that squeeze their values would lose its axis.
        if n_rows == 1:
            rows = tuple(part.repeat_interleave(2, dim=0) for part in rows)
        module = self.network.split.rest
        layers = {name: module.get_submodule(name) for name in self.layers}
        with _Recorder(layers) as recorder, torch.enable_grad():
            with NetworkErrors():
                output = module(*rows)
            prediction = self.network.executor.likelihood.prediction(output)
            scores = self.whole.scores(prediction)
        places = {
            name: (inputs[:n_rows].to(dtype), gradients[:n_rows].to(dtype))
            for name, inputs, gradients in _by_layer(recorder, layers, scores)
        }
        return scores[:n_rows].detach().to(dtype), Places(places)

    def bytes_per_row(self) -> int:
        """Return the memory that the design of a row takes, and what is made of it."""
        matrices = 2 * self.n_scores * self.network.free.size
        return 8 * (4 * self.n_numbers + matrices)


def view_by_layers(view: View, curvature: Curvature, probe: Rows) -> View | LayerView:
    """Return a view that is faster where the curvature is one of layers, else the same one.

    Parameters
    ----------
    view : Head or WholeNetwork
        How scores depend on the free parameters.
    curvature : Curvature
        Of the loss, measured through this view.
    probe : tuple of Tensor of shape (n_rows, ...)
        Some rows, at the cut.

    Returns
    -------
    Head, WholeNetwork or LayerView
        How to look at rows.
    """
    blocks = [block for block in curvature.blocks if isinstance(block, Kronecker)]
    if not isinstance(view, WholeNetwork) or len(blocks) < len(curvature.blocks):
        return view
    names = tuple(block.layout.layer for block in blocks)
    found = LayerView(view, names, 0)
    values = found.scores_and_design(tuple(part[:1] for part in probe))[1].values.values()
    return replace(found, n_numbers=sum(part.numel() for parts in values for part in parts))


def features_of_layers(module: nn.Module, names: Iterable[str], rows: Rows) -> list[Tensor]:
    """Return what some layers take, as one vector for each row and layer: the mean over places.

    Parameters
    ----------
    module : torch.nn.Module
        The network, or the part of it behind a cut.
    names : iterable of str
        Names of the layers.
    rows : tuple of Tensor of shape (n_rows, ...)
        What it takes.

    Returns
    -------
    list of Tensor of shape (n_rows, n_features)
        For each layer that ran on these rows, in the order of their names; what a layer returns if
        it takes indices.
    """
    layers = {name: module.get_submodule(name) for name in names}
    n_rows = len(rows[0])
    # A single row is run twice: modules that squeeze their values would lose its axis.
    if n_rows == 1:
        rows = tuple(part.repeat_interleave(2, dim=0) for part in rows)
    with _Recorder(layers) as recorder, torch.no_grad(), NetworkErrors():
        module(*rows)
    found, order = [], list(layers)
    for name, values, output in sorted(recorder.calls, key=lambda call: order.index(call[0])):
        if has_kronecker_factors(layers[name]) and values.ndim > 1:
            vectors = _inputs_of(layers[name], values).mean(dim=1)
        else:
            values = values if values.is_floating_point() else output
            vectors = values.flatten(2).mean(dim=2) if values.ndim > 2 else values
        if len(vectors) == len(rows[0]):
            found.append(vectors.detach()[:n_rows].reshape(n_rows, -1))
    return found
