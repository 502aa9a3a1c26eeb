"""From estimators to the network inside them."""

from .networks import (
    Network,
    check_kind,
    column_of_label,
    copy_module,
    floating_dtype,
    is_quantised,
    is_skorch,
    is_torch,
    module_of,
    read_network,
)
from .opened import is_fitted, is_pretrained, split_pipeline, target_scale

__all__ = [
    "Network",
    "check_kind",
    "column_of_label",
    "copy_module",
    "floating_dtype",
    "is_fitted",
    "is_pretrained",
    "is_quantised",
    "is_skorch",
    "is_torch",
    "module_of",
    "read_network",
    "split_pipeline",
    "target_scale",
]
