"""ImageNet: the last layer of an EfficientNet-lite0, and images of other kinds.

The given network is the last layer, on the features of all others. Its training images are not at
hand, as it is with every network from elsewhere: four validation images of each class stand for
them, and methods that take the number of training samples are told it. Of the fifth image of each
class some are held out and others judged. Scenes and plants are near (some show what is a class of
ImageNet, too, and stay), x-rays far. Settings were tried on textures, which are left out. Features
that occur twice count once.

MC dropout drops features before the last layer. Members of the ensemble are last layers with other
initial values, trained on the same four images of each class; so are those of the mixture.

The folder of the data holds ``imagenet_lite0.npz`` (features, label, image_in_class, head_weight,
head_bias, ood_textures, ood_scenes, ood_plants, ood_chest_xray).
"""

import numpy as np
import torch
from torch import nn

from .case import Case, Family, Members, shuffled, trained_heads

N_MEMBERS = 5
TRAINING = {"lr": 3e-3, "weight_decay": 0.3, "n_epochs": 12, "batch_size": 256}
NEAR, FAR = ("scenes", "plants"), ("chest_xray",)
TUNING = ("textures",)


def load(folder, case, tuning=False):  # noqa: ARG001
    with np.load(folder / "imagenet_lite0.npz", allow_pickle=False) as data:
        features, y = data["features"].astype(np.float32), data["label"].astype(np.int64)
        # While tuning, the fourth image of each class is judged, and textures are.
        place = data["image_in_class"]
        is_known, is_test = (place < 3, place == 3) if tuning else (place < 4, place == 4)
        network = nn.Linear(features.shape[1], len(data["head_weight"]))
        with torch.no_grad():
            network.weight.copy_(torch.tensor(data["head_weight"]))
            network.bias.copy_(torch.tensor(data["head_bias"]))
        others = {
            name: shuffled(np.unique(data[f"ood_{name}"], axis=0)).astype(np.float32)
            for name in (TUNING if tuning else (*NEAR, *FAR))
        }
    X, y_known = features[is_known], y[is_known]
    X_test, y_test = shuffled(features[is_test], y[is_test])
    members = Members(lambda: trained_heads(X, y_known, len(network.weight), N_MEMBERS, **TRAINING))
    return Case(network.eval(), X, y_known, X_test, y_test, others, members)


FAMILY = Family(
    name="imagenet",
    title="ImageNet",
    load=load,
    cases=("EfficientNet-lite0",),
    near=NEAR,
    far=FAR,
    rows=(400, 600, 300),
    settings={"members": N_MEMBERS, "training": TRAINING},
    arguments={
        "QUAM": {"n_training_rows": 1_281_167},
        "MCDropout": {"p": 0.2},
        "MixtureLaplace": {"n_samples": 50},
    },
)
