"""Small networks that are built like those people have: faithful stand-ins for large libraries."""

from collections import OrderedDict
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence


class ModelOutput(OrderedDict):
    """What models of transformers return: a mapping, a data class, and a tuple by number."""

    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None:
                self[field.name] = value

    def __getitem__(self, key):
        return super().__getitem__(key) if isinstance(key, str) else tuple(self.values())[key]


@dataclass
class SequenceClassifierOutput(ModelOutput):
    loss: Tensor | None = None
    logits: Tensor | None = None
    hidden_states: tuple | None = None


@dataclass
class BackboneOutput(ModelOutput):
    last_hidden_state: Tensor | None = None
    pooler_output: Tensor | None = None


class Encoder(nn.Module):
    """Embeddings and one layer of attention; padding is zero and masked."""

    def __init__(self, width=16):
        super().__init__()
        self.words, self.positions = nn.Embedding(20, width), nn.Embedding(12, width)
        self.layer = nn.TransformerEncoderLayer(width, 2, 32, batch_first=True)

    def forward(self, input_ids):
        if int(input_ids.max()) >= 20:  # as libraries check their input
            raise ValueError("There is no such word.")
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        hidden = self.words(input_ids) + self.positions(places)
        return self.layer(hidden, src_key_padding_mask=input_ids == 0)


class Bert(nn.Module):
    """BertForSequenceClassification: a pooler with tanh, then a linear classifier."""

    def __init__(self, width=16, n_classes=3):
        super().__init__()
        self.bert, self.pooler = Encoder(width), nn.Linear(width, width)
        self.activation, self.dropout = nn.Tanh(), nn.Dropout(0.1)
        self.classifier = nn.Linear(width, n_classes)

    def forward(self, input_ids, labels=None, return_dict=True):
        hidden = self.bert(input_ids)
        pooled = self.activation(self.pooler(hidden[:, 0]))
        logits = self.classifier(self.dropout(pooled))
        loss = None if labels is None else functional.cross_entropy(logits, labels)
        if not return_dict:
            return (logits,)
        return SequenceClassifierOutput(loss=loss, logits=logits, hidden_states=(hidden,))


class GPT(nn.Module):
    """GPT2ForSequenceClassification: scores of all words, of which the last one counts."""

    def __init__(self, width=16, n_classes=3):
        super().__init__()
        self.transformer, self.score = Encoder(width), nn.Linear(width, n_classes, bias=False)

    def forward(self, input_ids):
        logits = self.score(self.transformer(input_ids))
        last = (input_ids != 0).int() * torch.arange(input_ids.shape[-1])
        last = last.argmax(-1)
        rows = torch.arange(len(input_ids), device=logits.device)
        return SequenceClassifierOutput(logits=logits[rows, last])


class PackedLSTM(nn.Module):
    def __init__(self, width=16, n_classes=3):
        super().__init__()
        self.words = nn.Embedding(20, width, padding_idx=0)
        self.lstm, self.head = nn.LSTM(width, width, batch_first=True), nn.Linear(width, n_classes)

    def forward(self, input_ids):
        lengths = (input_ids != 0).sum(dim=1).clamp(min=1).cpu()
        packed = pack_padded_sequence(
            self.words(input_ids), lengths, batch_first=True, enforce_sorted=False
        )
        return self.head(self.lstm(packed)[1][0][-1])


class Cosine(nn.Module):
    """A head that is only a matrix, compared with the features by its angles."""

    def __init__(self, n_in=4, n_classes=3):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(n_in))
        self.body = nn.Sequential(nn.Linear(n_in, 16), nn.ReLU(), nn.Linear(16, 8))
        self.weight = nn.Parameter(torch.randn(n_classes, 8))
        self.scale = nn.Parameter(torch.tensor(5.0))

    def forward(self, x):
        features = functional.normalize(self.body(x + self.shift), dim=-1)
        return self.scale * functional.linear(features, functional.normalize(self.weight, dim=-1))


class Heads(nn.Module):
    """Several heads on the same features; `form` says how they are returned."""

    def __init__(self, form, n_in=4):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_in, 16), nn.ReLU())
        self.kind, self.value = nn.Linear(16, 3), nn.Linear(16, 1)
        self.form = form

    def forward(self, x):
        features = self.body(x)
        kind, value = self.kind(features), self.value(features)
        if self.form == "features":
            return kind, features
        return {"value": value, "kind": kind} if self.form == "dict" else (kind, value)


class Autocast(nn.Module):
    """Chooses half precision by itself, as networks for accelerators do."""

    def __init__(self, n_in=4):
        super().__init__()
        self.body, self.head = nn.Linear(n_in, 16), nn.Linear(16, 3)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.head(torch.relu(self.body(x)))
