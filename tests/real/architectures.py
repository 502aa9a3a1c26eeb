"""Small networks of transformers, peft, timm, torchvision and lightning, with a table of them.

The weights are random; every network is made from a configuration.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

N_ROWS, N_WORDS, N_CLASSES = 160, 10, 3
RNG = np.random.default_rng(0)
Y = np.arange(N_ROWS) % N_CLASSES
IMAGES = RNG.normal(size=(N_ROWS, 3, 32, 32)).astype(np.float32)
ROWS = RNG.normal(size=(N_ROWS, 6)).astype(np.float32)
LENGTHS = RNG.integers(4, N_WORDS, size=N_ROWS)
MASK = (np.arange(N_WORDS) < LENGTHS[:, None]).astype(np.int64)
# Words from 3 on; 0 fills up, and 2 ends a sentence.
IDS = np.where(MASK == 1, RNG.integers(3, 40, size=MASK.shape), 0)
IDS[np.arange(N_ROWS), LENGTHS - 1] = 2
TEXTS = {"input_ids": IDS, "attention_mask": MASK}


@dataclass(frozen=True, eq=False)
class Architecture:
    """A network, its rows, and what the documentation says about it."""

    package: str
    name: str
    make: Any
    rows: Any
    # What parameters="auto" searches, where the network is cut, and how models are run
    layers: str
    cut: str = "inside"
    execution: str = "matmul"
    # Makes what is between two linear layers; None where the network ends otherwise
    activation: Any = nn.Tanh
    # Whether `fit` warns that it is slow
    warns: bool = False


def of_transformers(kind, task, **options):
    """Return what makes a tiny model of transformers."""

    def make():
        import transformers

        config = getattr(transformers, f"{kind}Config")(num_labels=N_CLASSES, **options)
        return getattr(transformers, f"{kind}For{task}Classification")(config)

    return make


def transformer(kind, **options):
    sizes = {"vocab_size": 40, "pad_token_id": 0, "eos_token_id": 2}
    return of_transformers(kind, "Sequence", **{**sizes, **options})


def image_transformer(kind, **options):
    return of_transformers(kind, "Image", **options)


LAYERS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
LAYERS |= {"intermediate_size": 48}
SMALL = {**LAYERS, "max_position_embeddings": 32}
DECODER = {**SMALL, "num_key_value_heads": 2}


def with_lora(make, merged=False):
    """Return what makes a network with low-rank updates that are not zero."""

    def made():
        import peft

        config = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"])
        network = peft.get_peft_model(make(), config)
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                if "lora_B" in name:
                    parameter.normal_(std=0.1)
        return network.merge_and_unload() if merged else network

    return made


def timm_model(name, **options):
    def make():
        import timm

        return timm.create_model(name, num_classes=N_CLASSES, **options)

    return make


def torchvision_model(name, **options):
    def make():
        import torchvision

        return getattr(torchvision.models, name)(num_classes=N_CLASSES, **options)

    return make


def lightning_module():
    import lightning

    class Classifier(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.save_hyperparameters()
            self.net = nn.Sequential(nn.Linear(6, 32), nn.SiLU(), nn.Linear(32, N_CLASSES))

        def forward(self, x):
            return self.net(x.to(self.device))

        def training_step(self, batch, _):
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    network = Classifier()
    data = torch.utils.data.TensorDataset(torch.tensor(ROWS), torch.tensor(Y))
    trainer = lightning.Trainer(
        max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, accelerator="cpu",
    )  # fmt: skip
    trainer.fit(network, torch.utils.data.DataLoader(data, batch_size=64))
    return network


BART = {"d_model": 32, "max_position_embeddings": 32}
for part in ("encoder", "decoder"):
    BART |= {f"{part}_layers": 1, f"{part}_attention_heads": 2, f"{part}_ffn_dim": 48}
T5 = {"d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 1, "num_heads": 2}
T5 |= {"decoder_start_token_id": 0}
IMAGE = {"image_size": 32, "patch_size": 8}
SWIN = {"img_size": 32, "window_size": 4, "embed_dim": 16, "depths": (1, 1), "num_heads": (1, 2)}
RESNET = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
VISION = {**IMAGE, "num_layers": 1, "num_heads": 2, "hidden_dim": 32, "mlp_dim": 48}
ONE, TWO = "1 linear layer", "2 linear layers"
BERT = transformer("Bert", **SMALL)
VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}


def words(name, make, layers, **said):
    return Architecture("transformers", name, make, TEXTS, layers, **said)


def pictures(package, name, make, layers=ONE, **said):
    return Architecture(package, name, make, IMAGES, layers, **said)


ARCHITECTURES = [
    words("BERT", BERT, TWO),
    words(
        "DistilBERT",
        transformer("DistilBert", dim=32, n_layers=2, n_heads=2, hidden_dim=48),
        TWO,
        activation=nn.ReLU,
    ),
    words("RoBERTa", transformer("Roberta", **SMALL), TWO),
    words("ELECTRA", transformer("Electra", embedding_size=32, **SMALL), TWO, activation=nn.GELU),
    words("ALBERT", transformer("Albert", embedding_size=32, **SMALL), TWO),
    words("DeBERTa-v2", transformer("DebertaV2", **SMALL), TWO, activation=nn.GELU),
    words("ModernBERT", transformer("ModernBert", **SMALL), ONE),
    words("BART", transformer("Bart", **BART), TWO),
    words("T5", transformer("T5", **T5), TWO),
    words("GPT-2", transformer("GPT2", n_embd=32, n_layer=2, n_head=2, n_positions=32), ONE),
    words("Llama", transformer("Llama", **DECODER), ONE),
    words("Qwen2", transformer("Qwen2", **DECODER), ONE),
    pictures("transformers", "ViT", image_transformer("ViT", **IMAGE, **LAYERS)),
    pictures("transformers", "ResNet", image_transformer("ResNet", **RESNET)),
    Architecture("peft", "LoRA of BERT", with_lora(BERT), TEXTS, TWO),
    Architecture("peft", "LoRA of BERT, merged", with_lora(BERT, merged=True), TEXTS, TWO),
    pictures("timm", "resnet18", timm_model("resnet18")),
    pictures("timm", "efficientnet_lite0", timm_model("efficientnet_lite0")),
    pictures("timm", "mobilenetv3_small_050", timm_model("mobilenetv3_small_050")),
    pictures("timm", "convnext_atto", timm_model("convnext_atto")),
    pictures("timm", "regnetx_002", timm_model("regnetx_002")),
    pictures(
        "timm", "densenet121", timm_model("densenet121", growth_rate=4, block_config=(1, 1, 1, 1))
    ),
    pictures("timm", "vit_tiny", timm_model("vit_tiny_patch16_224", **VIT)),
    pictures("timm", "swin_tiny", timm_model("swin_tiny_patch4_window7_224", **SWIN)),
    pictures("timm", "mixer_s16", timm_model("mixer_s16_224", img_size=32)),
    pictures(
        "timm",
        "deit_tiny_distilled",
        timm_model("deit_tiny_distilled_patch16_224", **VIT),
        TWO,
        execution="vmap",
        activation=None,
    ),
    pictures("torchvision", "resnet18", torchvision_model("resnet18")),
    pictures(
        "torchvision",
        "mobilenet_v3_small",
        torchvision_model("mobilenet_v3_small"),
        TWO,
        activation=nn.Hardswish,
    ),
    pictures("torchvision", "efficientnet_b0", torchvision_model("efficientnet_b0")),
    pictures("torchvision", "vit", torchvision_model("VisionTransformer", **VISION)),
    pictures(
        "torchvision",
        "squeezenet1_1",
        torchvision_model("squeezenet1_1"),
        "all parameters",
        cut="at_input",
        execution="vmap",
        activation=None,
        warns=True,
    ),
    Architecture(
        "lightning",
        "LightningModule of an MLP",
        lightning_module,
        ROWS,
        TWO,
        cut="at_input",
        activation=nn.SiLU,
    ),
]


def table():
    """Return the table of the documentation."""
    head = ("Package", "Network", "Searched", "Cut", "Run as")
    lines = [
        (one.package, one.name, one.layers, one.cut, one.execution + " (warns)" * one.warns)
        for one in ARCHITECTURES
    ]
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
    rule = "  ".join("=" * width for width in widths)
    texts = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in (head, *lines)]
    return "\n".join([rule, texts[0], rule, *texts[1:], rule])


def output_of(network, rows):
    """Return the logits of a network."""
    with torch.no_grad():
        if isinstance(rows, dict):
            output = network(**{name: torch.tensor(part) for name, part in rows.items()})
        else:
            output = network(torch.tensor(rows))
    return getattr(output, "logits", output)


def features_and_head(architecture, network, parameters):
    """Return the head of a network, which has these parameters, alone, and what it takes."""
    names = list(dict.fromkeys(name.rpartition(".")[0] for name in parameters))
    layers = [network.get_submodule(name) for name in names]
    features, head = [], nn.Sequential(layers[0])
    for layer in layers[1:]:
        head.extend([architecture.activation(), layer])
    handle = layers[0].register_forward_pre_hook(lambda _, args: features.append(args[0]))
    output_of(network, architecture.rows)
    handle.remove()
    (values,) = features
    if values.ndim == 3:
        # The last word that is not padding counts.
        values = values[torch.arange(N_ROWS), torch.as_tensor(LENGTHS - 1)]
    return values.numpy(), head.eval()


def made(architecture):
    """Return the network, with the same weights each time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = architecture.make()
    return network.eval()
