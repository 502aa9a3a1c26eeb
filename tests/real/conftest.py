"""torchvision's build is for accelerators: beside torch for CPUs, two operators are missing."""

import os

import torch

# Models are made from configurations; nothing is to be downloaded.
os.environ["HF_HUB_OFFLINE"] = "1"
# What is defined lives as long as the library object.
TORCHVISION = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    if not hasattr(torch.ops.torchvision, name):
        TORCHVISION.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
