"""CIFAR-10: a ResNet-20 with batch normalisation and skip connections, and images of other kinds.

The network was trained by others on the 50,000 training images, of which 15,000 are at hand; QUAM
is told how many there were. CIFAR-100 is near, textures are far; Tiny-ImageNet shows some of
CIFAR-10's classes, and stays as it is. All methods judge the last layer, which is what QUAM
searches by default, on the features of the others, which are computed once: speeds are without
them. Methods that train on, and the members of the ensemble, change the last layer alone: to train
these networks anew takes days on a processor. Then QUAM searches the last block, the batch
normalisations or low-rank changes of all layers, in the whole network: on a few
images, with the first training images only, two targets and short searches, since each of them
runs the network on many training images. The last layer alone, searched alike, stands beside it.

"Human" columns are rank correlations with the entropy of the labels that about 50 people gave to
each test image: aleatoric uncertainty should tell where people disagree, epistemic need not.

Settings were chosen on the textures alone, against 500 test images that are not reported
(``--tune``): ranks leave the textures out.

The folder of the data holds ``cifar10_resnet20.npz`` (net/<name>, train_x, train_y, test_x, test_y,
test_human, cifar100_test, textures, tiny_imagenet).

    python -m benchmarks.scale.cifar10 --data DIR
"""

import numpy as np
import torch
from torch import nn
from torch.nn.functional import pad, relu

from .case import FEW, Case, Members, shuffled, trained_heads
from .run import EVERY, benchmark

N_TRAINING_ROWS = 50_000
N_TUNING = 500
N_MEMBERS = 5
TRAINING = {"lr": 3e-3, "weight_decay": 1e-2, "n_epochs": 20, "batch_size": 256}
OTHERS = ("textures", "cifar100_test", "tiny_imagenet")
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# For searches in the whole network: training images, and images to judge of each kind.
N_WHOLE, N_FEW = 2000, 24
SHORT = {"search__targets": 2, "search__n_rows": 16, "search__n_steps": 4}
LAST, WHOLE = "last layer", "whole network"
PARAMETERS = {
    "QUAM, last layer": {"parameters": "last_layer"},
    "QUAM, last block": {"parameters": ["layer3.2.*", "linear.*"]},
    "QUAM, norm": {"parameters": "norm"},
    "QUAM, LoRA": {"parameters": "lora"},
}
VARIANTS = {
    "QUAM, temperature 1": {"temperature": 1.0},
    "QUAM, temperature 10": {"temperature": 10.0},
    "QUAM, temperature 100": {"temperature": 100.0},
    "QUAM, goal 16": {"search__goal": 16.0},
    "QUAM, prior precision 0.01": {"search__prior_precision": 0.01},
    "QUAM, 512 rows": {"search__n_rows": 512},
    "QUAM, linear search, temperature 30": {"search": "linear", "temperature": 30.0},
}


class Block(nn.Module):
    def __init__(self, n_inputs, n_outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(n_inputs, n_outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(n_outputs)
        self.conv2 = nn.Conv2d(n_outputs, n_outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(n_outputs)
        self.stride, self.n_missing = stride, (n_outputs - n_inputs) // 2

    def forward(self, x):
        changed = self.bn2(self.conv2(relu(self.bn1(self.conv1(x)))))
        if self.stride > 1:
            x = pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.n_missing, self.n_missing))
        return relu(changed + x)


class ResNet20(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = self.layer(16, 16, 1)
        self.layer2 = self.layer(16, 32, 2)
        self.layer3 = self.layer(32, 64, 2)
        self.linear = nn.Linear(64, 10)

    @staticmethod
    def layer(n_inputs, n_outputs, stride):
        first = Block(n_inputs, n_outputs, stride)
        return nn.Sequential(first, Block(n_outputs, n_outputs, 1), Block(n_outputs, n_outputs, 1))

    def features(self, x):
        x = self.layer3(self.layer2(self.layer1(relu(self.bn1(self.conv1(x))))))
        return x.mean(dim=(2, 3))

    def forward(self, x):
        return self.linear(self.features(x))


def scaled(images):
    found = (images.astype(np.float32) / 255 - MEAN) / DEVIATION
    return np.ascontiguousarray(found.transpose(0, 3, 1, 2), dtype=np.float32)


def features_of(network, X):
    with torch.no_grad():
        parts = [network.features(part) for part in torch.tensor(X).split(500)]
    return torch.cat(parts).numpy()


def entropy(distributions):
    logs = np.log(np.where(distributions > 0, distributions, 1.0))
    return -(distributions * logs).sum(axis=1)


def load(folder, case, tuning):
    with np.load(folder / "cifar10_resnet20.npz", allow_pickle=False) as data:
        network = ResNet20()
        state = {name[4:]: torch.tensor(data[name]) for name in data if name.startswith("net/")}
        network.load_state_dict(state, strict=False)
        X, y = scaled(data["train_x"]), data["train_y"].astype(np.int64)
        X_test, y_test = shuffled(scaled(data["test_x"]), data["test_y"].astype(np.int64))
        people = shuffled(entropy(data["test_human"]))
        names = OTHERS[:1] if tuning else OTHERS
        others = {name: shuffled(scaled(data[name])) for name in names}
    network.eval()
    rows = slice(N_TUNING) if tuning else slice(N_TUNING, None)
    X_test, y_test, people = X_test[rows], y_test[rows], people[rows]
    given = network
    if case == WHOLE:
        X, y = X[:N_WHOLE], y[:N_WHOLE]
        X_test, y_test, people = X_test[:N_FEW], y_test[:N_FEW], people[:N_FEW]
        others = {name: part[:N_FEW] for name, part in others.items()}
    else:
        given, X, X_test = network.linear, features_of(network, X), features_of(network, X_test)
        others = {name: features_of(network, part) for name, part in others.items()}
    return Case(
        network=given,
        X=X,
        y=y,
        X_test=X_test,
        y_test=y_test,
        others=others,
        members=Members(lambda: trained_heads(X, y, 10, N_MEMBERS, **TRAINING)),
        arguments={
            "QUAM": {"n_training_rows": N_TRAINING_ROWS},
            "MCDropout": {"p": 0.2},
            **{name: {**SHORT, **own} for name, own in PARAMETERS.items()},
        },
        disagreement=people,
    )


if __name__ == "__main__":
    benchmark(
        __doc__,
        "cifar10",
        load,
        settings={
            "cases": [LAST, WHOLE],
            "members": N_MEMBERS,
            "training": TRAINING,
            "whole": [N_WHOLE, N_FEW, SHORT],
        },
        methods={LAST: EVERY, WHOLE: [f"{name}{FEW}" for name in PARAMETERS]},
        few=60,
        variants=VARIANTS,
    )
