"""Data sets, collators and networks of several tasks, from the packages themselves.

Run by ``make test-networks``. All models are made from configurations: nothing is downloaded.
"""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from sklearn_quam import QUAMClassifier, ReferenceClassifier
from sklearn_quam.multioutput import DenseClassifier, MultiLabelClassifier

datasets = pytest.importorskip("datasets")
torchvision = pytest.importorskip("torchvision")
transformers = pytest.importorskip("transformers")

NAMES = ["sport", "world", "art"]
N, LENGTH, N_TOKENS = 60, 8, 40
RANDOM = np.random.default_rng(0)
LENGTHS = RANDOM.integers(3, LENGTH + 1, size=N)
ROWS = [RANDOM.integers(3, N_TOKENS, size=length).tolist() for length in LENGTHS]
Y = np.array([row[0] % 3 for row in ROWS])
MASK = (np.arange(LENGTH) < LENGTHS[:, None]).astype(np.int64)
IDS = np.array([row + [0] * (LENGTH - len(row)) for row in ROWS])
TOKENS = {"input_ids": IDS, "attention_mask": MASK}
IMAGES = RANDOM.normal(size=(6, 3, 32, 32)).astype(np.float32)

pytestmark = pytest.mark.filterwarnings("ignore")


def bert(kind="BertForSequenceClassification", **options):
    config = transformers.BertConfig(
        vocab_size=N_TOKENS,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        id2label=dict(enumerate(NAMES)),
        **options,
    )
    torch.manual_seed(0)
    return getattr(transformers, kind)(config).eval()


def tokenizer():
    words = {"[PAD]": 0, "[UNK]": 1} | {f"w{number}": number for number in range(2, N_TOKENS)}
    from tokenizers import Tokenizer, models, pre_tokenizers

    own = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    own.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=own, pad_token="[PAD]")


TEXTS = [" ".join(f"w{number}" for number in row) for row in ROWS]


def method(network, **options):
    return QUAMClassifier(network, search="linear", random_state=0, **options)


@pytest.fixture(scope="module")
def expected():
    network = bert()
    est = method(network).fit(TOKENS, Y)
    return network, est.predict_uncertainty(TOKENS)


def test_tokenizers(expected):
    tokens = tokenizer()(TEXTS, padding=True, return_tensors="np")
    tokens.pop("token_type_ids", None)
    np.testing.assert_array_equal(tokens["input_ids"], IDS)
    est = method(expected[0]).fit(tokens, np.array(NAMES)[Y])
    np.testing.assert_array_equal(est.classes_, NAMES)
    np.testing.assert_allclose(est.predict_uncertainty(tokens), expected[1], rtol=1e-4)
    with pytest.raises(ValueError, match=r"different lengths. Pad them: padding=True"):
        method(expected[0]).fit(tokenizer()(TEXTS, return_token_type_ids=False), Y)
    with pytest.raises(ValueError, match="X holds texts"):
        method(expected[0]).fit(TEXTS, Y)
    with pytest.raises(ValueError, match="X holds 'labels'"):
        method(expected[0]).fit({**TOKENS, "labels": Y}, Y)


@pytest.mark.parametrize("form", [None, "torch", "numpy"])
def test_data_sets(form, expected):
    table = datasets.Dataset.from_dict(
        {"text": TEXTS, "label": Y, **{name: part.tolist() for name, part in TOKENS.items()}}
    )
    table = table.cast_column("label", datasets.ClassLabel(names=NAMES)).with_format(form)
    est = method(expected[0]).fit(table, None)
    np.testing.assert_array_equal(est.classes_, NAMES)
    np.testing.assert_allclose(est.predict_uncertainty(table), expected[1], rtol=1e-4)
    by_hand = method(expected[0]).fit(table.remove_columns("label"), Y)
    np.testing.assert_allclose(by_hand.predict_uncertainty(table), expected[1], rtol=1e-4)
    with pytest.raises(TypeError, match="walked through once"):
        method(expected[0]).fit(table.to_iterable_dataset(), Y)
    with pytest.raises(ValueError, match="several data sets"):
        method(expected[0]).fit(datasets.DatasetDict({"train": table}), None)


def test_collators(expected):
    columns = {"input_ids": ROWS, "attention_mask": [[1] * len(row) for row in ROWS], "label": Y}
    table = datasets.Dataset.from_dict(columns)
    collate = transformers.DataCollatorWithPadding(tokenizer())
    loader = DataLoader(table, batch_size=8, collate_fn=collate)
    est = method(expected[0]).fit(loader, None)
    u = est.predict_uncertainty(loader)
    np.testing.assert_allclose(u.epistemic, expected[1].epistemic, rtol=0.01)


def test_folders(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for number in range(12):
        folder = tmp_path / NAMES[number % 3]
        folder.mkdir(exist_ok=True)
        pixels = RANDOM.integers(0, 255, size=(32, 32, 3), dtype=np.uint8)
        image.fromarray(pixels).save(folder / f"{number}.png")
    torch.manual_seed(0)
    network = torchvision.models.resnet18(num_classes=3).eval()
    data = torchvision.datasets.ImageFolder(tmp_path, torchvision.transforms.ToTensor())
    est = ReferenceClassifier(network).fit(data, None)
    np.testing.assert_array_equal(est.classes_, sorted(NAMES))
    assert set(est.predict(data)) <= set(NAMES)
    paths = [path for path, _ in data.samples]
    with pytest.raises(ValueError, match=r"paths such as .*ImageFolder"):
        ReferenceClassifier(network).fit(paths, [0] * len(paths))


def test_polars():
    polars = pytest.importorskip("polars")
    X = RANDOM.normal(size=(30, 4)).astype(np.float32)
    network = torch.nn.Linear(4, 3)
    est = ReferenceClassifier(network).fit(polars.DataFrame(X), Y[:30])
    np.testing.assert_array_equal(est.predict(polars.DataFrame(X)), est.predict(X))


def test_several_labels():
    network = bert(problem_type="multi_label_classification")
    labels = RANDOM.integers(0, 2, size=(N, 3))
    est = MultiLabelClassifier(method(network)).fit(TOKENS, labels)
    with torch.no_grad():
        logits = network(**{name: torch.tensor(part) for name, part in TOKENS.items()}).logits
    np.testing.assert_allclose(est.predict_proba(TOKENS), logits.sigmoid(), rtol=1e-4)
    assert est.predict_uncertainty(TOKENS).epistemic.shape == (N, 3)


def test_tokens():
    network = bert("BertForTokenClassification")
    tags = np.where(MASK, IDS % 3, -100)
    est = DenseClassifier(method(network)).fit(TOKENS, tags)
    with torch.no_grad():
        logits = network(**{name: torch.tensor(part) for name, part in TOKENS.items()}).logits
    counts = MASK == 1
    np.testing.assert_allclose(
        est.predict_proba(TOKENS)[counts], logits.softmax(-1).numpy()[counts], rtol=1e-4
    )
    assert np.isfinite(est.predict_uncertainty(TOKENS).per_row("max").epistemic).all()


def fcn():
    make = torchvision.models.segmentation.fcn_resnet50
    return make(weights=None, weights_backbone=None, num_classes=3)


def deeplab():
    make = torchvision.models.segmentation.deeplabv3_mobilenet_v3_large
    return make(weights=None, weights_backbone=None, num_classes=3)


def segformer():
    config = transformers.SegformerConfig(
        hidden_sizes=[8, 8, 16, 16], depths=[1] * 4, decoder_hidden_size=16, num_labels=3
    )
    return transformers.SegformerForSemanticSegmentation(config)


@pytest.mark.parametrize(("make", "output"), [(fcn, "out"), (deeplab, "out"), (segformer, None)])
def test_segmentation(make, output):
    torch.manual_seed(0)
    network = make().eval()
    with torch.no_grad():
        scores = network(torch.tensor(IMAGES))
    scores = scores["out"] if output else scores.logits
    proba = scores.softmax(dim=1).movedim(1, -1).numpy()
    est = DenseClassifier(method(network, output=output), max_places=2000, random_state=0)
    est.fit(IMAGES, RANDOM.integers(0, 3, size=proba.shape[:-1]))
    np.testing.assert_allclose(est.predict_proba(IMAGES), proba, atol=1e-4)
    assert est.predict_uncertainty(IMAGES[:2]).epistemic.shape == (2, *proba.shape[1:3])
