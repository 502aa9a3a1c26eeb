"""Laplace's approximation: a Gaussian posterior around the given weights.

Predictions are linear in the weights around the given ones: exactly so for a last layer, and to
first order otherwise (MacKay, 1992; Daxberger et al., 2021).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor

from .._contexts import computing
from .._curvature import (
    Blocks,
    DiagonalBlock,
    DiagonalHead,
    FullBlock,
    FullHead,
    KroneckerBlock,
    KroneckerHead,
    ScoreSpread,
    add_kronecker_moments,
    has_kronecker_factors,
    rows_first,
)
from .._estimate import accumulation_dtype
from .._free_network import WeightChanging, probe_rows
from .._likelihood import CategoricalLikelihood
from .._memory import memory_in_bytes
from .._parameters import execution_order
from .._reference import batches
from .._scores import Head, WholeNetwork, find_head, fisher_root

# What prior precisions are looked at.
_GRID = np.logspace(-4, 6, 41)
# Share of the training rows that judge the precisions of the grid.
_HELD_OUT = 0.2


class LaplacePosterior(WeightChanging):
    """Fills in the hooks: draws from the Gaussian of the scores."""

    _made_again = ("_free_network_", "_view_")
    _laplace_constraints: ClassVar[dict] = {
        **WeightChanging._weight_constraints,
        "structure": [StrOptions({"full", "kron", "diag"})],
        "prior_precision": [
            Interval(Real, 0, np.inf, closed="right"),
            StrOptions({"marginal_likelihood", "grid"}),
        ],
        "n_samples": [Interval(Integral, 2, None, closed="left")],
    }

    structure: str
    prior_precision: float | str
    n_samples: int
    predictive = "monte_carlo"

    # -- fitting ---------------------------------------------------------------------------

    @computing()
    def _finish_fit(self) -> None:
        self._note_parameters()
        self._view_ = self._make_view()
        self._normal = _normal_numbers(self.n_samples, self._view_.n_scores, self._seed)
        self._normal = self._normal.to(self._inputs.device)
        if self.prior_precision == "grid":
            self.prior_precision_ = self._best_of_grid()
        self._curvature = self._measure_curvature(torch.arange(len(self._inputs)))
        if self.prior_precision == "marginal_likelihood":
            self.prior_precision_ = self._most_likely()
        elif self.prior_precision != "grid":
            self.prior_precision_ = float(self.prior_precision)
        self.log_marginal_likelihood_ = self._evidence()(self.prior_precision_)

    def _view(self) -> Head | WholeNetwork:
        """Return how scores depend on the free parameters; made once."""
        if not hasattr(self, "_view_"):
            self._view_ = self._make_view()
        return self._view_

    def _make_view(self) -> Head | WholeNetwork:
        network = self._network()
        head = find_head(network)
        if head is not None:
            return head
        given = self._reference.predict(self._inputs[:1])
        n_scores = WholeNetwork(network, 0).scores(given).shape[-1]
        return WholeNetwork(network, n_scores)

    def _weight_of(self, index: Tensor) -> Tensor:
        """Return the sample weights of training rows."""
        dtype = accumulation_dtype(self._inputs.device)
        if self._sample_weight is None:
            return torch.ones(len(index), dtype=dtype, device=self._inputs.device)
        return self._sample_weight[index].to(dtype)

    def _measure_curvature(self, index: Tensor) -> Any:
        """Return the curvature of the loss on training rows that are given by their numbers."""
        index = index.to(self._inputs.device)
        view = self._view()
        if isinstance(view, Head):
            return self._curvature_of_head(view, index)
        self._check_memory(self._network().free.size, 1)
        blocks, by_layer = self._choose_blocks()
        by_rows = [block for block in blocks if not isinstance(block, KroneckerBlock)]
        if by_rows:
            for rows in self._row_groups(index):
                scores, jacobians = view.scores_and_design(self._inputs[rows])
                root = fisher_root(view.likelihood.fisher(scores))
                root = root * self._weight_of(rows).sqrt()[:, None, None]
                for block in by_rows:
                    block.add(jacobians, root)
        if by_layer:

            def scores_and_root(output: Any) -> tuple[Tensor, Tensor]:
                scores = view.scores(self._reference.likelihood.prediction(output))
                return scores, fisher_root(view.likelihood.fisher(scores.detach()))

            module, weight = self._reference.module, self._weight_of(index)
            add_kronecker_moments(by_layer, module, self._inputs[index], weight, scores_and_root)
        for block in blocks:
            block.finish()
        return Blocks(blocks)

    def _curvature_of_head(self, head: Head, index: Tensor) -> Any:
        scores, features = head.scores_and_design(self._inputs[index])
        weight = self._weight_of(index)
        if self.structure == "diag":
            diagonals = torch.empty_like(scores)
            for rows in batches(scores[:, :, None].expand(-1, -1, head.n_scores)):
                # Copied: views would keep the matrices of all rows alive.
                fisher = head.likelihood.fisher(scores[rows])
                diagonals[rows] = fisher.diagonal(dim1=1, dim2=2)
            return DiagonalHead(features, diagonals * weight[:, None])
        if self.structure == "kron":
            total = torch.zeros((), dtype=scores.dtype, device=scores.device)
            for rows in batches(scores[:, :, None].expand(-1, -1, head.n_scores)):
                fisher = head.likelihood.fisher(scores[rows])
                total = total + (fisher * weight[rows, None, None]).sum(dim=0)
            return KroneckerHead(features, total, None if self._sample_weight is None else weight)
        self._check_memory(head.n_features, head.n_scores)
        return FullHead(features, head.likelihood.fisher(scores) * weight[:, None, None])

    def _check_memory(self, n_features: int, n_scores: int) -> None:
        """Refuse a full matrix that does not fit."""
        needed = FullHead.bytes_needed(n_features, n_scores)
        limit = memory_in_bytes(self.memory_limit, self._reference.device)
        if self.structure == "full" and needed > limit:
            raise ValueError(
                f"structure='full' needs {needed / 1e9:.1f} GB for {n_features * n_scores} "
                f"parameters, more than the memory limit of {limit / 1e9:.1f} GB. Use 'kron' or "
                "'diag', or fewer parameters."
            )

    def _choose_blocks(self) -> tuple[list[Any], dict[str, KroneckerBlock]]:
        """Return the blocks of the curvature, and those of them that belong to layers."""
        names = list(self._network().free.start)
        if self.structure == "full":
            return [FullBlock(names)], {}
        if self.structure == "diag":
            return [DiagonalBlock(names)], {}
        if self._network().free.updates:
            raise ValueError("Low-rank updates have no Kronecker factors: use 'diag' or 'full'.")
        by_layer: dict[str, KroneckerBlock] = {}
        module, left = self._reference.module, set(names)
        # Only what goes through the layer itself is seen: not a weight that others use, too.
        probe = probe_rows(self._inputs)
        with torch.no_grad():
            ran = set(execution_order(module, lambda: module(probe)))
        layers = {name: p for name, p in module.named_modules() if has_kronecker_factors(p)}
        # The factors are sums over rows: layers that see them otherwise have their diagonal.
        usable = rows_first(layers, module, probe) & ran
        holders = Counter(id(p) for part in module.modules() for p in part.parameters(False))
        for layer, part in module.named_modules():
            own = {name: f"{layer}.{name}" if layer else name for name in ("weight", "bias")}
            free = {name: full if full in left else None for name, full in own.items()}
            alone = all(holders[id(p)] == 1 for p in part.parameters(False))
            if layer in usable and alone and any(free.values()):
                by_layer[layer] = KroneckerBlock(free["weight"], free["bias"])
                left -= set(free.values())
        rest = [DiagonalBlock([name for name in names if name in left])] if left else []
        return [*by_layer.values(), *rest], by_layer

    def _row_groups(self, index: Tensor) -> Iterator[Tensor]:
        """Yield row numbers whose designs fit the memory limit together."""
        for rows in self._groups(len(index), self._bytes_per_row()):
            yield index[rows]

    def _bytes_per_row(self) -> int:
        """Return the memory for the scores of a row, their design and their spread."""
        view = self._view()
        needed = view.bytes_per_row()
        if isinstance(view, Head) and isinstance(self._curvature, FullHead):
            needed += self._curvature.bytes_per_row()
        return needed

    # -- prior precision -------------------------------------------------------------------

    def _evidence(self) -> Callable[[float], float]:
        """Return the log marginal likelihood of the training data as a function of the precision.

        It is an approximation, for the posterior is.
        """
        start = self._network().free.start.values()
        norm = sum(float(value.double().square().sum()) for value in start)
        values = self._curvature.eigenvalues.cpu().double().numpy()
        loss = self.reference_loss_ * len(self._inputs)

        def evidence(precision: float) -> float:
            if np.isinf(precision):
                return -np.inf
            log_det = np.log1p(values / precision).sum()
            return float(-loss - 0.5 * (precision * norm + log_det))

        return evidence

    def _most_likely(self) -> float:
        """Return the prior precision that makes the training data most likely."""
        evidence = self._evidence()
        best = int(np.argmax([evidence(precision) for precision in _GRID]))
        low, high = _GRID[max(best - 1, 0)], _GRID[min(best + 1, len(_GRID) - 1)]
        found = minimize_scalar(
            lambda logarithm: -evidence(math.exp(logarithm)),
            bounds=(math.log(low), math.log(high)),
            method="bounded",
        )
        return math.exp(found.x)

    def _best_of_grid(self) -> float:
        """Return the prior precision with the best log score on held-out training rows."""
        generator = torch.Generator().manual_seed(self._seed)
        if len(self._inputs) < 2:
            raise ValueError("prior_precision='grid' needs at least two training rows.")
        order = torch.randperm(len(self._inputs), generator=generator)
        n_out = max(1, round(_HELD_OUT * len(order)))
        self._curvature = self._measure_curvature(order[n_out:])
        held_out = order[:n_out].to(self._inputs.device)
        scores = np.sum([self._log_scores(rows) for rows in self._row_groups(held_out)], axis=0)
        return float(_GRID[int(np.argmax(scores))])

    def _log_scores(self, rows: Tensor) -> list[float]:
        """Return the log score of some training rows for each precision of the grid."""
        inputs, weight = self._inputs[rows], self._weight_of(rows)
        given = self._reference.predict(inputs)
        scores, design = self._view().scores_and_design(inputs)
        found = []
        for precision in _GRID:
            posterior: Any = self._posterior(given)
            self._update(posterior, scores, design, float(precision))
            losses = self._reference.likelihood.negative_log_likelihood(
                posterior.prediction("expected"), self._target[rows]
            )
            found.append(-float((losses * weight).sum()))
        return found

    # -- predicting ------------------------------------------------------------------------

    def _chunks(self, inputs: Tensor) -> Iterator[slice]:
        return self._row_chunks(inputs, self._bytes_per_row())

    def _sample_models(
        self,
        inputs: Tensor,
        given: Any,  # noqa: ARG002
        posterior: Any,
    ) -> dict[str, np.ndarray]:
        scores, design = self._view().scores_and_design(inputs)
        self._update(posterior, scores, design, self.prior_precision_)
        return {"cached": np.full(len(inputs), self._network().split.cached)}

    def _update(self, posterior: Any, scores: Tensor, design: Any, precision: float) -> None:
        likelihood = self._view().likelihood
        spread = self._curvature.spread(design, precision)
        for models in self._groups(len(self._normal), 8 * 8 * scores.numel()):
            deviations = spread.deviations(self._normal[models].to(scores))
            posterior.update(likelihood.prediction(scores + deviations))
        if self.predictive == "probit":
            matrices = scores[:, :, None].expand(-1, -1, scores.shape[1])
            parts = [_probit(scores[rows], spread.of_rows(rows)) for rows in batches(matrices)]
            posterior.add_average(torch.cat(parts))

    @computing()
    def score_distribution(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the Gaussian distribution of the network's scores.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
            Rows like those of the training data.

        Returns
        -------
        mean : ndarray of shape (n_samples, n_scores)
            What the given network returns: logits (or the one logit of two classes) or means for
            a linear last layer, followed by logarithms of variances if it predicts them; otherwise
            log-probabilities in place of logits.
        covariance : ndarray of shape (n_samples, n_scores, n_scores)
            Covariance under the posterior of the free parameters.
        """
        inputs = self._check_inputs(X)
        means, covariances = [], []
        for rows in self._chunks(inputs):
            scores, design = self._view().scores_and_design(inputs[rows])
            means.append(scores)
            covariances.append(self._curvature.spread(design, self.prior_precision_).covariance())
        return torch.cat(means).cpu().numpy(), torch.cat(covariances).cpu().numpy()


def _normal_numbers(n_models: int, n_scores: int, seed: int) -> Tensor:
    """Return evenly spread normal numbers, (n_models, n_scores), of mean zero and variance one."""
    engine = torch.quasirandom.SobolEngine(n_scores, scramble=True, seed=seed)
    uniform = engine.draw(n_models, dtype=torch.float64)
    edge = 0.5 / n_models
    normal = torch.special.ndtri(uniform.clamp(edge, 1 - edge))
    normal = normal - normal.mean(dim=0)
    return normal / normal.square().mean(dim=0).sqrt()


def _probit(scores: Tensor, spread: ScoreSpread) -> Tensor:
    """Return log-probabilities averaged over Gaussian scores, by MacKay's approximation."""
    if scores.shape[1] == 1:
        logit = scores / _widening(spread.variance())
        return CategoricalLikelihood("binary_logit").prediction(logit)
    # By the differences of scores: what moves all of them alike changes no probability.
    covariance = spread.covariance()
    variance = covariance.diagonal(dim1=1, dim2=2)
    of_difference = variance[:, :, None] + variance[:, None] - 2 * covariance
    difference = (scores[:, None] - scores[:, :, None]) / _widening(of_difference.clamp(min=0))
    return torch.log_softmax(-torch.logsumexp(difference, dim=2), dim=1)


def _widening(variance: Tensor) -> Tensor:
    return (1 + math.pi / 8 * variance).sqrt()
