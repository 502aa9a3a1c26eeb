"""MNIST, its look-alikes, and LeNets that were trained on it.

The folder of the data holds npz files: ``mnist`` (x_train, y_train, x_test, y_test),
``fashion_mnist`` (x_tune, x_test), ``kmnist``, ``emnist_letters`` and ``omniglot`` (x_test), images
of 28 x 28 bytes, and ``lenet_mnist_seed42`` and ``..142`` with the weights of ten networks each.
"""

import numpy as np
import torch
from torch import nn

OOD_SETS = {
    "FMNIST": "fashion_mnist",
    "KMNIST": "kmnist",
    "EMNIST": "emnist_letters",
    "OMNIGLOT": "omniglot",
}
N_MEMBERS = 10


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first_layer = nn.Conv2d(1, 6, 5)
        self.second_layer = nn.Sequential(nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(6, 16, 5))
        self.projection = nn.Sequential(
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(256, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Dropout(0.2),
        )
        self.out = nn.Linear(84, 10)

    def forward(self, x):
        return self.out(self.projection(self.second_layer(self.first_layer(x))))


def load_networks(folder, seed):
    """Return ten networks that were trained alike."""
    networks = []
    with np.load(folder / f"lenet_mnist_seed{seed}.npz", allow_pickle=False) as weights:
        for member in range(N_MEMBERS):
            prefix = f"{member}/"
            state = {
                k[len(prefix) :]: torch.tensor(weights[k]) for k in weights if k.startswith(prefix)
            }
            network = LeNet()
            network.load_state_dict(state)
            networks.append(network.eval())
    return networks


def scaled(images):
    return ((images.astype(np.float32) / 255 - 0.1307) / 0.3081)[:, None]


def load_training_data(folder, seed):
    """Return what the networks of a seed were trained on, and what was held out."""
    with np.load(folder / "mnist.npz", allow_pickle=False) as mnist:
        X, y = scaled(mnist["x_train"]), mnist["y_train"].astype(np.int64)
    held_out = np.random.default_rng(seed).choice(len(X), 10_000, replace=False)
    used = np.ones(len(X), dtype=bool)
    used[held_out] = False
    return X[used], y[used], X[held_out], y[held_out]


def load_images(folder, name, n_images, part="x_test"):
    """Return randomly chosen images of a data set, the same in every run."""
    with np.load(folder / f"{name}.npz", allow_pickle=False) as data:
        images = data[part]
    chosen = np.random.default_rng(0).permutation(len(images))[:n_images]
    return scaled(images[chosen])
