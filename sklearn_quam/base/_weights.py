"""What methods share that look at the network with other weights."""

from __future__ import annotations

from numbers import Integral, Real
from typing import ClassVar

from sklearn.utils._param_validation import Interval

from .._network.free import FreeNetwork, free_network
from .._network.limits import Limits, memory_in_bytes
from .._network.parameters import LoRA
from .._typing import MemoryLimit, Parameters
from ._estimator import BaseUncertaintyEstimator, FitData


class WeightChanging(BaseUncertaintyEstimator):
    """Turns the network into a function of the parameters that the user has chosen."""

    _weight_constraints: ClassVar[dict] = {
        "parameters": [str, Interval(Integral, 1, None, closed="left"), list, callable, LoRA],
        "memory_limit": [Interval(Real, 0, None, closed="neither"), str, None],
    }

    parameters: Parameters
    memory_limit: MemoryLimit

    def _free_network(self, fit: FitData) -> FreeNetwork:
        """Cut the network, and set the fitted attributes that say what changes."""
        network = free_network(fit.reference, self.parameters, fit.training.inputs, fit.seed)
        self.parameter_names_ = list(network.free.names)
        self.n_parameters_searched_ = network.free.size
        return network

    def _limits(self, fit: FitData) -> Limits:
        """Return what may be used while the method is fitted."""
        device = fit.reference.device
        return Limits(memory_in_bytes(self.memory_limit, device), device)
