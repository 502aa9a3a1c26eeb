"""Networks of any architecture: taken as they are, or refused with a reason; never changed."""

import joblib
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.nn.utils import parametrizations

from sklearn_quam import ReferenceClassifier, ReferenceRegressor
from sklearn_quam._network.adapters import copy_module

from ..networks import (
    IMAGES,
    LABELS,
    SEQUENCES,
    TARGET,
    X_NEW,
    AlwaysRandom,
    Apply,
    Attention,
    Recurrent,
    Residual,
    X,
    dense,
    each_model,
    evaluate,
    fitted,
    module_state,
    predictions,
)

DEVICES = ["cpu"]
if torch.cuda.is_available():
    DEVICES.append("cuda")
if torch.backends.mps.is_available():
    DEVICES.append("mps")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def trained_statistics(module, data):
    """Return the module in training mode, with running statistics of some batches."""
    module.train()
    with torch.no_grad():
        for start in (0, 20, 40):
            module(torch.as_tensor(data[start : start + 20]) * 2 + 1)
    return module


def probabilities(module, data):
    return torch.softmax(evaluate(module, data).float(), dim=1).cpu().numpy()


ARCHITECTURES = {
    "batch norm": (
        lambda: trained_statistics(
            nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)), X
        ),
        X,
    ),
    "dropout": (lambda: dense(8, nn.Dropout(0.5), nn.Linear(8, 3)), X),
    "convolution, batch norm, pooling": (
        lambda: trained_statistics(
            nn.Sequential(
                nn.Conv2d(2, 4, 3),
                nn.BatchNorm2d(4),
                nn.GroupNorm(2, 4),
                nn.AdaptiveAvgPool2d(1),
                nn.Flatten(),
                nn.Dropout(),
                nn.Linear(4, 3),
            ),
            IMAGES,
        ),
        IMAGES,
    ),
    "LSTM, last state": (lambda: Recurrent(nn.LSTM, last="state", batch_first=True), SEQUENCES),
    "attention": (lambda: Attention(), SEQUENCES),
    "tied weights, unused parameter": (lambda: Residual(), X),
    "data parallel": (lambda: nn.DataParallel(dense()), X),
    "spectral norm": (
        lambda: trained_statistics(dense(8, parametrizations.spectral_norm(nn.Linear(8, 3))), X),
        X,
    ),
    "several outputs": (lambda: nn.Sequential(dense(), Apply(lambda z: (z, z.mean()))), X),
}
architecture = pytest.mark.parametrize(
    ("make", "data"), ARCHITECTURES.values(), ids=ARCHITECTURES.keys()
)


@architecture
def test_architecture_predicts_as_on_its_own_in_evaluation_mode(make, data):
    module = make().train()
    if isinstance(evaluate(module, data), tuple):
        expected = probabilities(module[0], data)
    else:
        expected = probabilities(module, data)
    before = module_state(module)
    est = ReferenceClassifier(module).fit(data, LABELS)
    np.testing.assert_allclose(est.predict_proba(data), expected, 1e-4, 1e-6)
    np.testing.assert_allclose(est.predict_proba(data[:1]), expected[:1], 1e-4, 1e-6)
    est.predict_uncertainty(data)
    assert module_state(module) == before
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            tensor.add_(1)
    # What is fitted is a copy.
    np.testing.assert_allclose(est.predict_proba(data), expected, 1e-4, 1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own imports
def test_compiled_module_is_opened():
    module = dense()
    assert type(copy_module(torch.compile(module))) is nn.Sequential
    est = ReferenceClassifier(torch.compile(module)).fit(X, LABELS)
    np.testing.assert_allclose(est.predict_proba(X), probabilities(module, X), 1e-5)


@pytest.mark.parametrize("wrapper", [ReferenceClassifier, ReferenceRegressor])
@pytest.mark.parametrize("device", DEVICES)
def test_network_stays_on_its_device(device, wrapper):
    module, y = (dense(), LABELS) if wrapper is ReferenceClassifier else (dense(1), TARGET)
    expected = predictions(wrapper(module).fit(X, y))
    module.to(device)
    est = wrapper(module).fit(X, y)
    np.testing.assert_allclose(predictions(est), expected, 1e-3, 1e-4)
    assert est.predict_uncertainty(X_NEW).total.shape == X_NEW.shape[:1]
    assert {p.device.type for p in module.parameters()} == {device}
    assert {p.device.type for p in est._fitted.reference.module.parameters()} == {device}


# -- refused -------------------------------------------------------------------------------


def with_nan():
    module = dense()
    with torch.no_grad():
        module[2].bias[1] = torch.nan
    return module


def batch_norm_of_the_batch():
    return nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 3))


@pytest.mark.parametrize(
    ("make", "data", "message"),
    [
        (batch_norm_of_the_batch, X, "depends on the other rows.*track_running_stats=True"),
        (lambda: Recurrent(nn.LSTM), SEQUENCES, "batch_first=True"),
        (lambda: Recurrent(nn.LSTM, last="state"), SEQUENCES, "returns 5 rows for .*batch_first"),
        (lambda: Attention(batch_first=False), SEQUENCES, "batch_first=True"),
        (AlwaysRandom, X, "different outputs for the same rows even in evaluation mode"),
        (with_nan, X, r"NaN or infinite .* Check its weights"),
        (lambda: nn.LazyLinear(3), X, "lazy layers whose sizes are not known"),
        (lambda: nn.Conv2d(2, 3, 3), IMAGES, r"shape \(\d+, 3, 4, 4\).*Flatten or pool"),
        (lambda: nn.Sequential(dense(), Apply(lambda z: {"z": z, "y": z})), X, "several outputs"),
        (lambda: nn.Sequential(dense(), Apply(lambda z: z.argmax(1))), X, "returns torch.int64"),
        (lambda: nn.Sequential(dense(), Apply(lambda z: z[:7])), X, "returns 7 rows for"),
        (lambda: nn.Linear(4, 3, dtype=torch.complex64), X, "complex parameters"),
        (lambda: nn.Linear(4, 3, device="meta"), X, "'meta' device: load weights first"),
        (lambda: nn.Linear(5, 3), X, r"cannot process rows of shape \(4,\) .*trained with"),
    ],
    ids=[
        "batch norm of the batch",
        "LSTM",
        "LSTM, last state",
        "attention",
        "random",
        "NaN",
        "lazy",
        "4-D output",
        "dict output",
        "labels as output",
        "rows missing",
        "complex",
        "meta",
        "wrong width",
    ],
)
def test_module_is_refused_with_the_reason(make, data, message):
    module = make()
    with pytest.raises(ValueError, match=message):
        ReferenceClassifier(module).fit(data, LABELS)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_module_that_cannot_be_copied_is_refused_with_the_reason():
    module = nn.Sequential(torch.nn.utils.weight_norm(nn.Linear(4, 3)))
    with pytest.raises(ValueError, match=r"cannot be copied .*parametrizations"):
        ReferenceClassifier(module).fit(X, LABELS)


# -- never changed -------------------------------------------------------------------------


LAYERS = {
    "batch norm": lambda: nn.BatchNorm1d(5),
    "dropout": lambda: nn.Dropout(0.5),
    "layer norm": lambda: nn.LayerNorm(5),
    "tanh": nn.Tanh,
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(5, 5)),
    "unused": lambda: Apply(lambda x: x),
}


@settings(max_examples=15, deadline=None)
@given(
    layers=st.lists(st.sampled_from(sorted(LAYERS)), max_size=4),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    flags=st.lists(st.booleans(), min_size=3, max_size=3),
    failure=st.sampled_from([None, "width", "classes", "link", "NaN"]),
)
def test_module_is_bit_identical_whatever_happens(layers, dtype, flags, failure):
    module = nn.Sequential(nn.Linear(4, 5), *(LAYERS[name]() for name in layers), nn.Linear(5, 3))
    module.to(dtype)
    for index, part in enumerate(module.modules()):
        part.training = flags[index % 3]
    for index, parameter in enumerate(module.parameters()):
        parameter.requires_grad_(flags[(index + 1) % 3])
        if flags[2]:
            parameter.grad = torch.full_like(parameter, 0.5)
    if failure == "NaN":
        module[0].weight.data.fill_(torch.nan)
    before = module_state(module)
    est = ReferenceClassifier(module, link="probabilities" if failure == "link" else None)
    data = X[:, :3] if failure == "width" else X
    y = np.arange(60) % 7 if failure == "classes" else LABELS
    if failure:
        with pytest.raises(ValueError, match="The network"):
            est.fit(data, y)
    else:
        est.fit(data, y).predict_uncertainty(X_NEW)
    assert module_state(module) == before


def estimator_state(net):
    if hasattr(net, "module_"):
        return module_state(net.module_), net.initialized_, len(net.history)
    return joblib.hash(net)


@pytest.mark.parametrize(
    ("failure", "in_pipeline"), [(None, True), ("width", False), ("target", True)]
)
@each_model
def test_fitted_estimator_is_bit_identical_afterwards(make, wrapper, y, in_pipeline, failure):
    net = make()
    scaler = StandardScaler()
    model = make_pipeline(scaler, net) if in_pipeline else net
    fitted(model, X, y)
    before = estimator_state(net), joblib.hash(scaler)
    est = wrapper(model)
    if failure == "width":
        with pytest.raises(ValueError, match=r"shape|features"):
            est.fit(X[:, :3], y)
    elif failure == "target":
        wrong = np.arange(60) % 7 if wrapper is ReferenceClassifier else np.zeros((60, 9))
        with pytest.raises(ValueError, match=r"y has (7|9)"):
            est.fit(X, wrong)
    else:
        est.fit(X, y).predict_uncertainty(X_NEW)
    assert (estimator_state(net), joblib.hash(scaler)) == before
