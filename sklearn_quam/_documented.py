"""Shared entries of docstrings, so that each argument and attribute is described once.

A class describes its own. `documented` adds the entries of all other constructor arguments, in the
order of the signature, and the attributes of all classes of its kind. A regressor takes missing
entries from its classifier, and a method from its class.

A name without a type stands for the shared entry; text below it is appended. A class without an
example has the shared one, under its own name.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

Documented = TypeVar("Documented", bound=Callable)

_TITLE = re.compile(r"^(\w[\w ]*)\n-{3,}\n", re.MULTILINE)
_SECTIONS = ["Parameters", "Attributes", "Returns", "Raises", "See Also", "Notes", "References"]
_EXAMPLES = "Examples"
_FITTED = "self : object\n    The fitted estimator."
_SECTIONS += [_EXAMPLES]
# Shared attributes of classes that name them; the others go without saying.
_IF_NAMED = {"parameter_names_", "n_parameters_searched_", "ax_"}


class Docstring(NamedTuple):
    """The parts of a docstring; entries of arguments and attributes by their names."""

    summary: str
    description: str
    parameters: dict[str, str]
    attributes: dict[str, str]
    sections: dict[str, str]

    def filled(self, other: Docstring) -> Docstring:
        """Return the docstring with missing parts from another one, but for its example."""
        others = {name: text for name, text in other.sections.items() if name != _EXAMPLES}
        return Docstring(
            self.summary,
            self.description or other.description,
            other.parameters | self.parameters,
            self.attributes | other.attributes | self.attributes,
            others | self.sections,
        )


_NOTHING = Docstring("", "", {}, {}, {})
# Docstrings of decorated classes before the shared entries are added.
_written: dict[type, Docstring] = {}


def documented(
    shared: Docstring = _NOTHING,
    twin: type | None = None,
    *,
    also: tuple[type, ...] = (),
    example: str = "",
) -> Callable[[Documented], Documented]:
    """Return a decorator that completes docstrings: of a function, or a class and its methods.

    ``shared`` has entries of all classes of the kind. From ``twin``, a decorated class, come
    description, entries and references that are missing; from ``also`` come entries only.
    ``example`` are arguments of the class in the shared example.
    """

    def complete(kind: Documented) -> Documented:
        # "python -OO" leaves no docstrings but those that dataclasses make up.
        if kind.__doc__ is None or sys.flags.optimize >= 2:
            return kind
        if not isinstance(kind, type):
            arguments = inspect.signature(kind).parameters.values()
            entries = _NOTHING._replace(parameters=shared.parameters)
            kind.__doc__ = _completed(parsed(kind.__doc__), entries, arguments)
        else:
            own = parsed(kind.__doc__)
            for other in also:
                own = own._replace(parameters=_written[other].parameters | own.parameters)
            own = _written[kind] = own if twin is None else own.filled(_written[twin])
            text = shared.sections.get(_EXAMPLES, "").format(name=kind.__name__, arguments=example)
            own = own._replace(sections={_EXAMPLES: text} | own.sections)
            arguments = inspect.signature(kind).parameters.values()
            kind.__doc__ = _completed(own, shared, arguments)
            _complete_methods(kind, _written[kind], shared)
        return kind

    return complete


def _complete_methods(kind: type, own: Docstring, shared: Docstring) -> None:
    """Describe arguments of methods as those of the class, unless they have an own entry."""
    of_class = {
        name: _of_method(_entry(name, own.parameters, shared.parameters)) for name in own.parameters
    }
    known = _NOTHING._replace(parameters=shared.parameters | of_class)
    for name, member in vars(kind).items():
        method = getattr(member, "__func__", member)
        if inspect.isfunction(method) and method.__doc__ and not name.startswith("_"):
            _, *arguments = inspect.signature(method).parameters.values()
            written = parsed(method.__doc__)
            returned = _FITTED if "fit" in name else shared.sections.get("Returns", "")
            written = written._replace(sections={"Returns": returned} | written.sections)
            method.__doc__ = _completed(written, known, arguments)


def _of_method(entry: str) -> str:
    """Return the entry of a class for a method: without its default, for any array."""
    head, newline, text = entry.partition("\n")
    head = head.partition(", default=")[0].replace("ndarray", "array-like")
    return f"{head}{newline}{text}"


def parsed(text: str) -> Docstring:
    """Return the parts of a docstring."""
    start, *parts = _TITLE.split(inspect.cleandoc(text))
    summary, _, description = start.strip().partition("\n\n")
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    parameters = _entries(sections.pop("Parameters", ""))
    attributes = _entries(sections.pop("Attributes", ""))
    return Docstring(summary, description, parameters, attributes, sections)


def _entries(text: str) -> dict[str, str]:
    """Return entries by name; one of several names is under the first, the others are empty."""
    found: dict[str, str] = {}
    for entry in filter(None, re.split(r"\n(?=\S)", text.strip("\n"))):
        first, *others = entry.partition("\n")[0].partition(" : ")[0].split(", ")
        found |= {first: entry} | dict.fromkeys(others, "")
    return found


def _completed(own: Docstring, shared: Docstring, arguments: Iterable[inspect.Parameter]) -> str:
    parameters = [
        _with_default(_entry(_name(each), own.parameters, shared.parameters), each.default)
        for each in arguments
    ]
    names = [*own.attributes, *(name for name in shared.attributes if name not in _IF_NAMED)]
    attributes = [_entry(name, own.attributes, shared.attributes) for name in dict.fromkeys(names)]
    filled = {
        "Parameters": "\n".join(filter(None, parameters)),
        "Attributes": "\n".join(attributes),
    }
    sections = {name: (own.sections | filled).get(name, "").strip() for name in _SECTIONS}
    titled = [f"{name}\n{'-' * len(name)}\n{text}" for name, text in sections.items() if text]
    return "\n\n".join(filter(None, [own.summary, own.description, *titled])) + "\n"


def _name(argument: inspect.Parameter) -> str:
    return str(argument.replace(annotation=argument.empty, default=argument.empty))


def _entry(name: str, own: dict[str, str], shared: dict[str, str]) -> str:
    text = own.get(name, name)
    is_whole = not text or " : " in text.partition("\n")[0]
    return text if is_whole else shared[name] + text.removeprefix(name)


def _with_default(entry: str, default: object) -> str:
    head, newline, text = entry.partition("\n")
    if not entry or default is inspect.Parameter.empty or ", default=" in head:
        return entry
    value = f'"{default}"' if isinstance(default, str) else repr(default)
    return f"{head}, default={value}{newline}{text}"


# Arguments of methods that are asked about samples.
QUERY = parsed(
    """
    Parameters
    ----------
    X : array-like of shape (n_samples, ...)
        Samples like those of the training data.
    return_uncertainty : bool
        Whether to return the uncertainty, too: the models are sampled only once for both.
    """
)
_NETWORK = parsed(
    """
    Parameters
    ----------
    output : str or int
        Name or number of the output to use, if the network returns several. None takes ``logits``,
        or the first.
    device : str or torch.device
        Where to run; None stays where the network is.
    """
)
_METHOD = parsed(
    """
    Parameters
    ----------
    estimator : estimator or torch.nn.Module
        A fitted skorch net, a trained module, a fitted network or linear model of scikit-learn
        (``MLPClassifier``, ``LogisticRegression``, ``MLPRegressor``, ``Ridge``,
        ``LinearRegression``), or a pipeline that ends in one of these: taken as it is, never
        retrained and never changed. An unfitted one is cloned and trained by ``fit``. None trains
        a small network on scaled inputs.
    parameters : str, int, list of str, callable or LoRA
        Parameters that plausible models may change: "all", "last_layer", a number of last layers,
        "bias", "norm" (of normalisation layers), names of parameters or patterns such as "head.*",
        a function of (name, parameter), "lora" or a `LoRA`. The part of the network before it is
        computed only once for each sample.
    setting : {"given", "expected", "pairwise"}
        "given" judges the given network (setting (b) of the paper), "expected" the average of all
        plausible models, which then also predicts (setting (a)), "pairwise" how far models
        disagree with each other. It may be changed after ``fit``: all use the same models.
    memory_limit : int, float or str
        Memory for models that run together, in bytes or as a text such as "1GB"; None takes a
        quarter of what is free.
    random_state : int, RandomState instance or None
        Seeds all random draws, and the training of an unfitted estimator.
    verbose : int
        1 shows progress bars, 0 none; None shows those that take more than about ten seconds.

    Attributes
    ----------
    conformal_scores_ : ndarray of shape (n_val, ...)
        Conformal scores of held-out samples, sorted. Only if ``X_val`` was passed to ``fit``.
    estimator_ : estimator or torch.nn.Module
        The fitted network.
    parameter_names_ : list of str
        Parameters of the network that models may change.
    n_parameters_searched_ : int
        Number of values in them, or in the factors of low-rank updates of them.
    reference_loss_ : float
        Mean negative log-likelihood of the network on the training data.
    n_features_in_ : int
        Number of features seen by ``fit``.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, if X has any.
    """
).filled(_NETWORK.filled(QUERY))

CLASSIFIER = parsed(
    """
    Parameters
    ----------
    measure : {"entropy", "brier", "zero_one"}
        Entropies in nats, Brier scores, or zero-one losses.
    link : str
        What the network returns: "logits", "log_probabilities" or "probabilities", a column for
        each class; or one column for the second of two classes, its "binary_logit" or its
        "probability". None takes it from a skorch net's criterion, and means logits for a plain
        module.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels.
    conformal_labels_ : ndarray of shape (n_val,)
        Columns of the labels of held-out samples, in the order of ``conformal_scores_``.
    logit_scale_ : float
        Scale of logits in ``predict_proba`` with ``setting="expected"``, the inverse of the
        temperature of temperature scaling. 1 if no ``X_val`` was passed to ``fit``.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.neural_network import MLPClassifier
    >>> from sklearn_quam import {name}
    >>> X, y = load_iris(return_X_y=True)
    >>> net = MLPClassifier((10,), solver="lbfgs", alpha=1.0, random_state=0).fit(X, y)
    >>> est = {name}(net, {arguments}random_state=0).fit(X, y)
    >>> far_away = [[0.0, 9.0, 0.0, 9.0]]
    >>> est.score_samples(far_away) < est.score_samples(X).mean()
    array([ True])
    """
).filled(_METHOD)
REGRESSOR = parsed(
    """
    Parameters
    ----------
    measure : {"entropy", "variance"}
        Entropies in nats, or variances in squared units of the target.
    link : {"mean", "mean_variance", "mean_log_variance"}
        What the network returns; two parts are a tuple, or the two halves of the columns. None
        takes it from a skorch net's criterion, such as ``MSELoss`` for the mean; of other modules
        it takes a tuple for mean and variance, anything else for the mean.
    noise_variance : float or array-like of shape (n_outputs,)
        Variance around the mean, for networks that predict the mean only. None measures it by the
        residuals of the training data, or of half of ``X_val`` if ``fit`` gets that.

    Attributes
    ----------
    n_outputs_ : int
        Number of values predicted for a sample.
    noise_variance_ : ndarray of shape (n_outputs,)
        Variance around the mean; only for networks that predict the mean only.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.neural_network import MLPRegressor
    >>> from sklearn_quam import {name}
    >>> X = np.linspace(-1, 1, 50)[:, None]
    >>> y = 2 * X[:, 0] + np.random.default_rng(0).normal(scale=0.1, size=50)
    >>> net = MLPRegressor(hidden_layer_sizes=(10,), solver="lbfgs", random_state=0).fit(X, y)
    >>> est = {name}(net, {arguments}random_state=0).fit(X, y)
    >>> inside, outside = est.predict_uncertainty([[0.0], [5.0]]).epistemic
    >>> bool(outside > inside)
    True
    """
).filled(_METHOD)
DETECTOR = parsed(
    """
    Parameters
    ----------
    estimator : estimator or torch.nn.Module
        The network: a fitted one is taken as it is, an unfitted one is trained by `fit`. None
        trains a small default network on scaled inputs.
    layer : str or list of str
        Where the features are taken: "penultimate" is the input of the last layer, "input" that of
        the network, and a name of a submodule stands for its output, averaged over places or
        tokens. Features of several layers are concatenated.
    contamination : float
        Share of known samples that `predict` flags.
    link : str
        Kind of the outputs, as for `QUAMClassifier`.
    random_state : int, RandomState instance or None
        Seeds the training, if the network is trained.
    X : array-like of shape (n_samples, ...)
        Samples like those of the training data.
    y : array-like of shape (n_samples,)
        Labels of any kind. None takes the predictions of a given network.
    **fit_params : dict
        Arguments of `fit`.

    Attributes
    ----------
    offset_ : float
        Score below which a sample is an outlier.
    classes_ : ndarray of shape (n_classes,)
        The labels.
    estimator_ : estimator or torch.nn.Module
        The network that was used.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn_quam.ood import {name}
    >>> X, y = load_iris(return_X_y=True)
    >>> detector = {name}(LogisticRegression(max_iter=1000)).fit(X, y)
    >>> detector.score_samples([X[0], [6, 0, 3, 3]]).argsort().tolist()
    [1, 0]
    """
).filled(_NETWORK)
DISPLAY = parsed(
    """
    Parameters
    ----------
    estimator : object
        A fitted estimator of the package, an outlier detector of it or of scikit-learn, a pipeline
        that ends in one, or a fitted ``GridSearchCV`` over one.
    component : {"aleatoric", "epistemic", "total", "doubt"}
        What to show, or to reject by.
    image_shape : tuple of int
        Height and width, and the number of channels if there are several; None takes the shape of
        the images, and takes flat ones for square ones.
    ax : matplotlib Axes
        Where to draw; None makes a new figure.
    **kwargs : dict
        Further arguments of `plot`, such as `ax`.

    Attributes
    ----------
    ax_ : matplotlib Axes
        Where it was drawn.
    figure_ : matplotlib Figure
        The figure.

    Returns
    -------
    Self
        The display.
    """
)
