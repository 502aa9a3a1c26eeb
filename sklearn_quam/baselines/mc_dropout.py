"""Monte Carlo dropout: thinned networks as plausible models (Gal and Ghahramani, 2016).

A thinned network is one model: its dropout masks are the same for all rows. So the answer for a row
does not depend on the rows beside it, and the network stays in evaluation mode: what dropout
layers do is replaced while it runs, nothing of it is switched.
"""

from __future__ import annotations

import copy
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.utils._param_validation import Interval
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from .._cache import SplitModule, split_module
from .._classification import BaseUncertaintyClassifier
from .._free_network import probe_rows
from .._likelihood import expected_values, map_prediction
from .._parameters import execution_order, last_layers
from .._reference import rows_at_once
from .._regression import BaseUncertaintyRegressor
from ..base import BaseUncertaintyEstimator

# The rate of the network that is trained where the user passes none.
_DEFAULT_RATE = 0.1
# What a dropped unit of a self-normalising network becomes.
_SELU_FLOOR = -1.7580993408473766

# Function -> whether it drops whole channels, and whether it keeps mean and variance.
_DROPOUTS: dict[Any, tuple[bool, bool]] = {
    functional.dropout: (False, False),
    functional.dropout1d: (True, False),
    functional.dropout2d: (True, False),
    functional.dropout3d: (True, False),
    functional.alpha_dropout: (False, True),
    functional.feature_alpha_dropout: (True, True),
    torch.dropout: (False, False),
    torch.feature_dropout: (True, False),
    torch.alpha_dropout: (False, True),
    torch.feature_alpha_dropout: (True, True),
}


class _SharedMasks(TorchFunctionMode):
    """While it is active, dropout functions draw one mask for each model, shared by its rows.

    Attention and recurrent layers run their inner dropout out of reach of this: it stays off.

    Parameters
    ----------
    models : range
        Numbers of the models whose rows are stacked behind each other.
    n_rows : int
        Rows of each of them.
    seed : int
        Decides the masks, together with the numbers of the model and of the call.
    rate : float or None
        Dropout rate; None takes what each layer has.
    axes : sequence of int or None
        Where each call has its rows; None to find out what is dropped only.
    """

    def __init__(
        self, models: range, n_rows: int, seed: int, rate: float | None, axes: Any = None
    ) -> None:
        super().__init__()
        self._models, self._n_rows = models, n_rows
        self._seed, self._rate, self._axes = seed, rate, axes
        self.shapes: list[tuple[int, ...]] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func not in _DROPOUTS:
            return func(*args, **(kwargs or {}))
        values, rate = _read_arguments(*args, **(kwargs or {}))
        self.shapes.append(tuple(values.shape))
        if self._axes is None:
            return values
        return self._drop(values, rate if self._rate is None else self._rate, *_DROPOUTS[func])

    def _drop(self, values: Tensor, rate: float, channels: bool, keeps_moments: bool) -> Tensor:
        axis = self._axes[len(self.shapes) - 1]
        rows_first = values.movedim(axis, 0)
        grouped = rows_first.unflatten(0, (len(self._models), self._n_rows, -1))
        shape = list(grouped.shape[2:])
        if channels:
            shape[2:] = [1] * len(shape[2:])
        kept = torch.stack([self._mask(model, shape, rate) for model in self._models])
        kept = kept.to(values.device)[:, None]
        if not keeps_moments:
            scale = 1 / (1 - rate) if rate < 1 else 0.0
            dropped = torch.where(kept, grouped * scale, 0.0)
        else:
            scale = ((1 - rate) * (1 + rate * _SELU_FLOOR**2)) ** -0.5 if rate < 1 else 0.0
            shift = -scale * _SELU_FLOOR * rate
            dropped = torch.where(kept, grouped, _SELU_FLOOR) * scale + shift
        return dropped.reshape(rows_first.shape).movedim(0, axis)

    def _mask(self, model: int, shape: list[int], rate: float) -> Tensor:
        """Return which units a model keeps, whichever models and rows run beside it."""
        seed = np.random.SeedSequence([self._seed, model, len(self.shapes)]).generate_state(1)
        generator = torch.Generator().manual_seed(int(seed[0]))
        return torch.rand(shape, generator=generator) >= rate


def _read_arguments(
    input: Tensor,  # noqa: A002
    p: float = 0.5,
    *_: Any,
    **__: Any,
) -> tuple[Tensor, float]:
    return input, p


class _DropInputs:
    """A hook that drops inputs of the layer it is put in front of."""

    def __call__(self, _: nn.Module, inputs: tuple, named: dict[str, Any]) -> tuple:
        # Not in training: it does nothing unless masks are being drawn.
        if inputs:
            return (functional.dropout(inputs[0], training=False), *inputs[1:]), named
        first = next(iter(named))
        return inputs, {**named, first: functional.dropout(named[first], training=False)}


class _MCDropout(BaseUncertaintyEstimator):
    """Fills in the hooks: the network thinned out in many ways."""

    _made_again = ("_split",)
    _dropout_constraints: ClassVar[dict] = {
        "n_samples": [Interval(Integral, 1, None, closed="left")],
        "p": [Interval(Real, 0, 1, closed="left"), None],
    }

    n_samples: int
    p: float | None

    def _finish_fit(self) -> None:
        self.p_ = self.p
        self._hooked: str | None = None
        probe = probe_rows(self._inputs)
        module = self._reference.module
        if not self._shapes(module, probe):
            if self.p is None and self.estimator is not None:
                raise ValueError(
                    "The network has no dropout layers (those inside attention and recurrent "
                    "layers do not count). Pass p=0.1, say, to put dropout before its last layer."
                )
            self.p_ = _DEFAULT_RATE if self.p is None else self.p
            with torch.no_grad():
                order = execution_order(module, lambda: module(probe))
            (self._hooked,) = last_layers(module, 1, order)
        self._split = self._cut()
        self._axes = self._find_axes()
        self._check_rows(probe)

    def _shapes(self, module: nn.Module, *rows: Tensor) -> list[tuple[int, ...]]:
        """Return the shapes of what is dropped."""
        masks = _SharedMasks(range(1), len(rows[0]), self._seed, self.p)
        with torch.no_grad(), masks:
            module(*rows)
        return masks.shapes

    def _find_axes(self) -> list[int]:
        """Return the axis of the rows for each call of dropout: that which depends on them."""
        probe = probe_rows(self._inputs)
        shapes = (
            self._shapes(self._split.rest, *self._split.at_cut(rows))
            for rows in (probe, probe[:-1])
        )
        axes = []
        for shape, fewer in zip(*shapes, strict=True):
            pairs = enumerate(zip(shape, fewer, strict=True))
            changed = [i for i, (a, b) in pairs if a * (len(probe) - 1) == b * len(probe)]
            if len(changed) != 1:
                raise ValueError(
                    f"Dropout is applied to a tensor of shape {shape}, none of whose axes holds "
                    f"the {len(probe)} rows of the batch."
                )
            axes += changed
        return axes

    def _check_rows(self, probe: Tensor) -> None:
        """Refuse a network that mixes rows with others on one axis before it drops."""
        all_rows, fewer = (
            expected_values(self._predict(self._split.at_cut(rows), range(2)))
            for rows in (probe, probe[:2])
        )
        if not torch.allclose(all_rows[:, :2], fewer, rtol=1e-3, atol=1e-4):
            raise ValueError(
                "With dropout, the answer for a row depends on the other rows: the network drops "
                "from a tensor that has rows and something else on one axis."
            )

    def _cut(self) -> SplitModule:
        """Return the network, cut before its first dropout."""
        module = self._reference.module
        hooked = None
        if self._hooked is not None:
            module = copy.deepcopy(module)
            hooked = module.get_submodule(self._hooked)
            hooked.register_forward_pre_hook(_DropInputs(), with_kwargs=True)

        def drops(node: fx.Node, part: nn.Module | None) -> bool:
            if part is None:
                return node.target in _DROPOUTS
            return any(
                isinstance(m, nn.modules.dropout._DropoutNd) or m is hooked for m in part.modules()
            )

        probe = probe_rows(self._inputs)
        split = split_module(module, (), probe, drops)
        # Tracing loses hooks of the whole module, and does not look into some functions.
        if len(self._shapes(split.rest, *split.at_cut(probe))) < len(self._shapes(module, probe)):
            return SplitModule(None, module, cached=False)
        return split

    def _sample_models(
        self,
        inputs: Tensor,
        given: Any,  # noqa: ARG002
        posterior: Any,
    ) -> dict[str, np.ndarray]:
        if not hasattr(self, "_split"):
            self._split = self._cut()
        rows = self._split.at_cut(inputs)
        n_rows = len(inputs)
        at_once = max(1, rows_at_once(rows[0]) // n_rows)
        for first in range(0, self.n_samples, at_once):
            models = range(first, min(first + at_once, self.n_samples))
            posterior.update(self._predict(rows, models))
        return {"cached": np.full(n_rows, self._split.cached)}

    @torch.no_grad()
    def _predict(self, rows: tuple[Tensor, ...], models: range) -> Any:
        n_rows = len(rows[0])
        # A single row is run twice: modules that squeeze their output would lose its axis.
        doubled = tuple(part.repeat_interleave(2, dim=0) if n_rows == 1 else part for part in rows)
        stacked = [part.repeat(len(models), *[1] * (part.ndim - 1)) for part in doubled]
        with _SharedMasks(models, len(doubled[0]), self._seed, self.p_, self._axes):
            output = self._split.rest(*stacked)
        prediction = self._reference.likelihood.prediction(output)
        return map_prediction(
            lambda part: part.unflatten(0, (len(models), -1))[:, :n_rows], prediction
        )


class MCDropoutClassifier(_MCDropout, BaseUncertaintyClassifier):
    """Uncertainty of a network's classification by Monte Carlo dropout.

    Units are dropped at random when predicting, too: every pattern is a plausible model. Only
    dropout changes, batch normalisation and all else stay in evaluation mode; dropout inside
    attention and recurrent layers stays off. The part of the network before the first dropout is
    computed only once for each row.

    Parameters
    ----------
    estimator : estimator or torch.nn.Module, default=None
        A fitted skorch net, a trained module, a fitted scikit-learn ``MLPClassifier`` or
        ``LogisticRegression``, or a pipeline that ends in one of these: taken as it is, never
        retrained and never changed. An unfitted one is cloned and trained by ``fit``. None trains a
        small network.
    n_samples : int, default=256
        Thinned networks to average over. They are the same for all rows.
    p : float, default=None
        Dropout rate. None takes the network's own dropout layers as they are, and is an error if it
        has none; for the small network that is trained if ``estimator`` is None, it means 0.1. A
        number replaces the rates of all dropout layers, or puts dropout before the last layer of a
        network that has none.
    setting : {"given", "expected"}, default="given"
        "given" judges the given network, "expected" the average of all plausible models, which then
        also predicts. It may be changed after ``fit``: both use the same models.
    link : {"logits", "log_probabilities", "probabilities", "binary_logit"}, default=None
        What the network returns. None takes it from a skorch net's criterion, and means logits for
        a plain module.
    device : str or torch.device, default=None
        Where to run; None stays where the network is.
    random_state : int, RandomState instance or None, default=None
        Seeds the masks and the training of an unfitted estimator.
    verbose : int, default=0
        Whether to show progress bars.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels.
    estimator_ : estimator or torch.nn.Module
        The fitted network.
    p_ : float or None
        The rate that is used; None for the network's own.
    reference_loss_ : float
        Mean negative log-likelihood of the network on the training data.
    n_features_in_ : int
        Number of features seen by ``fit``.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, if X has any.

    References
    ----------
    Y. Gal, Z. Ghahramani, "Dropout as a Bayesian Approximation: Representing Model Uncertainty in
    Deep Learning", ICML 2016.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.neural_network import MLPClassifier
    >>> from sklearn_quam import MCDropoutClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> net = MLPClassifier((10,), solver="lbfgs", alpha=1.0, random_state=0).fit(X, y)
    >>> est = MCDropoutClassifier(net, p=0.2, random_state=0).fit(X, y)
    >>> far_away = [[0.0, 9.0, 0.0, 9.0]]
    >>> est.score_samples(far_away) < est.score_samples(X).mean()
    array([ True])
    """

    _parameter_constraints: ClassVar[dict] = {
        **BaseUncertaintyClassifier._parameter_constraints,
        **_MCDropout._dropout_constraints,
    }

    def __init__(
        self,
        estimator: Any = None,
        *,
        n_samples: int = 256,
        p: float | None = None,
        setting: str = "given",
        link: str | None = None,
        device: Any = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.estimator = estimator
        self.n_samples = n_samples
        self.p = p
        self.setting = setting
        self.link = link
        self.device = device
        self.random_state = random_state
        self.verbose = verbose


class MCDropoutRegressor(_MCDropout, BaseUncertaintyRegressor):
    """Uncertainty of a network's regression by Monte Carlo dropout.

    Units are dropped at random when predicting, too: every pattern is a plausible model. Only
    dropout changes, batch normalisation and all else stay in evaluation mode; dropout inside
    attention and recurrent layers stays off. The part of the network before the first dropout is
    computed only once for each row.

    Parameters
    ----------
    estimator : estimator or torch.nn.Module, default=None
        A fitted skorch net, a trained module, a fitted scikit-learn ``MLPRegressor``, ``Ridge`` or
        ``LinearRegression``, or a pipeline that ends in one of these: taken as it is, never
        retrained and never changed. An unfitted one is cloned and trained by ``fit``. None trains a
        small network.
    n_samples : int, default=256
        Thinned networks to average over. They are the same for all rows.
    p : float, default=None
        Dropout rate. None takes the network's own dropout layers as they are, and is an error if it
        has none; for the small network that is trained if ``estimator`` is None, it means 0.1. A
        number replaces the rates of all dropout layers, or puts dropout before the last layer of a
        network that has none.
    setting : {"given", "expected"}, default="given"
        "given" judges the given network, "expected" the average of all plausible models, which then
        also predicts. It may be changed after ``fit``: both use the same models.
    measure : {"entropy", "variance"}, default="entropy"
        Entropies in nats, or variances in squared units of the target.
    noise_variance : float or array-like of shape (n_outputs,), default=None
        Variance around the mean, for networks that predict the mean only. None measures it by the
        residuals.
    link : {"mean", "mean_variance", "mean_log_variance"}, default=None
        What the network returns; two parts are a tuple, or the two halves of the columns. None
        takes it from a skorch net's criterion, such as ``MSELoss`` for the mean; of other modules
        it takes a tuple for mean and variance, anything else for the mean.
    device : str or torch.device, default=None
        Where to run; None stays where the network is.
    random_state : int, RandomState instance or None, default=None
        Seeds the masks and the training of an unfitted estimator.
    verbose : int, default=0
        Whether to show progress bars.

    Attributes
    ----------
    estimator_ : estimator or torch.nn.Module
        The fitted network.
    p_ : float or None
        The rate that is used; None for the network's own.
    n_outputs_ : int
        Number of values predicted for a row.
    noise_variance_ : ndarray of shape (n_outputs,)
        Variance around the mean; only for networks that predict the mean only.
    reference_loss_ : float
        Mean negative log-likelihood of the network on the training data.
    n_features_in_ : int
        Number of features seen by ``fit``.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, if X has any.

    References
    ----------
    Y. Gal, Z. Ghahramani, "Dropout as a Bayesian Approximation: Representing Model Uncertainty in
    Deep Learning", ICML 2016.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import Ridge
    >>> from sklearn_quam import MCDropoutRegressor
    >>> X = np.linspace(-1, 1, 50)[:, None]
    >>> y = 2 * X[:, 0] + np.random.default_rng(0).normal(scale=0.1, size=50)
    >>> est = MCDropoutRegressor(Ridge(0.01).fit(X, y), p=0.2, random_state=0).fit(X, y)
    >>> inside, outside = est.predict_uncertainty([[0.0], [5.0]]).epistemic
    >>> bool(outside > inside)
    True
    """

    _parameter_constraints: ClassVar[dict] = {
        **BaseUncertaintyRegressor._parameter_constraints,
        **_MCDropout._dropout_constraints,
    }

    def __init__(
        self,
        estimator: Any = None,
        *,
        n_samples: int = 256,
        p: float | None = None,
        setting: str = "given",
        measure: str = "entropy",
        noise_variance: Any = None,
        link: str | None = None,
        device: Any = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.estimator = estimator
        self.n_samples = n_samples
        self.p = p
        self.setting = setting
        self.measure = measure
        self.noise_variance = noise_variance
        self.link = link
        self.device = device
        self.random_state = random_state
        self.verbose = verbose
