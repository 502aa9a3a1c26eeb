"""Memory of ``fit`` on data that are larger than what is kept of them, and sizes of pickles.

``python -m benchmarks.memory`` fits QUAM to 200,000 memory-mapped images of 28 x 28 and to a
table, each time in a process of its own. What is kept of the training data is told beside the
largest memory that the process had, less what it had before ``fit``.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import pickle
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from sklearn_quam import QUAMClassifier

N_CLASSES = 10


def lenet() -> nn.Module:
    """Return two convolutions and three dense layers: the dense ones are searched."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, N_CLASSES),
    )


def mlp() -> nn.Module:
    """Return a network whose first layer is searched, too: the values at the cut are the images."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    )


def table() -> nn.Module:
    """Return a network for a table of 108 columns."""
    return nn.Sequential(nn.Linear(108, 64), nn.ReLU(), nn.Linear(64, 2))


# name -> network, shape of a row, arguments of QUAM
CASES: dict[str, tuple] = {
    "images, LeNet": (lenet, (1, 28, 28), {}),
    "images, LeNet, last layer": (lenet, (1, 28, 28), {"parameters": "last_layer"}),
    "images, MLP": (mlp, (1, 28, 28), {}),
    "table, MLP": (table, (108,), {}),
}


def resident() -> int:
    """Return the bytes of memory that this process holds."""
    status = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in status if line.startswith("VmRSS")).split()[1])


class Peak(threading.Thread):
    """Watches the largest memory of the process."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.before = self.largest = resident()
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.005):
            self.largest = max(self.largest, resident())


def kept(est: QUAMClassifier) -> tuple[int, int]:
    """Return the bytes of the values at the cut, and of all that is kept of the training data."""
    training = est._fitted.models.problem.training
    at_cut = sum(part.nbytes for part in training.rows)
    own = [training.target, training.losses, *est._fitted.models.problem.original_on_training.parts]
    features = est._fitted.models.engine.steps.influence.features
    pointers = {part.data_ptr() for part in training.rows}
    behind = sum(part.nbytes for part in features if part.data_ptr() not in pointers)
    return at_cut, at_cut + behind + sum(part.nbytes for part in own)


def measure(name: str, path: str, answer: multiprocessing.Queue) -> None:
    network, shape, arguments = CASES[name]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rows = np.load(path, mmap_mode="r").reshape(-1, *shape)
    y = np.arange(len(rows)) % (2 if "table" in name else N_CLASSES)
    module = network()
    # Imports and first calls are no part of the data.
    QUAMClassifier(module, **arguments).fit(np.array(rows[:500]), y[:500])
    peak = Peak()
    peak.start()
    start = time.perf_counter()
    est = QUAMClassifier(module, random_state=0, **arguments).fit(rows, y)
    seconds = time.perf_counter() - start
    peak.over.set()
    at_cut, all_kept = kept(est)
    answer.put(
        {
            "case": name,
            "rows": len(rows),
            "raw_mb": rows.nbytes / 1e6,
            "at_cut_mb": at_cut / 1e6,
            "kept_mb": all_kept / 1e6,
            "peak_mb": (peak.largest - peak.before) / 1e6,
            "pickle_mb": len(pickle.dumps(est, protocol=5)) / 1e6,
            "fit_seconds": seconds,
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--images", type=int, default=200_000)
    parser.add_argument("--rows", type=int, default=32_561, help="rows of the table")
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results", help="folder"
    )
    arguments = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    # Cases that are not measured now keep what they had.
    out = arguments.out / "memory.json"
    found = json.loads(out.read_text())["results"] if out.exists() else []
    with tempfile.TemporaryDirectory() as folder:
        for kind, n_rows, width in (
            ("images", arguments.images, 784),
            ("table", arguments.rows, 108),
        ):
            path = str(Path(folder) / f"{kind}.npy")
            stored = np.lib.format.open_memmap(path, "w+", np.float32, (n_rows, width))
            random = np.random.default_rng(0)
            for first in range(0, n_rows, 10_000):
                stored[first : first + 10_000] = random.random(stored[first : first + 10_000].shape)
            del stored
            for name in (name for name in arguments.cases if name.startswith(kind)):
                answer = context.Queue()
                worker = context.Process(target=measure, args=(name, path, answer))
                worker.start()
                result = answer.get()
                worker.join()
                found = [old for old in found if old["case"] != name] + [result]
                print(json.dumps(result), flush=True)
                out.write_text(json.dumps({"results": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
