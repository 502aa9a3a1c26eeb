"""The guide's pages on networks and tasks: their code runs, and does what is said.

Blocks of code with a name load networks with packages that are not installed here. What comes from
these packages has the interface that the page is about, and nothing else.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from sklearn_quam import QUAMClassifier

from . import hugging_face as hf
from .multioutput.test_dense import LABELS as MASKS
from .multioutput.test_dense import PICTURES, TAGS, TEXTS, Segments, Tagger
from .multioutput.test_dense import trained as trained_on_places
from .multioutput.test_multilabel import Y as SEVERAL
from .multioutput.test_multilabel import trained as trained_on_labels
from .networks import BINARY, IMAGES, LABELS, TARGET, X_NEW, X, train
from .test_documented_code import DOCS, code_blocks

pytestmark = pytest.mark.filterwarnings(
    "ignore::sklearn_quam.exceptions.PoorFitWarning",
    "ignore::sklearn_quam.exceptions.CollapsedWeightsWarning",
)


@pytest.fixture(autouse=True)
def _seed():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def run(page, **names):
    """Run the code of a page, and return what it defines."""
    blocks = code_blocks(DOCS / "guide" / f"{page}.rst")
    assert blocks
    for block in blocks:
        exec(block, names)
    return SimpleNamespace(**names)


def test_hugging_face():
    parts, y = hf.texts()
    lines = [str(number) for number in range(len(y))]

    def tokenizer(texts, padding, return_tensors):
        assert (padding, return_tensors) == (True, "np")
        return hf.Tokens(
            {name: part[[int(text) for text in texts]] for name, part in parts.items()}
        )

    model = hf.trained(hf.TextClassifier(), parts, y)
    found = run(
        "hugging_face",
        model=model,
        tokenizer=tokenizer,
        texts=lines,
        labels=hf.WORDS[y],
        new_texts=lines[:5],
        dataset=hf.Table({"text": lines, "label": y, **parts}, hf.WORDS),
        collator=_padded,
    )
    assert found.u.epistemic.shape == (len(y),)
    np.testing.assert_array_equal(found.est.classes_, hf.WORDS)


def _padded(items):
    batch = {key: torch.tensor([item[key] for item in items]) for key in ("input_ids", "label")}
    batch["attention_mask"] = torch.tensor([item["attention_mask"] for item in items])
    return batch


class Folder(Dataset):
    """Has what torchvision.datasets.ImageFolder has."""

    classes = ("art", "sport", "world")

    def __len__(self):
        return len(IMAGES)

    def __getitem__(self, number):
        return torch.tensor(IMAGES[number]), int(LABELS[number])


def test_timm_and_torchvision():
    body = [nn.Conv2d(2, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    model = train(nn.Sequential(*body, nn.Linear(4, 3)), IMAGES, LABELS)
    found = run(
        "timm_torchvision",
        model=model.eval(),
        images=IMAGES,
        labels=LABELS,
        new_images=IMAGES[:4],
        folder=Folder(),
    )
    assert set(found.answers) <= set(Folder.classes)


def test_lightning():
    def trained(module):
        optimizer = module.configure_optimizers()
        for _ in range(30):
            optimizer.zero_grad()
            module.training_step((torch.tensor(X), torch.tensor(LABELS)), 0).backward()
            optimizer.step()
        return module

    found = run("lightning", LightningModule=nn.Module, trained=trained, X=X, y=LABELS, X_new=X_NEW)
    again = found.est.predict_uncertainty(X_NEW)
    np.testing.assert_allclose(again.epistemic, found.u.epistemic, rtol=1e-5)


def test_segmentation_and_tokens():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    network = trained_on_places(Segments(), {"x": PICTURES}, MASKS)
    found = run(
        "segmentation",
        network=network,
        images=PICTURES,
        masks=np.where(PICTURES[:, 0] > 2, 255, MASKS),
        new_images=PICTURES[:3],
        tagger=trained_on_places(Tagger(), TEXTS, TAGS),
        tokens=TEXTS,
        tags=TAGS,
    )
    assert found.u.epistemic.shape == MASKS[:3].shape
    assert sorted(found.worst) == [0, 1, 2]
    np.testing.assert_array_equal(np.isnan(found.u_tokens.total), TEXTS["attention_mask"] == 0)
    surface = found.display.surface_
    np.testing.assert_allclose(surface.get_array().ravel(), found.u.epistemic[0].ravel())
    top, bottom = found.ax.get_ylim()
    assert top > bottom  # rows count from the top, as in a picture
    matplotlib.pyplot.close("all")


def test_multilabel():
    network = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    found = run(
        "multilabel",
        network=trained_on_labels(network, X, SEVERAL),
        X=X[:40],
        Y=SEVERAL[:40],
        X_held_out=X[40:],
        Y_held_out=SEVERAL[40:],
        X_new=X_NEW,
    )
    assert found.sets.shape == (len(X_NEW), 3, 2)
    assert found.doubtful.shape == (len(X_NEW),)
    assert set(np.unique(found.answers)) <= {-1, 0, 1}


class Graph(nn.Module):
    """A network of nodes that look at their neighbours."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(4, 6), nn.Linear(6, 3)

    def features(self, x, edge_index):
        near = x.index_add(0, edge_index[1], x[edge_index[0]])
        return self.layer(near).tanh()

    def forward(self, x, edge_index):
        return self.head(self.features(x, edge_index))


class Backbone(nn.Module):
    """A network that is worth running once."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.layer(x).tanh())


def test_the_head_alone():
    gnn, x = Graph(), torch.tensor(X)
    edges = torch.stack([torch.arange(59), torch.arange(1, 60)])
    optimizer = torch.optim.Adam(gnn.parameters(), lr=0.05)
    for _ in range(40):
        optimizer.zero_grad()
        nn.functional.cross_entropy(gnn(x, edges), torch.tensor(LABELS)).backward()
        optimizer.step()
    net = train(Backbone(), X, LABELS)
    cumulative = nn.Sequential(nn.Linear(4, 1), nn.Linear(1, 2))
    cumulative[1].weight.data.fill_(1.0)
    cumulative[1].bias.data = torch.tensor([1.0, -1.0])
    quantiles = train(nn.Linear(4, 3), X, np.column_stack([TARGET - 1, TARGET, TARGET + 1]))
    lm = SimpleNamespace(head=nn.Linear(4, 50, bias=False))
    found = run(
        "head_alone",
        net=net,
        X_train=X[:40],
        y_train=LABELS[:40],
        X_new=X[40:],
        gnn=gnn,
        x=x,
        edge_index=edges,
        y=LABELS,
        train_nodes=np.arange(40),
        new_nodes=np.arange(40, 60),
        lm=lm,
        choices=[7, 12],
        hidden_states=X,
        answers=BINARY,
        cumulative=cumulative,
        X=X,
        grades=LABELS,
        quantiles=quantiles,
        values=TARGET,
    )
    np.testing.assert_allclose(found.same_features, found.features)
    whole = QUAMClassifier(net, parameters="last_layer", random_state=0).fit(X[:40], LABELS[:40])
    same = whole.predict_uncertainty(X[40:]).epistemic
    np.testing.assert_allclose(found.u_head.epistemic, same, rtol=1e-4)
    above = cumulative(x).sigmoid().detach().numpy()
    proba = np.column_stack([1 - above[:, 0], above[:, 0] - above[:, 1], above[:, 1]])
    proba = proba.clip(1e-7)
    expected = proba / proba.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found.est.predict_proba(X), expected, rtol=1e-4, atol=1e-6)
    middle = quantiles(x)[:, 1].detach().numpy()
    np.testing.assert_allclose(found.regressor.predict(X), middle, rtol=1e-5)
    assert (found.u_values.epistemic > 0).all()
