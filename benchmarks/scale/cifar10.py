"""CIFAR-10: a ResNet-20 with batch normalisation and skip connections, and images of other kinds.

The network was trained by others on the 50,000 training images, of which 15,000 are at hand; QUAM
is told how many there were. CIFAR-100 is near, and so is Tiny-ImageNet, which shows some of
CIFAR-10's classes; MNIST's digits are far. Settings were tried on textures, which are left out. All
methods judge the last layer, which is what QUAM searches by default, on the features of the others,
which are computed once: speeds are without them. Methods that train on, and the members of the
ensemble, change the last layer alone: to train these networks anew takes days on a processor.

"Human" columns are rank correlations with the entropy of the labels that about 50 people gave to
each test image: aleatoric uncertainty should tell where people disagree, epistemic need not.

The folder of the data holds ``cifar10_resnet20.npz`` (net/<name>, train_x, train_y, test_x, test_y,
test_human, textures, cifar100_test, tiny_imagenet) and ``mnist.npz``.
"""

import numpy as np
import torch
from torch import nn
from torch.nn.functional import pad, relu

from .case import Case, Family, Members, shuffled, trained_heads

N_MEMBERS = 5
N_OTHERS = 500
N_TUNING = 500  # test images that settings were tried on
TRAINING = {"lr": 3e-3, "weight_decay": 1e-2, "n_epochs": 20, "batch_size": 256}
NEAR = ("cifar100_test", "tiny_imagenet")
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


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


def load(folder, case, tuning=False):  # noqa: ARG001
    with np.load(folder / "cifar10_resnet20.npz", allow_pickle=False) as data:
        network = ResNet20()
        state = {name[4:]: torch.tensor(data[name]) for name in data if name.startswith("net/")}
        network.load_state_dict(state, strict=False)
        network.eval()
        X, y = features_of(network, scaled(data["train_x"])), data["train_y"].astype(np.int64)
        X_test, y_test, people = (
            part[:N_TUNING] if tuning else part[N_TUNING:]
            for part in shuffled(
                scaled(data["test_x"]), data["test_y"].astype(np.int64), entropy(data["test_human"])
            )
        )
        near = ("textures",) if tuning else NEAR
        others = {name: scaled(shuffled(data[name], n_rows=N_OTHERS)) for name in near}
    with np.load(folder / "mnist.npz", allow_pickle=False) as data:
        digits = np.pad(shuffled(data["x_test"], n_rows=N_OTHERS), ((0, 0), (2, 2), (2, 2)))
        others["MNIST"] = scaled(np.repeat(digits[..., None], 3, axis=3))
    return Case(
        network=network.linear,
        X=X,
        y=y,
        X_test=features_of(network, X_test),
        y_test=y_test,
        others={name: features_of(network, part) for name, part in others.items()},
        members=Members(lambda: trained_heads(X, y, 10, N_MEMBERS, **TRAINING)),
        disagreement=people,
    )


FAMILY = Family(
    name="cifar10",
    title="CIFAR-10",
    load=load,
    cases=("last layer",),
    near=NEAR,
    far=("MNIST",),
    rows=(500, 1000, N_OTHERS),
    settings={"members": N_MEMBERS, "training": TRAINING},
    arguments={"QUAM": {"n_training_rows": 50_000}, "MCDropout": {"p": 0.2}},
)
