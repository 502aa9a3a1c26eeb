"""Warnings of fit and predict."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..._network.adapters import is_torch, split_pipeline
from ..._network.free import FreeNetwork
from ..._network.likelihood import Output, looks_like_probabilities
from ..._network.outputs import NetworkErrors
from ..._network.predictions import Gaussian
from ..._network.reference import ReferenceModel, TrainingSet
from ..._posterior.training_range import TrainingRange
from ...exceptions import (
    CollapsedWeightsWarning,
    FailedRowsWarning,
    LinkWarning,
    MissingClassesWarning,
    PoorFitWarning,
    SlowNetworkWarning,
    TrainingLossWarning,
    warn,
)

# With more parameters than this, running the whole network for every model is slow.
_LARGE = 50_000
# Samples that a message names.
_MAX_NAMED = 5
# Training samples whose outputs may look like probabilities.
_LOOKED_AT = 256
# Rounding error of a loss.
_TOLERANCE = 1e-3
# Of fewer samples, all may be certain.
_ENOUGH_ROWS = 10


def warn_about_failed_rows(errors: np.ndarray, which: np.ndarray) -> None:
    """Warn about samples for which the network raises an error."""
    failed = np.flatnonzero(which)
    if not len(failed):
        return
    named = ", ".join(map(str, failed[:_MAX_NAMED])) + (", ..." if len(failed) > _MAX_NAMED else "")
    warn(
        f"The network cannot process {len(failed)} of {len(errors)} rows of X ({named}): their "
        "epistemic and total uncertainty is 1e300, which stands for infinite. The diagnostics say "
        f"why, in the column 'error'; for row {failed[0]}: {errors[failed[0]]}",
        FailedRowsWarning,
    )


def warn_about_slow_network(network: FreeNetwork, parameters: Any) -> None:
    """Warn if much of the network runs for every model."""
    execution, parameters_of_network = network.executor.name, list(network.module.parameters())
    takes_all = len(network.free.names) == sum(p.is_floating_point() for p in parameters_of_network)
    is_large = sum(p.numel() for p in parameters_of_network) > _LARGE
    whole = (network.split.frozen is None or takes_all) and is_large
    if execution == "matmul" or (execution == "vmap" and not whole):
        return
    whys = []
    if execution == "loop":
        whys.append("models are run one after the other (execution_='loop')")
    if network.split.place == "failed":
        whys.append("the network cannot be cut (cut_='failed')")
    if parameters == "auto" and takes_all:
        whys.append(
            "parameters='auto' takes all parameters, because linear layers at the end are missing"
        )
    why = " and ".join(whys) or "all of the network is run for every model (cut_='at_input')"
    warn(
        f"Every row will take long: {why}. Quicker: parameters='last_layer', or pass the head of "
        "the network alone, linear layers one after the other, with its features as X.",
        SlowNetworkWarning,
    )


def warn_about_fit(method: Any, data: Any, known: TrainingRange) -> None:
    """Warn about a network that does not fit its training data."""
    if hasattr(method, "classes_"):
        warn_about_missing_classes(method.classes_, data.passed.y_checked)
        warn_about_training_loss(method.estimator_, data.passed.sample_weight)
        if is_torch(method.estimator_):
            warn_about_probabilities(data.reference, data.training, data.original)
    warn_about_poor_fit(data.reference, data.training, known)


def warn_about_poor_fit(
    reference: ReferenceModel, training: TrainingSet, known: TrainingRange
) -> None:
    """Warn if a constant prediction has a lower loss than the network."""
    constant: Any = known.constant
    if isinstance(constant, Gaussian) and reference.likelihood.link == "mean":
        # Both means with the same noise, whoever has measured it.
        likelihood: Any = reference.likelihood
        noise = likelihood.noise_variance
        constant = Gaussian(constant.mean, noise.to(constant.mean).expand_as(constant.mean))
    target = training.target
    if not target.is_floating_point() and bool((target == target[0]).all()):
        return
    everywhere = constant.map(lambda part: part.expand(len(target), -1))
    losses = reference.likelihood.negative_log_likelihood(everywhere, target)
    without = float(training.weighted(losses, slice(None)).mean())
    loss = float(training.weighted(training.losses, slice(None)).mean())
    if loss > without + _TOLERANCE * (1 + abs(without)):
        best = "the mean of y" if isinstance(constant, Gaussian) else "the class frequencies of y"
        warn(
            f"The network explains the training data worse than {best} would: its loss is "
            f"{loss:.4g} instead of {without:.4g}. Is X scaled and shaped as it was when the "
            "network was trained, y encoded and weighted as then, and link= what the network "
            "returns?",
            PoorFitWarning,
        )


def warn_about_probabilities(
    reference: ReferenceModel, training: TrainingSet, original: Any
) -> None:
    """Warn if outputs that are taken for logits look like probabilities."""
    link = reference.likelihood.link
    if link not in ("logits", "binary_logit"):
        return
    lowest, highest = original.log_proba[:_LOOKED_AT].aminmax(dim=1)
    if bool((highest - lowest > 1 + _TOLERANCE).any()):
        # Logits of a row that are probabilities differ by one at most: the network is not run.
        return
    with torch.no_grad(), NetworkErrors():
        returned = reference.module(*training.inputs[:_LOOKED_AT].parts)
    output: Output = reference.likelihood.pick(returned)
    if looks_like_probabilities(output):
        ending, right = "sigmoid", "probability"
        if link == "logits":
            ending, right = "softmax", "probabilities"
        warn(
            "The network's outputs are taken for logits, but they are between 0 and 1"
            f"{' and sum to one' * (link == 'logits')} for all rows. If the network ends in a "
            f"{ending}, pass link='{right}'.",
            LinkWarning,
        )


def warn_about_training_loss(estimator: Any, sample_weight: Any) -> None:
    """Warn if a net was trained with another loss than plain cross-entropy."""
    criterion: Any = getattr(split_pipeline(estimator)[1], "criterion_", None)
    criterion = getattr(criterion, "_orig_mod", criterion)
    found, cure = "", ""
    if "focal" in type(criterion).__name__.lower():
        found = "a focal loss"
    elif getattr(criterion, "label_smoothing", 0):
        found = f"label_smoothing={criterion.label_smoothing}"
    elif sample_weight is None and _is_uneven(criterion):
        found, cure = "class weights", " Pass them to fit as sample_weight, a weight for each row."
    if found:
        warn(
            f"The net was trained with {found}, but costs are measured in plain cross-entropy, in "
            f"which each training row counts once.{cure}",
            TrainingLossWarning,
        )


def _is_uneven(criterion: Any) -> bool:
    """Return whether a criterion has class weights."""
    weight = getattr(criterion, "weight", None)
    if weight is not None and bool((weight != weight.flatten()[0]).any()):
        return True
    positive = getattr(criterion, "pos_weight", None)
    return positive is not None and bool((positive != 1).any())


def warn_about_missing_classes(classes: np.ndarray, y: np.ndarray) -> None:
    """Warn about classes of the network without training samples."""
    missing = classes[~np.isin(classes, y)]
    if len(missing):
        some = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")
        warn(
            f"The network knows {len(classes)} classes, but no training row has one of these "
            f"{len(missing)}: {some}. What models say about them costs nothing, so that every row "
            "looks doubtful. Pass training rows of all classes.",
            MissingClassesWarning,
        )


def warn_about_collapsed_weights(
    effective_sample_size: np.ndarray, n_searches: int, temperature: float
) -> None:
    """Warn if hardly any model but the given one has a weight."""
    collapsed = effective_sample_size <= n_searches * (1 + _TOLERANCE)
    if len(collapsed) >= _ENOUGH_ROWS and collapsed.mean() > 0.5:
        warn(
            f"For {int(collapsed.sum())} of {len(collapsed)} rows, almost nothing but the given "
            "network counts: their effective sample size is no larger than the number of searches "
            f"({n_searches}). Raise temperature (it is {temperature:g} nats; 1 is that of the "
            "posterior, 'auto' ranks samples), or slack for sampling='best'; and check that "
            "n_training_rows is not larger than the number of rows the network was trained on.",
            CollapsedWeightsWarning,
        )
