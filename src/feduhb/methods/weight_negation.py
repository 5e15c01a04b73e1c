"""NoT: negate the weights of the old model's first layer, then fine-tune with the remaining clients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from feduhb.errors import ModelError
from feduhb.methods.finetune import FineTune
from feduhb.methods.retrain import Plain


@dataclass(frozen=True, slots=True)
class NoT(FineTune):
    """Approximate unlearning: break the old model where its features begin, and let the remaining clients repair it.

        w[0] = the old model, with -W in place of the first layer's weights W
        w[t+1] = w[t] - α A(u_1 .. u_|Cr|)

    The first layer is the first one of the module, in the order of its parameters, with a matrix or filter of trained
    weights. Its bias stays.

    Args:
        step_size: α; 1.0 is FedAvg.
        epochs: local passes in a round; 0 asks for full-batch gradients.
        aggregate: A, as for FineTune.
        model: the old model; `feduhb.unlearn` sets it.
        layout: names and shapes of the parameters; `feduhb.unlearn` sets them.

    Reference: Khalil et al., "NoT: Federated Unlearning via Weight Negation", 2025.
    """

    layout: tuple[tuple[str, tuple[int, ...]], ...] = ()

    name: ClassVar[str] = "not"
    bound: ClassVar[tuple[str, ...]] = ("layout",)

    def init(self, params: Tensor) -> Plain:
        """Return the state at the old model with its first layer negated."""
        w = FineTune.init(self, params).params.clone()
        w[find_first_layer(self.layout)] *= -1
        return Plain(w)


def find_first_layer(layout: tuple[tuple[str, tuple[int, ...]], ...]) -> slice:
    """Return which entries of the flat vector are the weights of the first layer; raise ModelError if there are none.

    A layer's own parameter "weight" counts, also under a parametrisation, and otherwise the first matrix, such as that of
    an adapter. Vectors do not: they are biases, or scales of normalisation layers.
    """
    sizes = [math.prod(shape) for _, shape in layout]
    matrices = [place for place, (_, shape) in enumerate(layout) if len(shape) > 1]
    named = [place for place in matrices if "weight" in layout[place][0].split(".")]
    if not matrices:
        raise ModelError(
            "not negates the weights of the first layer, but no layer of this model has a matrix of weights; use finetune"
        )
    first = (named or matrices)[0]
    begin = sum(sizes[:first])
    return slice(begin, begin + sizes[first])
