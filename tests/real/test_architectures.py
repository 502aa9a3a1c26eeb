"""What the documentation says about networks of other packages, on the networks themselves."""

import functools
import warnings
from collections import Counter

import numpy as np
import pytest
import torch

from sklearn_quam import QUAMClassifier
from sklearn_quam.exceptions import PoorFitWarning, SlowNetworkWarning

from .architectures import ARCHITECTURES, N_ROWS, Y, features_and_head, made, output_of

each = pytest.mark.parametrize(
    "architecture", ARCHITECTURES, ids=[f"{one.package} {one.name}" for one in ARCHITECTURES]
)
chains = [one for one in ARCHITECTURES if one.execution == "matmul"]
each_chain = pytest.mark.parametrize(
    "architecture", chains, ids=[f"{one.package} {one.name}" for one in chains]
)
N_ASKED = 4
RAN = Counter()


def count(*call):
    """Note for how many rows a network runs."""
    output = call[-1]
    RAN["rows"] += len(getattr(output, "logits", output))


def some(rows, index):
    if isinstance(rows, dict):
        return {name: part[index] for name, part in rows.items()}
    return rows[index]


def quam(network, rows):
    """Return what is fitted, and the warnings about slow networks."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # Nothing was trained: classes may be explained worse than by their frequencies.
        warnings.simplefilter("ignore", PoorFitWarning)
        est = QUAMClassifier(network, random_state=0).fit(rows, Y)
    return est, [one for one in caught if issubclass(one.category, SlowNetworkWarning)]


@functools.cache
def fitted(architecture):
    network = made(architecture)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    network.register_forward_hook(count)
    return network, before, *quam(network, architecture.rows)


@functools.cache
def answered(architecture):
    """Return the uncertainty of a few rows, and for how many rows the network ran."""
    est, rows = fitted(architecture)[2], some(architecture.rows, slice(N_ASKED))
    RAN.clear()
    uncertainty = est.predict_uncertainty(rows)
    return uncertainty, RAN["rows"]


def told(est):
    """Return what "auto" searches, in the words of the table."""
    layers = {name.rpartition(".")[0] for name in est.parameter_names_}
    n_all = len(list(est._fitted.reference.module.parameters()))
    if len(est.parameter_names_) == n_all and est.cut_ == "at_input" and n_all > 4:
        return "all parameters"
    return f"{len(layers)} linear layer{'s' * (len(layers) > 1)}"


@each
def test_it_is_taken_as_the_table_says(architecture):
    _, _, est, slow = fitted(architecture)
    assert (est.cut_, est.execution_, told(est)) == (
        architecture.cut,
        architecture.execution,
        architecture.layers,
    )
    # Either rows are quick, or it is said.
    assert len(slow) == architecture.warns
    assert architecture.execution != "loop"


@each
def test_probabilities_are_those_of_the_network(architecture):
    network, _, est, _ = fitted(architecture)
    rows = some(architecture.rows, slice(20))
    expected = torch.softmax(output_of(network, rows), dim=-1)
    np.testing.assert_allclose(est.predict_proba(rows), expected, atol=1e-6)


@each
def test_rows_are_answered_and_weights_left_alone(architecture):
    """There are more training rows than those on which a search measures costs."""
    assert N_ROWS > 128
    network, before, _, _ = fitted(architecture)
    uncertainty, _ = answered(architecture)
    assert np.isfinite(uncertainty.epistemic).all()
    assert (uncertainty.epistemic > 0).all()
    assert not network.training
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


@each_chain
def test_the_network_runs_once_a_row(architecture):
    """What comes behind are matrix products, as for the head alone: it costs no more."""
    assert answered(architecture)[1] == N_ASKED


@each_chain
def test_whole_network_is_its_head_alone_on_its_features(architecture):
    network, _, est, _ = fitted(architecture)
    values, head = features_and_head(architecture, network, est.parameter_names_)
    alone, _ = quam(head, values)
    expected = alone.predict_uncertainty(values[:N_ASKED])
    for part, other in zip(answered(architecture)[0], expected, strict=True):
        np.testing.assert_allclose(part, other, rtol=0.02)


def test_they_come_from_five_packages():
    assert len(ARCHITECTURES) >= 25
    assert len({one.package for one in ARCHITECTURES}) >= 5
