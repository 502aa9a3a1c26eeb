"""Networks of any architecture: taken as they are, or refused with a reason; never changed."""

import contextlib
import copy

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

from sklearn_quam import QUAMClassifier, ReferenceClassifier, ReferenceRegressor
from sklearn_quam._network.adapters import copy_module
from sklearn_quam._network.outputs import InvalidOutputError

from ..networks import (
    BINARY,
    IMAGES,
    LABELS,
    SEQUENCES,
    TARGET,
    TOKENS,
    TWO_TARGETS,
    X_NEW,
    AlwaysRandom,
    Apply,
    Attention,
    Dense,
    MeanAndVariance,
    Recurrent,
    Residual,
    Tokens,
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
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)),
        IMAGES,
    ),
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
    "GRU": (lambda: Recurrent(nn.GRU, batch_first=True, num_layers=2, dropout=0.3), SEQUENCES),
    "attention": (lambda: Attention(), SEQUENCES),
    "embedding": (lambda: Tokens(), TOKENS),
    "tied weights, unused parameter": (lambda: Residual(), X),
    "data parallel": (lambda: nn.DataParallel(dense()), X),
    "weight norm": (
        lambda: dense(8, nn.ReLU(), parametrizations.weight_norm(nn.Linear(8, 3))),
        X,
    ),
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


def test_whole_numbers_are_features_to_networks_without_embeddings():
    module, counts = dense(), TOKENS[:, :4]
    est = ReferenceClassifier(module).fit(counts, LABELS)
    expected = probabilities(module, counts.astype(np.float32))
    np.testing.assert_allclose(est.predict_proba(counts), expected, 1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("make", [Residual, lambda: Dense().train()])
def test_half_precision_is_widened_exactly(make, dtype):
    module = make().to(dtype)
    est = ReferenceClassifier(module).fit(X, LABELS)
    widened = probabilities(copy.deepcopy(module).float(), X_NEW)
    np.testing.assert_allclose(est.predict_proba(X_NEW), widened, 1e-5)
    own = probabilities(module, X_NEW)
    np.testing.assert_allclose(est.predict_proba(X_NEW), own, atol=8 * torch.finfo(dtype).eps)
    assert all(p.dtype == dtype for p in module.parameters())


def test_widened_copy_keeps_its_tied_weights():
    duplicate = copy_module(Residual().half())
    assert duplicate.first.weight is duplicate.second.weight
    assert duplicate.first.weight.dtype == torch.float32


def test_double_precision_is_kept():
    module = dense().double()
    est = ReferenceClassifier(module).fit(X, LABELS)
    with torch.no_grad():
        expected = torch.softmax(module(torch.tensor(X_NEW).double()), dim=1)
    np.testing.assert_allclose(est.predict_proba(X_NEW), expected, rtol=1e-12)


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


@pytest.mark.parametrize("device", DEVICES)
def test_device_moves_the_copy_only(device):
    module = dense()
    est = ReferenceClassifier(module, device=device).fit(X, LABELS)
    np.testing.assert_allclose(est.predict_proba(X_NEW), probabilities(module, X_NEW), 1e-3, 1e-4)
    assert {p.device.type for p in est._fitted.reference.module.parameters()} == {device}
    assert {p.device.type for p in module.parameters()} == {"cpu"}


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


@pytest.mark.parametrize(
    ("module", "link", "message"),
    [
        (lambda: dense(1), None, "single column, but link='logits'.*link='binary_logit'"),
        (lambda: dense(1), "log_probabilities", "single column, but link='log_probabilities'"),
        (lambda: dense(2), "binary_logit", "2 columns, but link='binary_logit' means one"),
        (lambda: dense(2), "probabilities", "not probabilities.*Pass link='logits'"),
        (lambda: dense(1), "probabilities", "single column.*link='binary_logit'"),
        (lambda: dense(1, nn.Sigmoid()), None, "single column.*link='probability' if it is the pr"),
        (lambda: dense(1, nn.Sigmoid()), "probabilities", "single column.*link='probability'"),
        (lambda: dense(1), "probability", "not between 0 and 1.*link='binary_logit'"),
        (lambda: dense(2), "probability", "2 columns, but link='probability' means one"),
        (lambda: dense(2), "log_probabilities", "not log-probabilities.*Pass link='logits'"),
        (
            lambda: dense(2, nn.Softmax(dim=1)),
            "log_probabilities",
            "not log-probabilities.*link='probabilities' behind a softmax",
        ),
    ],
)
def test_link_that_does_not_suit_a_classifier_is_refused(module, link, message):
    with pytest.raises(ValueError, match=message):
        ReferenceClassifier(module(), link=link).fit(X, BINARY)


@pytest.mark.parametrize(
    ("module", "link", "message"),
    [
        (MeanAndVariance, "mean", "returns 2 outputs, but link='mean' means one"),
        (lambda: dense(3), "mean_variance", "3 columns, which cannot be halved"),
        (lambda: dense(2), "mean_variance", "not positive.*link='mean_log_variance'"),
        (
            lambda: nn.Sequential(dense(2), Apply(lambda z: (z, z[:, :1].exp()))),
            "mean_variance",
            "the same shape",
        ),
        (
            lambda: nn.Sequential(dense(2), Apply(lambda z: (z,))),
            "mean_variance",
            "one output, but its link means mean and variance",
        ),
        (
            lambda: nn.Sequential(dense(2), Apply(lambda z: {"mean": z, "y": z})),
            "mean_variance",
            "several outputs",
        ),
        (
            lambda: nn.Sequential(dense(2), Apply(lambda z: {"mean": z, "y": z})),
            None,
            "several outputs",
        ),
        (with_nan, None, "NaN or infinite"),
        (lambda: nn.Sequential(dense(2), Apply(lambda z: z[:, :, None])), None, "Flatten or pool"),
        (AlwaysRandom, None, "different outputs for the same rows"),
    ],
)
def test_link_or_output_that_does_not_suit_a_regressor_is_refused(module, link, message):
    with pytest.raises(ValueError, match=message):
        ReferenceRegressor(module(), link=link).fit(X, TARGET)


def test_link_of_the_other_task_is_refused():
    with pytest.raises(ValueError, match="link"):
        ReferenceClassifier(dense(), link="mean").fit(X, LABELS)
    with pytest.raises(ValueError, match="link"):
        ReferenceRegressor(dense(1), link="logits").fit(X, TARGET)


@pytest.mark.parametrize(
    ("wrapper", "n_out", "link", "y"),
    [
        (ReferenceRegressor, 1, "mean", TARGET),
        (ReferenceRegressor, 2, "mean", TWO_TARGETS),
        (ReferenceClassifier, 1, "binary_logit", BINARY),
        (ReferenceClassifier, 3, "logits", LABELS),
    ],
)
def test_module_that_squeezes_a_single_row_is_understood_or_refused(wrapper, n_out, link, y):
    module = nn.Sequential(dense(n_out), Apply(torch.squeeze))
    with contextlib.suppress(InvalidOutputError):
        est = wrapper(module, link=link).fit(X, y)
        np.testing.assert_allclose(predictions(est, X[:1]), predictions(est, X)[:1], 1e-5)


def test_values_beyond_the_networks_precision_are_refused():
    est = ReferenceClassifier(dense()).fit(X, LABELS)
    with pytest.raises(ValueError, match=r"too large for the network's torch\.float32"):
        est.predict(np.full((2, 4), 1e300))


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


@each_model
def test_changing_the_estimator_changes_nothing_later(make, wrapper, y):
    net = fitted(make(), X, y)
    est = wrapper(net).fit(X, y)
    before = predictions(est)
    if hasattr(net, "module_"):
        with torch.no_grad():
            for parameter in net.module_.parameters():
                parameter.add_(1)
    else:
        for weight in getattr(net, "coefs_", None) or [net.coef_]:
            weight += 1
    np.testing.assert_array_equal(predictions(est), before)


def test_changing_the_training_data_changes_nothing_later():
    data = X.copy()
    est = QUAMClassifier(dense(), parameters="all").fit(data, LABELS)
    training = est._fitted.models.problem.training
    before = training.rows[0].clone()
    data += 1
    assert torch.equal(training.rows[0], before)
