"""Draws of Markov chains as plausible models, with how far the chains agree."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from ..._network.inputs.rows import Inputs, StoredRows
from ..._network.limits import Limits, accumulation_dtype
from ..._network.predictions import Prediction
from ..._posterior.accumulate import Posterior
from ..._posterior.estimate import chain_effective_sample_size, split_r_hat
from ..._posterior.fitted import Question
from ...exceptions import warn
from .weights import WeightSamples

# Above this the chains have not found the same distribution.
_MAX_R_HAT = 1.1
_BYTES_OF_DRAWS = 2**26
# How often predictions are held, and their spectra, while the chains are compared.
_COPIES_OF_DRAWS = 16


@dataclass(frozen=True)
class ChainSamples(WeightSamples):
    """Draws of Markov chains; see `WeightSamples`.

    Parameters
    ----------
    network, weights, bytes_per_row
        See `WeightSamples`; all draws of a chain are neighbours.
    shape : tuple of int
        Number of chains, and of draws of each.
    """

    shape: tuple[int, int]

    def rows_at_once(self, inputs: Inputs | StoredRows, limits: Limits) -> int:  # noqa: ARG002
        """Return how many rows are worked on together."""
        with torch.no_grad():
            start = {name: value[None] for name, value in self.network.free.start.items()}
            row = self.network.at_cut(self.network.probe[:1])
            columns = self.network.predict(start, row).n_outputs
        memory = min(limits.memory // _COPIES_OF_DRAWS, _BYTES_OF_DRAWS)
        needed = max(math.prod(self.shape) * columns * 8, self.bytes_per_row)
        return max(1, memory // needed)

    def sample(
        self,
        inputs: Inputs,
        original: Prediction,  # noqa: ARG002
        posterior: Posterior,
        question: Question,
    ) -> dict[str, np.ndarray]:
        """Hand the draws' predictions to the accumulator, and compare the chains."""

        def handed_over() -> Iterator[Prediction]:
            for prediction in self.predictions(inputs.parts, question.limits):
                posterior.update(prediction)
                yield prediction

        r_hat, size = self.compare_chains(handed_over())
        warn_about_r_hat(float(r_hat.max()), "the predicted rows")
        # Draws of a chain resemble each other: the estimate is worth fewer of them.
        inflation = np.sqrt(math.prod(self.shape) / size)
        return {
            "r_hat": r_hat,
            "effective_sample_size": size,
            "standard_error": posterior.standard_error(question.setting) * inflation,
        }

    def compare_chains(self, predictions: Iterable[Prediction]) -> tuple[np.ndarray, np.ndarray]:
        """Return R-hat and the effective sample size of the predictions of each row."""
        draws = [_values(prediction) for prediction in predictions]
        values = torch.cat(draws).unflatten(0, self.shape)
        r_hat = split_r_hat(values).amax(dim=-1)
        # The epistemic uncertainty is a mean of squared deviations, too, whose neighbours may
        # resemble each other where those of the predictions do not.
        squares = (values - values.mean(dim=(0, 1))) ** 2
        size = chain_effective_sample_size(torch.cat([values, squares], dim=-1)).amin(dim=-1)
        return r_hat.cpu().double().numpy(), size.cpu().double().numpy()


def _values(prediction: Prediction) -> Tensor:
    """Return probabilities or means, in a type in which their variances can be trusted."""
    values = prediction.expected()
    return values.to(accumulation_dtype(values.device))


def warn_about_r_hat(r_hat: float, where: str) -> None:
    if r_hat > _MAX_R_HAT:
        warn(
            f"The chains have not converged: R-hat of the predictions is {r_hat:.2f} on {where}, "
            f"above {_MAX_R_HAT}. Raise n_warmup, n_samples or n_leapfrog.",
            ConvergenceWarning,
        )
