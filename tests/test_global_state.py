"""Nothing outside is changed: what holds for the whole process is the same before and after."""

import os
import random
import warnings

import numpy as np
import pytest
import torch

from sklearn_quam import ood

from .test_contract import FEW, METHODS, is_classifier, make_data, make_estimator, make_module

DETECTORS = [getattr(ood, name) for name in ood.__all__ if name.endswith("Detector")]


def state():
    """Return everything about the process that a library may be tempted to change."""
    sdp = torch.backends.cuda
    return {
        "torch random state": torch.get_rng_state().numpy().tobytes(),
        "numpy random state": str(np.random.get_state()),  # noqa: NPY002
        "python random state": random.getstate(),
        "default dtype": torch.get_default_dtype(),
        "default device": str(torch.get_default_device()),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "autocast": torch.is_autocast_enabled("cpu"),
        "warning filters": list(warnings.filters),
        "environment": dict(os.environ),
        "denormals": bool(torch.full((1,), 1e-30) * 1e-10),
        "attention": (
            sdp.flash_sdp_enabled(),
            sdp.mem_efficient_sdp_enabled(),
            sdp.math_sdp_enabled(),
            torch.backends.mha.get_fastpath_enabled(),
        ),
        "determinism": torch.are_deterministic_algorithms_enabled(),
        "printing": np.get_printoptions(),
        "float errors": np.geterr(),
        "module call": torch.nn.Module.__call__,
    }


def assert_unchanged(before):
    after = state()
    for name, value in before.items():
        if name not in ("warning filters", "environment"):
            assert after[name] == value, name
    # pytest notes the test that runs, and the phase of it.
    environment = [dict(part["environment"]) for part in (before, after)]
    for part in environment:
        part.pop("PYTEST_CURRENT_TEST", None)
    assert environment[0] == environment[1]
    assert before["warning filters"] == after["warning filters"]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_methods_change_nothing_outside(method):
    rows, y = make_data(method)
    network = make_module(method)
    # Gradients may be off outside.
    with torch.set_grad_enabled(method not in FEW):
        before = state()
        est = make_estimator(method, network).fit(rows, y)
        assert_unchanged(before)
        est.predict_uncertainty(rows[:3], return_diagnostics=True)
        est.set_params(setting="expected").predict(rows[:3])
        if hasattr(est, "rival_costs"):
            est.rival_costs(rows[:1])
            est.adversarial_models(rows[:1])
            est.search_traces(rows[:1])
        assert_unchanged(before)


@pytest.mark.parametrize("kind", DETECTORS, ids=lambda kind: kind.__name__)
def test_detectors_change_nothing_outside(kind):
    method = next(filter(is_classifier, METHODS))
    rows, y = make_data(method)
    if kind is getattr(ood, "CombinedDetector", None):
        pytest.skip("made of others")
    network = make_module(method)
    before = state()
    kind(network, random_state=0).fit(rows, y).score_samples(rows[:3])
    assert_unchanged(before)


def test_a_failing_fit_changes_nothing_outside():
    method = METHODS[0]
    rows, y = make_data(method)
    network = make_module(method)
    before = state()
    with pytest.raises(ValueError, match="NaN"):
        make_estimator(method, network).fit(rows * np.nan, y)
    assert_unchanged(before)
