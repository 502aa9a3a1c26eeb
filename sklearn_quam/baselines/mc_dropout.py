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
from .._likelihood import map_prediction
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
    """

    def __init__(self, models: range, n_rows: int, seed: int, rate: float | None) -> None:
        super().__init__()
        self._models, self._n_rows = models, n_rows
        self._seed, self._rate = seed, rate
        self.n_calls = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func not in _DROPOUTS:
            return func(*args, **(kwargs or {}))
        values, rate = _read_arguments(*args, **(kwargs or {}))
        self.n_calls += 1
        return self._drop(values, rate if self._rate is None else self._rate, *_DROPOUTS[func])

    def _drop(self, values: Tensor, rate: float, channels: bool, keeps_moments: bool) -> Tensor:
        stacked = len(self._models) * self._n_rows
        axis = next((i for i, size in enumerate(values.shape) if size == stacked), 0)
        if values.shape[axis] % stacked:
            raise ValueError(
                f"Dropout is applied to a tensor of shape {tuple(values.shape)}, none of whose "
                f"axes holds the {stacked} rows of the batch."
            )
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
        seed = np.random.SeedSequence([self._seed, model, self.n_calls]).generate_state(1)
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

    def __call__(self, _: nn.Module, inputs: tuple) -> tuple:
        # Not in training: it does nothing unless masks are being drawn.
        return (functional.dropout(inputs[0], training=False), *inputs[1:])


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
        masks = _SharedMasks(range(1), len(probe), self._seed, self.p)
        with torch.no_grad(), masks:
            module(probe)
        if not masks.n_calls:
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

    def _cut(self) -> SplitModule:
        """Return the network, cut before its first dropout."""
        module = self._reference.module
        hooked = None
        if self._hooked is not None:
            module = copy.deepcopy(module)
            hooked = module.get_submodule(self._hooked)
            hooked.register_forward_pre_hook(_DropInputs())

        def drops(node: fx.Node, part: nn.Module | None) -> bool:
            if part is None:
                return node.target in _DROPOUTS
            return any(
                isinstance(m, nn.modules.dropout._DropoutNd) or m is hooked for m in part.modules()
            )

        return split_module(module, (), probe_rows(self._inputs), drops)

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
        with _SharedMasks(models, len(doubled[0]), self._seed, self.p_):
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
        A fitted skorch net, a module, a fitted scikit-learn ``MLPClassifier`` or
        ``LogisticRegression``, or a pipeline that ends in one of these: taken as it is, never
        retrained and never changed. An unfitted one is cloned and trained by ``fit``. None trains a
        small network.
    n_samples : int, default=256
        Thinned networks to average over. They are the same for all rows.
    p : float, default=None
        Dropout rate. None takes the network's own dropout layers as they are; a number replaces
        their rates, or puts dropout before the last layer of a network that has none (of a network
        that is trained here, with a rate of 0.1 unless another is given).
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
        A fitted skorch net, a module, a fitted scikit-learn ``MLPRegressor``, ``Ridge`` or
        ``LinearRegression``, or a pipeline that ends in one of these: taken as it is, never
        retrained and never changed. An unfitted one is cloned and trained by ``fit``. None trains a
        small network.
    n_samples : int, default=256
        Thinned networks to average over. They are the same for all rows.
    p : float, default=None
        Dropout rate. None takes the network's own dropout layers as they are; a number replaces
        their rates, or puts dropout before the last layer of a network that has none (of a network
        that is trained here, with a rate of 0.1 unless another is given).
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
        takes a tuple for mean and variance, anything else for the mean.
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
    >>> outside > inside
    np.True_
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
