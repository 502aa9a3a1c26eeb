"""The curvature of the loss on training samples, in a given structure."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .._network.cut.layers import execution_order
from .._network.free import FreeNetwork
from .._network.inputs.rows import at_least_two
from .._network.limits import Limits, accumulation_dtype, rows_within, slices
from .._network.outputs import NetworkErrors
from .._network.reference import Rows, TrainingSet
from .layers import Recorder, has_kronecker_factors, inputs_of, rows_first
from .layouts import Matrices, Vectors
from .scores import Fisher, Head, View, WholeNetwork
from .structures import Block, Curvature, Diagonal, Full, Kronecker

# Arrays of the size of the scores of a sample while its information is added.
_COPIES_OF_SCORES = 4
# Samples whose activations and gradients are held together.
_ROWS_AT_ONCE = 256
STRUCTURES: dict[str, Any] = {"full": Full, "kron": Kronecker, "diag": Diagonal}


def measure_curvature(
    view: View,
    training: TrainingSet,
    index: Tensor,
    structure: str,
    limits: Limits,
    n_columns: int | None = None,
) -> Curvature:
    """Return the curvature of the loss on training samples by their numbers, to be finished.

    Derivatives of a group of samples are held together. The factors of layers take a backward pass
    for each score, or `n_columns` for classes drawn from the prediction.
    """
    index = index.to(training.target.device)
    blocks: list[Block]
    if isinstance(view, Head):
        blocks = by_sample = [STRUCTURES[structure](view.layout)]
        size = rows_within(_COPIES_OF_SCORES * view.bytes_per_row())
    else:
        blocks = _choose_blocks(view.network, structure)
        size = limits.number_that_fits(view.bytes_per_row())
        by_sample = [block for block in blocks if not isinstance(block, Kronecker)]
        by_layer = {block.layout.layer: block for block in blocks if isinstance(block, Kronecker)}
        if by_layer:
            _add_layers(by_layer, view, training, index, n_columns)
    for group in slices(len(index), size) if by_sample else ():
        rows = index[group]
        scores, design = view.scores_and_design(training.rows_at(rows))
        fisher = Fisher(view.likelihood, scores, _weight(training, rows))
        for block in by_sample:
            block.add(design, fisher)
    return Curvature(blocks)


def view_by_layers(view: View, curvature: Curvature, probe: Rows) -> View:
    """Return a faster view where the curvature is one of layers, else the same one.

    The probe is a sample at the cut.
    """
    layers = tuple(b.layout.layer for b in curvature.blocks if isinstance(b, Kronecker))
    if isinstance(view, Head) or len(layers) < len(curvature.blocks):
        return view
    found = replace(view, layers=layers)
    places = found.scores_and_design(probe)[1].places.values()
    return replace(found, n_numbers=sum(part.numel() for parts in places for part in parts))


def _weight(training: TrainingSet, index: Tensor) -> Tensor | None:
    """Return the weights of training samples, in the type of sums."""
    if training.weight is None:
        return None
    return training.weight[index].to(accumulation_dtype(index.device))


def _add_layers(
    blocks: dict[str, Kronecker],
    view: WholeNetwork,
    training: TrainingSet,
    index: Tensor,
    n_columns: int | None,
) -> None:
    """Add training samples to the Kronecker factors of layers."""
    generator = torch.Generator().manual_seed(0)
    likelihood, module = view.network.executor.likelihood, view.network.split.rest
    layers = {name: module.get_submodule(name) for name in blocks}

    def run(rows: Rows) -> tuple[Recorder, Tensor, Tensor]:
        """Run the layers; return what they did, the scores, and a root of their information."""
        with Recorder(layers) as recorder:
            with NetworkErrors():
                output = module(*at_least_two(rows))
            scores = view.scores(likelihood.prediction(output))
        fisher = Fisher(view.likelihood, scores.detach())
        return recorder, scores, fisher.root(n_columns, generator)

    weight, rows = _weight(training, index), training.rows_at(index)
    dtype = accumulation_dtype(index.device)
    if weight is None:
        weight = torch.ones(len(index), dtype=dtype, device=index.device)
    with torch.no_grad():
        size = _rows_at_once(*run(tuple(part[:1] for part in rows)))
    for chunk in slices(len(weight), size):
        part, scale = tuple(values[chunk] for values in rows), weight[chunk]
        if len(scale) == 1:
            scale = scale.repeat(2) / 2
        with torch.enable_grad():
            recorder, scores, root = run(part)
        scaled = (root.mT.to(scores.dtype) @ scores[..., None])[..., 0]
        factor = scale.sqrt()[:, None, None, None]
        for name, inputs, gradients in recorder.gradients(scaled):
            blocks[name].add_moments(inputs.to(dtype), gradients.to(dtype) * factor, scale)


def _rows_at_once(recorder: Recorder, scores: Tensor, root: Tensor) -> int:
    """Return for how many samples the values of the layers, and gradients, can be held."""
    n_numbers = 0
    for name, taken, returned in recorder.calls:
        inputs = inputs_of(recorder.layers[name], taken)
        n_numbers += inputs.numel() + root.shape[-1] * returned.numel()
    # In single and double precision, weighted and not.
    return min(_ROWS_AT_ONCE, rows_within(20 * n_numbers // len(scores)))


def _choose_blocks(network: FreeNetwork, structure: str) -> list[Block]:
    """Return the blocks of the curvature: in "kron" one for each layer, and one for the rest."""
    shapes = {name: value.shape for name, value in network.free.start.items()}
    if structure != "kron":
        return [STRUCTURES[structure](Vectors(shapes))]
    if network.free.updates:
        raise ValueError("Low-rank updates have no Kronecker factors: use 'diag' or 'full'.")
    blocks: list[Block] = []
    module, left, probe = network.split.rest, dict(shapes), network.at_cut(network.probe)
    # The factors of a layer see its own calls only: not a weight that others use, too.
    with torch.no_grad():
        ran = set(execution_order(module, lambda: module(*probe)))
    layers = {name: p for name, p in module.named_modules() if has_kronecker_factors(p)}
    # They are sums over samples: layers with another first axis have their diagonal.
    usable = rows_first(layers, module, probe) & ran
    holders = Counter(id(p) for part in network.module.modules() for p in part.parameters(False))
    names = {id(network.module.get_parameter(name)): name for name in shapes}
    for layer, part in layers.items():
        own = [getattr(part, name) for name in ("weight", "bias")]
        weight, bias = (names.get(id(p)) if names.get(id(p)) in left else None for p in own)
        alone = all(holders[id(p)] <= 1 for p in own if p is not None)
        if layer in usable and alone and (weight or bias):
            shape = {name: left.pop(name) for name in (weight, bias) if name}
            blocks.append(Kronecker(Matrices(weight, bias, shape, layer)))
    return [*blocks, Diagonal(Vectors(left))] if left else blocks
