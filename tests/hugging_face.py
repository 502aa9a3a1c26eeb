"""Stand-ins with the interfaces of packages that are no dependency, and a network that takes text.

What they stand for is tried with the packages themselves where these are installed.
"""

import copy
from collections import UserDict
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

WORDS = np.array(["sport", "world", "art"])  # not in alphabetical order
N_ROWS, LENGTH, N_TOKENS = 48, 6, 12


class Tokens(UserDict):
    """What a tokenizer returns, as BatchEncoding: a mapping that is no dict."""


class Table:
    """Has what datasets.Dataset has: rows are dicts of plain values."""

    def __init__(self, columns, names=None):
        self.columns, self.column_names = columns, list(columns)
        self.features = {name: SimpleNamespace(dtype="int64") for name in columns}
        if names is not None:
            self.features["label"] = SimpleNamespace(names=list(names))

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index):
        pick = [index] if isinstance(index, int) else index
        found = {name: _plain(column, pick) for name, column in self.columns.items()}
        return {name: part[0] for name, part in found.items()} if isinstance(index, int) else found

    def __getitems__(self, numbers):
        return [self[number] for number in numbers]

    def remove_columns(self, name):
        rest = copy.copy(self)
        rest.columns = {key: part for key, part in self.columns.items() if key != name}
        rest.column_names = list(rest.columns)
        rest.features = {key: kind for key, kind in self.features.items() if key != name}
        return rest


def _plain(column, pick):
    rows = column[pick] if isinstance(pick, slice) else [column[number] for number in pick]
    return [np.asarray(row).tolist() for row in rows]


class Stream:
    """Has what datasets.IterableDataset has: no length."""

    column_names, features = ["input_ids", "label"], None

    def __iter__(self):
        return iter(())


@dataclass
class Pads:
    """Has what DataCollatorWithPadding has: pads to the longest, and renames the target."""

    def __call__(self, items):
        longest = max(len(item["input_ids"]) for item in items)
        batch = {
            name: torch.tensor([item[name] + [0] * (longest - len(item[name])) for item in items])
            for name in ("input_ids", "attention_mask")
        }
        batch["labels"] = torch.tensor([item["label"] for item in items])
        return Tokens(batch)


class TextClassifier(nn.Module):
    """A mean of embeddings of what is not masked, and a head; its columns have names."""

    def __init__(self, names=WORDS):
        super().__init__()
        self.embed = nn.Embedding(N_TOKENS, 8)
        self.classifier = nn.Linear(8, len(names))
        self.config = SimpleNamespace(id2label=dict(enumerate(names)))

    def forward(self, input_ids, attention_mask):
        weight = attention_mask[..., None].float()
        mean = (self.embed(input_ids).tanh() * weight).sum(dim=1) / weight.sum(dim=1)
        return SimpleNamespace(logits=self.classifier(mean))


def texts():
    """Return tokens of rows of different lengths, padded, and their classes."""
    random = np.random.default_rng(0)
    ids = random.integers(1, N_TOKENS, size=(N_ROWS, LENGTH))
    lengths = random.integers(2, LENGTH + 1, size=N_ROWS)
    mask = (np.arange(LENGTH) < lengths[:, None]).astype(np.int64)
    return {"input_ids": ids * mask, "attention_mask": mask}, ids[:, 0] % 3


def trained(module, parts, y, n_epochs=40):
    """Train a network that takes named inputs."""
    named = {name: torch.as_tensor(part) for name, part in parts.items()}
    optimizer = torch.optim.Adam(module.parameters(), lr=0.05)
    for _ in range(n_epochs):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(**named).logits, torch.as_tensor(y)).backward()
        optimizer.step()
    return module.eval()
