"""The published organisation of the search against the natural search, on the LeNet of MNIST.

The published search takes one image at a time and trains a copy of the whole network for each of
the ten classes: Adam, cross-entropy of the class at the image plus a penalty times the loss of a
mini-batch of 128 training rows, penalty and learning rate changing every few steps, for two epochs
of the 50,000 training rows, which is 782 steps. It is written here in plain torch. A few steps of a
few images are measured, and their time is extrapolated linearly to all steps. Schedule and step
size only stand for the published ones, and what its search would find is not measured: there is
no AUROC of it here. Beside it, in the same run and with as many threads, the natural search with
default arguments judges images of MNIST and of four other kinds. It does not change the whole
network but what ``parameters="auto"`` chooses: the ratio of speeds is that of two ways to answer
the same question, not of two programs that compute the same. ``fit``, which natural search needs
once for all rows, is not part of it; the results hold its seconds.

    python -m benchmarks.peer_loop --data DIR
"""

import copy
import time

import numpy as np
import torch
from torch.nn.functional import cross_entropy, log_softmax

from .paper.lenet import OOD_SETS, load_images, load_networks, load_training_data
from .paper.runs import options, report, run
from .searches import auroc, quam

SEED = 42
N_CLASSES = 10
BATCH_SIZE = 128
N_EPOCHS = 2
SCHEDULE = {"lr": 5e-3, "lr_decay": 1.4, "penalty": 6.0, "penalty_growth": 1.9, "changes": 14}
N_WARM_UP = 3  # steps that are not measured


def peer_search(network, X, y, image, n_steps, n_all_steps):
    """Search one image, a copy of the network for each class; return models and seconds a step.

    One optimizer moves all copies: Adam treats each value by itself, so it does what an optimizer
    for each would do, in less time.
    """
    models = [copy.deepcopy(network) for _ in range(N_CLASSES)]
    optimizer = torch.optim.Adam([p for model in models for p in model.parameters()])
    change_every = n_all_steps // SCHEDULE["changes"]
    generator = torch.Generator().manual_seed(0)
    batches, found = [], []
    for step in range(N_WARM_UP + n_steps):
        if step == N_WARM_UP:
            start = time.perf_counter()
        if not batches:
            batches = list(torch.randperm(len(X), generator=generator).split(BATCH_SIZE))
        rows = batches.pop()
        n_changes = step // change_every
        penalty = SCHEDULE["penalty"] * SCHEDULE["penalty_growth"] ** n_changes
        optimizer.param_groups[0]["lr"] = SCHEDULE["lr"] / SCHEDULE["lr_decay"] ** n_changes
        # Image and mini-batch go through a network together.
        together = torch.cat([image[None], X[rows]])
        optimizer.zero_grad()
        for target, model in enumerate(models):
            logits = model(together)
            loss = cross_entropy(logits[1:], y[rows])
            prediction = log_softmax(logits[0], dim=0)
            (penalty * loss - prediction[target]).backward()
            found.append((prediction.detach(), loss.detach()))
        optimizer.step()
    return found, (time.perf_counter() - start) / n_steps


def judge(chosen):
    """Return the time of both searches, and what the natural one finds."""
    network = load_networks(chosen.data, SEED)[0]
    X, y, _, _ = load_training_data(chosen.data, SEED)
    sets = {"MNIST": "mnist", **OOD_SETS}
    images = {name: load_images(chosen.data, file, chosen.images) for name, file in sets.items()}
    X_new = np.concatenate(list(images.values()))
    natural = quam(network, X, y, X_new, "natural", settings=("given",))

    n_all_steps = N_EPOCHS * -(-len(X) // BATCH_SIZE)
    X_torch, y_torch = torch.tensor(X), torch.tensor(y)
    seconds = [
        peer_search(network, X_torch, y_torch, image, chosen.peer_steps, n_all_steps)[1]
        for image in torch.tensor(images["MNIST"][: chosen.peer_images])
    ]
    scores = np.split(natural["scores"]["given"], len(sets))
    aurocs = {
        name: auroc(np.concatenate([scores[0], own]), chosen.images)
        for name, own in zip(list(sets)[1:], scores[1:], strict=True)
    }
    return {
        "aurocs": aurocs,
        "natural_seconds_per_row": natural["seconds_per_row"],
        "natural_fit_seconds": natural["fit_seconds"],
        "natural_parameters": natural["n_parameters"],
        "peer_parameters": sum(p.numel() for p in network.parameters()),
        "peer_seconds_per_step": float(np.mean(seconds)),
        "peer_steps": n_all_steps,
    }


def main():
    chosen = options(__doc__, data=True, images=200, peer_images=2, peer_steps=40, threads=1)
    torch.set_num_threads(chosen.threads)
    settings = {"batch_size": BATCH_SIZE, "epochs": N_EPOCHS, "schedule": SCHEDULE, "network": SEED}
    settings |= {
        key: getattr(chosen, key) for key in ("images", "peer_images", "peer_steps", "threads")
    }
    path = chosen.out / "peer_loop.json"
    result = run(path, settings, {"LeNet": lambda: judge(chosen)})["LeNet"]
    peer = result["peer_seconds_per_step"] * result["peer_steps"]
    rows = [
        {
            "search": "natural",
            "parameters": result["natural_parameters"],
            **result["aurocs"],
            "rows a second, relative": peer / result["natural_seconds_per_row"],
        },
        {
            "search": "published organisation",
            "parameters": result["peer_parameters"],
            "rows a second, relative": 1.0,
        },
    ]
    report(path, rows, list(rows[0]), {"rows a second, relative": "{:.0f}"})
    print(
        f"Published organisation: measured for {chosen.peer_steps} steps of {chosen.peer_images} "
        f"images and extrapolated linearly to {result['peer_steps']} steps; what it finds was not "
        "measured."
    )


if __name__ == "__main__":
    main()
