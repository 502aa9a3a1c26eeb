"""Types of what users pass to constructors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from ._network.parameters import LoRA

Device = str | torch.device | None
MemoryLimit = int | float | str | None
NoiseVariance = float | ArrayLike | None
Parameters = str | int | list[str] | Callable[[str, torch.nn.Parameter], Any] | LoRA
RandomState = int | np.random.RandomState | None
