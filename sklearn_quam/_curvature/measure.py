"""The curvature of the loss on training rows, in the structure that is asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import torch
from torch import Tensor

from .._network.cut.layers import execution_order
from .._network.free import FreeNetwork
from .._network.likelihood import Output
from .._network.limits import accumulation_dtype, rows_within
from .._network.reference import TrainingSet
from .layers import add_kronecker_moments, has_kronecker_factors, rows_first
from .layouts import Matrices, Vectors
from .scores import Fisher, Head, View, WholeNetwork
from .structures import Curvature, Diagonal, Full, Kronecker, Structure

# What is made of the scores of a row while its information is added.
_COPIES_OF_SCORES = 4
STRUCTURES: dict[str, type[Structure]] = {"full": Full, "kron": Kronecker, "diag": Diagonal}


def measure_curvature(
    view: View,
    training: TrainingSet,
    index: Tensor,
    structure: str,
    groups: Iterable[slice],
    *,
    n_columns: int | None = None,
    decomposed: bool = True,
) -> Curvature:
    """Return the curvature of the loss on training rows that are given by their numbers.

    Parameters
    ----------
    view : Head or WholeNetwork
        How scores depend on the free parameters.
    training : TrainingSet
        The training data at the cut.
    index : Tensor of shape (n_rows,)
        Numbers of the rows.
    structure : {"full", "kron", "diag"}
        What is kept of the curvature; "kron" is the diagonal where a layer has no factors.
    groups : iterable of slice
        Rows whose derivatives are held together.
    n_columns : int, default=None
        Largest number of backward passes for the factors of layers: with more classes, as many are
        drawn from what the network predicts. None takes all classes.
    decomposed : bool, default=True
        Whether eigenvalues are needed, or sums are enough.

    Returns
    -------
    Curvature
        Of the sum of the losses.
    """
    index = index.to(training.target.device)
    if isinstance(view, Head):
        blocks = [_curvature_of_head(view, training, index, structure)]
        return _finished(blocks, decomposed)
    blocks, by_layer = _choose_blocks(view.network, structure)
    by_rows = [block for block in blocks if block not in by_layer.values()]
    if by_rows:
        for group in groups:
            rows = index[group]
            scores, design = view.scores_and_design(training.rows_at(rows))
            fisher = Fisher(view.likelihood, scores, _weight(training, rows))
            for block in by_rows:
                block.add(design, fisher)
    if by_layer:
        _add_layers(by_layer, view, training, index, n_columns)
    return _finished(blocks, decomposed)


def _finished(blocks: list[Structure], decomposed: bool) -> Curvature:
    if decomposed:
        for block in blocks:
            block.finish()
    return Curvature(blocks)


def _weight(training: TrainingSet, index: Tensor) -> Tensor | None:
    """Return the sample weights of training rows, in the type of sums."""
    if training.weight is None:
        return None
    return training.weight[index].to(accumulation_dtype(index.device))


def _curvature_of_head(
    head: Head, training: TrainingSet, index: Tensor, structure: str
) -> Structure:
    block = STRUCTURES[structure](head.layout)
    for rows in index.split(rows_within(_COPIES_OF_SCORES * head.bytes_per_row())):
        scores, design = head.scores_and_design(training.rows_at(rows))
        block.add(design, Fisher(head.likelihood, scores, _weight(training, rows)))
    return block


def _add_layers(
    blocks: dict[str, Kronecker],
    view: WholeNetwork,
    training: TrainingSet,
    index: Tensor,
    n_columns: int | None,
) -> None:
    generator = torch.Generator().manual_seed(0)
    likelihood = view.network.executor.likelihood

    def scores_and_root(output: Output) -> tuple[Tensor, Tensor]:
        scores = view.scores(likelihood.prediction(output))
        fisher = Fisher(view.likelihood, scores.detach())
        return scores, fisher.root() if n_columns is None else fisher.drawn_root(
            n_columns, generator
        )

    weight = _weight(training, index)
    if weight is None:
        dtype = accumulation_dtype(index.device)
        weight = torch.ones(len(index), dtype=dtype, device=index.device)
    module = view.network.split.rest
    add_kronecker_moments(blocks, module, training.rows_at(index), weight, scores_and_root)


def _choose_blocks(
    network: FreeNetwork, structure: str
) -> tuple[list[Structure], dict[str, Kronecker]]:
    """Return the blocks of the curvature, and those of them that belong to layers."""
    shapes = {name: value.shape for name, value in network.free.start.items()}
    if structure != "kron":
        return [STRUCTURES[structure](Vectors(shapes))], {}
    if network.free.updates:
        raise ValueError("Low-rank updates have no Kronecker factors: use 'diag' or 'full'.")
    by_layer: dict[str, Kronecker] = {}
    module, left, probe = network.split.rest, dict(shapes), network.at_cut(network.probe)
    # Only what goes through the layer itself is seen: not a weight that others use, too.
    with torch.no_grad():
        ran = set(execution_order(module, lambda: module(*probe)))
    layers = {name: p for name, p in module.named_modules() if has_kronecker_factors(p)}
    # The factors are sums over rows: layers that see them otherwise have their diagonal.
    usable = rows_first(layers, module, probe) & ran
    holders = Counter(id(p) for part in network.module.modules() for p in part.parameters(False))
    names = {id(network.module.get_parameter(name)): name for name in shapes}
    for layer, part in layers.items():
        own = [getattr(part, name) for name in ("weight", "bias")]
        weight, bias = (names.get(id(p)) if names.get(id(p)) in left else None for p in own)
        alone = all(holders[id(p)] <= 1 for p in own if p is not None)
        if layer in usable and alone and (weight or bias):
            shape = {name: left.pop(name) for name in (weight, bias) if name}
            by_layer[layer] = Kronecker(Matrices(weight, bias, shape, layer))
    rest: list[Structure] = [Diagonal(Vectors(left))] if left else []
    return [*by_layer.values(), *rest], by_layer
