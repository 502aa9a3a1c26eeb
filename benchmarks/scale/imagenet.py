"""ImageNet: the last layer of an EfficientNet-lite0, and images of other kinds.

The given network is the last layer, on the features of all others. Its training images are not at
hand, as it is with every network from elsewhere: four validation images of each class stand for
them, and methods that take the number of training rows are told it. The fifth image of each class
is the test set. Textures, scenes, plants and x-rays are other kinds; some textures, scenes and
plants show what is a class of ImageNet too, and stay. Flickr's images are of the known classes, a
natural shift: nothing says that they should be found. Features that occur twice count once.

MC dropout drops features before the last layer. Members of the ensemble are last layers with other
initial values, trained on the same four images of each class; so are those of the mixture.

Settings were chosen on the textures alone, against the fourth image of each class, with three to
stand for the training data (``--tune``): ranks leave the textures out.

The folder of the data holds ``imagenet_lite0.npz`` (features, label, image_in_class, head_weight,
head_bias, ood_textures, ood_scenes, ood_plants, ood_chest_xray, shift_flickr).

    python -m benchmarks.scale.imagenet --data DIR
"""

import numpy as np
import torch
from torch import nn

from .case import Case, Members, shuffled, trained_heads
from .run import benchmark

N_TRAINING_ROWS = 1_281_167
N_MEMBERS = 5
N_OTHERS = 600  # of each kind
TRAINING = {"lr": 3e-3, "weight_decay": 0.3, "n_epochs": 12, "batch_size": 256}
OTHERS = ("ood_textures", "ood_scenes", "ood_plants", "ood_chest_xray", "shift_flickr")
TUNING = OTHERS[:1]
# What "--tune" tries.
VARIANTS = {
    "QUAM, temperature 1": {"temperature": 1.0},
    "QUAM, temperature 300": {"temperature": 300.0},
    "QUAM, goal 8": {"search__goal": 8.0},
    "QUAM, goal 16": {"search__goal": 16.0},
    "QUAM, prior precision 0.1": {"search__prior_precision": 0.1},
    "QUAM, 4,000 training rows": {"n_training_rows": None},
    "QUAM, linear search, temperature 0.1": {"search": "linear", "temperature": 0.1},
    "QUAM, linear search, temperature 10": {"search": "linear", "temperature": 10.0},
    "QUAM, linear search, goal 8": {"search": "linear", "search__goal": 8.0},
    "QUAM, linear search, 4,000 training rows": {"search": "linear", "n_training_rows": None},
    "QUAM, linear search, prior precision 0.1": {
        "search": "linear",
        "search__prior_precision": 0.1,
    },
    "QUAM, linear search, 30 targets": {"search": "linear", "search__targets": 30},
}


def load(folder, case, tuning):  # noqa: ARG001
    with np.load(folder / "imagenet_lite0.npz", allow_pickle=False) as data:
        features, y = data["features"].astype(np.float32), data["label"].astype(np.int64)
        place = data["image_in_class"]
        network = nn.Linear(features.shape[1], len(data["head_weight"]))
        with torch.no_grad():
            network.weight.copy_(torch.tensor(data["head_weight"]))
            network.bias.copy_(torch.tensor(data["head_bias"]))
        others = {
            name.partition("_")[2]: shuffled(np.unique(data[name], axis=0), n_rows=N_OTHERS)
            for name in (TUNING if tuning else OTHERS)
        }
    others = {name: part.astype(np.float32) for name, part in others.items()}
    is_known, is_test = (place < 3, place == 3) if tuning else (place < 4, place == 4)
    X, y_known = features[is_known], y[is_known]
    X_test, y_test = shuffled(features[is_test], y[is_test])
    members = Members(lambda: trained_heads(X, y_known, len(network.weight), N_MEMBERS, **TRAINING))
    arguments = {
        "QUAM": {"n_training_rows": N_TRAINING_ROWS},
        "MCDropout": {"p": 0.2},
        "MixtureLaplace": {"n_samples": 50},
    }
    return Case(network.eval(), X, y_known, X_test, y_test, others, members, arguments)


if __name__ == "__main__":
    benchmark(
        __doc__,
        "imagenet",
        load,
        settings={
            "cases": ["EfficientNet-lite0"],
            "members": N_MEMBERS,
            "others": N_OTHERS,
            "training": TRAINING,
        },
        few=4,
        variants=VARIANTS,
    )
