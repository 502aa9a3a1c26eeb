"""Labels of pixels and tokens: maps hold what the head alone says about the features of places."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from sklearn_quam import LaplaceClassifier, QUAMClassifier, ReferenceClassifier, Uncertainty
from sklearn_quam.multioutput import DenseClassifier

from ..hugging_face import Tokens
from ..networks import module_state

RANDOM = np.random.default_rng(0)
N, SIZE, K, WIDTH = 12, 8, 3, 5
PICTURES = RANDOM.normal(size=(N, 2, SIZE, SIZE)).astype(np.float32)
LABELS = np.digitize(PICTURES[:, 0] + PICTURES[:, 1], [-1, 1])
N_TOKENS, LENGTH = 9, 6
IDS = RANDOM.integers(1, N_TOKENS, size=(30, LENGTH))
MASK = (np.arange(LENGTH) < RANDOM.integers(2, LENGTH + 1, size=(30, 1))).astype(np.int64)
TEXTS = {"input_ids": IDS * MASK, "attention_mask": MASK}
TAGS = np.where(MASK, IDS % K, -100)


class Segments(nn.Module):
    """Convolutions, a head, and what stands behind it."""

    def __init__(self, head=None, behind=None, **kinds):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, WIDTH, 3, padding=1), nn.Tanh())
        self.head = nn.Conv2d(WIDTH, K, 1) if head is None else head
        self.aux = nn.Conv2d(WIDTH, K, 1)
        self.behind, self.kinds = behind, kinds

    def forward(self, x):
        features = self.body(x)
        auxiliary, scores = self.aux(features), self.head(features)
        scores = scores if self.behind is None else self.behind(scores)
        return {"out": scores, "aux": auxiliary} if self.kinds.get("several") else scores


class Tagger(nn.Module):
    """Embeddings and a linear layer: scores of every token."""

    def __init__(self):
        super().__init__()
        self.embed, self.classifier = nn.Embedding(N_TOKENS, WIDTH), nn.Linear(WIDTH, K)

    def features(self, input_ids):
        return self.embed(input_ids).tanh()

    def forward(self, input_ids, attention_mask):
        return {"logits": self.classifier(self.features(input_ids) * attention_mask[..., None])}


def trained(module, inputs, labels, n_epochs=40):
    named = {key: torch.as_tensor(value) for key, value in inputs.items()}
    optimizer = torch.optim.Adam(module.parameters(), lr=0.05)
    for _ in range(n_epochs):
        output = module(**named)
        scores = output.get("logits", output.get("out")) if isinstance(output, dict) else output
        scores = scores.movedim(-1, 1) if "input_ids" in inputs else scores
        optimizer.zero_grad()
        functional.cross_entropy(scores, torch.as_tensor(labels)).backward()
        optimizer.step()
    return module.eval()


def seeded(make):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make()


@pytest.fixture(scope="module")
def network():
    return seeded(lambda: trained(Segments(), {"x": PICTURES}, LABELS))


@pytest.fixture(scope="module")
def tagger():
    return seeded(lambda: trained(Tagger(), TEXTS, TAGS))


def linear(network, **options):
    return QUAMClassifier(network, search="linear", random_state=0, **options)


def features_of(network, pictures=PICTURES):
    with torch.no_grad():
        return network.body(torch.tensor(pictures)).movedim(1, -1).reshape(-1, WIDTH).numpy()


def head_of(network):
    head = nn.Linear(WIDTH, K)
    head.weight.data = network.head.weight.data.flatten(1)
    head.bias.data = network.head.bias.data
    return head


@pytest.mark.parametrize(
    "method",
    [
        linear,
        lambda net: LaplaceClassifier(net, random_state=0),
    ],
    ids=["linear", "Laplace"],
)
def test_maps_are_what_the_head_alone_says(network, method):
    before = module_state(network)
    est = DenseClassifier(method(network)).fit(PICTURES, LABELS)
    head = method(head_of(network)).fit(features_of(network), LABELS.ravel())
    found, expected = est.predict_uncertainty(PICTURES[:2]), features_of(network, PICTURES[:2])
    assert found.epistemic.shape == (2, SIZE, SIZE)
    for own, other in zip(found, head.predict_uncertainty(expected), strict=True):
        np.testing.assert_allclose(own.ravel(), other, rtol=1e-4, atol=1e-7)
    assert module_state(network) == before


def test_predictions_are_the_network_s_own(network):
    est = DenseClassifier(linear(network)).fit(PICTURES, LABELS)
    with torch.no_grad():
        proba = network(torch.tensor(PICTURES)).softmax(dim=1).movedim(1, -1).numpy()
    np.testing.assert_allclose(est.predict_proba(PICTURES), proba, rtol=1e-5)
    np.testing.assert_array_equal(est.predict(PICTURES), proba.argmax(axis=-1))
    assert est.score(PICTURES, LABELS) == (proba.argmax(axis=-1) == LABELS).mean()


BILINEAR = functional.interpolate
HEADS = {
    "3 x 3 convolution": lambda: Segments(nn.Conv2d(WIDTH, K, 3, padding=1)),
    "dilated, strided": lambda: Segments(nn.Conv2d(WIDTH, K, 3, padding=2, dilation=2, stride=2)),
    "without bias": lambda: Segments(nn.Conv2d(WIDTH, K, 1, bias=False)),
    "resized": lambda: Segments(
        nn.Conv2d(WIDTH, K, 1, stride=1),
        lambda z: BILINEAR(z[..., ::1, ::1], (16, 16), mode="bilinear"),
    ),
    "aligned corners": lambda: Segments(
        None, lambda z: BILINEAR(z, (11, 13), mode="bilinear", align_corners=True)
    ),
    "softmax": lambda: Segments(None, lambda z: z.softmax(dim=1)),
    "several outputs": lambda: Segments(several=True),
}


@pytest.mark.parametrize("kind", HEADS)
def test_heads_of_all_kinds(kind):
    module = seeded(HEADS[kind]).eval()
    options = {"output": "out"} if kind == "several outputs" else {}
    options |= {"link": "probabilities"} if kind == "softmax" else {}
    with torch.no_grad():
        output = module(torch.tensor(PICTURES))
    scores = output["out"] if "output" in options else output
    proba = (scores if kind == "softmax" else scores.softmax(dim=1)).movedim(1, -1).numpy()
    est = DenseClassifier(ReferenceClassifier(module, **options))
    found = est.fit(PICTURES, proba.argmax(axis=-1)).predict_proba(PICTURES)
    np.testing.assert_allclose(found, proba, atol=1e-5)


@pytest.mark.parametrize("link", ["binary_logit", "probability"])
def test_one_class_against_the_rest(link):
    behind = torch.sigmoid if link == "probability" else None
    module = seeded(lambda: Segments(nn.Conv2d(WIDTH, 1, 1), behind)).eval()
    est = DenseClassifier(ReferenceClassifier(module, link=link))
    found = est.fit(PICTURES, LABELS > 0).predict_proba(PICTURES)
    with torch.no_grad():
        output = module(torch.tensor(PICTURES))[:, 0]
    expected = (output if behind else output.sigmoid()).numpy()
    np.testing.assert_allclose(found[..., 1], expected, rtol=1e-5)


# -- places that do not count --------------------------------------------------------------


@pytest.mark.parametrize("kind", [dict, Tokens])
def test_tokens(tagger, kind):
    est = DenseClassifier(linear(tagger)).fit(kind(TEXTS), TAGS)
    counts = MASK == 1
    assert est.n_places_ == counts.sum()
    u = est.predict_uncertainty(kind(TEXTS))
    with torch.no_grad():
        features = tagger.features(torch.tensor(IDS)).numpy()[counts]
    head = linear(tagger.classifier).fit(features, TAGS[counts])
    np.testing.assert_allclose(
        u.epistemic[counts], head.predict_uncertainty(features).epistemic, rtol=1e-4
    )
    assert np.isnan(u.epistemic[~counts]).all()
    assert (est.predict(TEXTS)[~counts] == -100).all()
    assert np.isfinite(u.per_row("mean").epistemic).all()
    assert est.score(TEXTS, TAGS) > 0.9


def test_a_mask_of_the_user(network):
    inside = np.zeros(LABELS.shape, bool)
    inside[:, 2:6, 2:6] = True
    est = DenseClassifier(linear(network)).fit(PICTURES, LABELS, mask=inside)
    ignored = DenseClassifier(linear(network), ignore_label=255)
    ignored.fit(PICTURES, np.where(inside, LABELS, 255))
    assert est.n_places_ == ignored.n_places_ == inside.sum()
    one, other = (e.predict_uncertainty(PICTURES, mask=inside) for e in (est, ignored))
    np.testing.assert_array_equal(one.epistemic, other.epistemic)
    assert np.isnan(one.epistemic[~inside]).all()
    nothing = est.predict_uncertainty(PICTURES[:1], mask=np.zeros((1, SIZE, SIZE)))
    assert np.isnan(nothing.epistemic).all()


def test_texts_that_are_padded_less(tagger):
    est = DenseClassifier(linear(tagger)).fit(TEXTS, TAGS)
    short = {name: part[:, :4] for name, part in TEXTS.items()}
    whole, part = est.predict_uncertainty(TEXTS), est.predict_uncertainty(short)
    assert part.epistemic.shape == (30, 4)
    np.testing.assert_allclose(part.epistemic, whole.epistemic[:, :4], rtol=1e-4)


def test_of_many_places_some_stand_for_all(network):
    est = DenseClassifier(linear(network), max_places=200, random_state=0).fit(PICTURES, LABELS)
    assert est.n_places_ == LABELS.size
    assert est.estimator_.n_training_rows_ == LABELS.size
    assert len(est.estimator_._fitted.models.problem.training) == 200
    every = DenseClassifier(linear(network)).fit(PICTURES, LABELS)
    one, other = (e.predict_uncertainty(PICTURES).epistemic.ravel() for e in (est, every))
    assert np.corrcoef(np.log(one), np.log(other))[0, 1] > 0.9
    again = clone(est).fit(PICTURES, LABELS).predict_uncertainty(PICTURES)
    np.testing.assert_array_equal(again.epistemic.ravel(), one)


def test_pictures_at_once_change_rounding_only(network, monkeypatch):
    est = DenseClassifier(linear(network, memory_limit="20MB")).fit(PICTURES, LABELS)
    whole = est.predict_uncertainty(PICTURES)
    seen = []
    reader = type(est._reader)
    monkeypatch.setattr(reader, "rows", _few_at_once(reader.rows))
    call = reader.__call__
    monkeypatch.setattr(reader, "__call__", lambda own, x: (seen.append(len(x)), call(own, x))[1])
    few = est.predict_uncertainty(PICTURES)
    assert len(seen) == N
    np.testing.assert_allclose(few.epistemic, whole.epistemic, rtol=1e-4)


def _few_at_once(rows):
    def of(reader, source):
        stored = rows(reader, source)
        object.__setattr__(stored, "bytes_per_row", 2**40)
        return stored

    return of


class Pairs(Dataset):
    """A picture and its mask, as torchvision's data sets for segmentation give them."""

    def __len__(self):
        return N

    def __getitem__(self, number):
        return torch.tensor(PICTURES[number]), torch.tensor(LABELS[number])


def test_data_sets_and_pickles(network):
    by_array = DenseClassifier(linear(network)).fit(PICTURES, LABELS).predict_uncertainty(PICTURES)
    est = DenseClassifier(linear(network)).fit(Pairs())
    np.testing.assert_allclose(est.predict_uncertainty(Pairs()).total, by_array.total, rtol=1e-5)
    again = pickle.loads(pickle.dumps(est)).predict_uncertainty(PICTURES)
    np.testing.assert_allclose(again.total, by_array.total, rtol=1e-5)


# -- refused -------------------------------------------------------------------------------


def test_what_cannot_be_taken_apart(network):
    with pytest.raises(ValueError, match="linear layer or a convolution at its end"):
        DenseClassifier(linear(Segments(None, torch.relu))).fit(PICTURES, LABELS)
    with pytest.raises(ValueError, match=r"parameters='all'.*last layer alone"):
        DenseClassifier(linear(network, parameters="all")).fit(PICTURES, LABELS)
    with pytest.raises(ValueError, match=r"\(4, 4\), but the network has \(8, 8\).*resize"):
        DenseClassifier(linear(network)).fit(PICTURES, LABELS[:, ::2, ::2])
    with pytest.raises(ValueError, match="X has 12 rows, but y has 3"):
        DenseClassifier(linear(network)).fit(PICTURES, LABELS[:3])
    with pytest.raises(ValueError, match="No place has a label"):
        DenseClassifier(linear(network)).fit(PICTURES, np.full_like(LABELS, -100))
    with pytest.raises(ValueError, match="y is None, and X is no data set"):
        DenseClassifier(linear(network)).fit(PICTURES)
    with pytest.raises(TypeError, match="holds no trained network"):
        DenseClassifier(QUAMClassifier()).fit(PICTURES, LABELS)


# -- a number for each row -----------------------------------------------------------------


def test_numbers_of_rows():
    maps = RANDOM.random(size=(4, 3, 5))
    u = Uncertainty(maps, 2 * maps, 3 * maps)
    for how, reduce in {"mean": np.mean, "sum": np.sum, "max": np.max}.items():
        np.testing.assert_allclose(u.per_row(how).epistemic, 2 * reduce(maps, axis=(1, 2)))
    ranked = np.sort(maps.reshape(4, -1), axis=1)
    np.testing.assert_array_equal(u.per_row("quantile", quantile=0.5).aleatoric, ranked[:, 7])
    for how in ("mean", "sum"):
        a_row = u.per_row(how)
        np.testing.assert_allclose(a_row.total, a_row.aleatoric + a_row.epistemic)
    assert u.per_row().to_frame().shape == (4, 3)
    with pytest.raises(ValueError, match=r"several numbers.*u.per_row"):
        u.to_frame()
    with pytest.raises(ValueError, match="none of 'mean', 'sum'"):
        u.per_row("median")
    with pytest.raises(ValueError, match="not between 0 and 1"):
        u.per_row("quantile", quantile=2)


@pytest.mark.parametrize("how", ["mean", "sum", "max", "quantile"])
def test_what_is_masked_or_infinite_in_a_row(how):
    values = np.array([[0.1, np.nan], [np.nan, np.nan], [0.2, 1e300]])
    found = Uncertainty(values, values, values).per_row(how)
    np.testing.assert_array_equal(found.epistemic, [0.1, np.nan, 1e300])
    np.testing.assert_array_equal(found.beyond_range, [False, False, True])
