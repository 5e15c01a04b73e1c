"""How a client trains: its batches, its loss and its optimiser, which starts afresh in every round."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from feduhb.core.checks import check_least, check_positive, check_whole, is_finite
from feduhb.core.describe import name_function
from feduhb.core.inputs import Inputs
from feduhb.errors import ConfigError

Loss = Callable[[Tensor, Tensor], Tensor]
NUMBERS = 16  # uniform numbers that an augmentation gets for each row
Augment = Callable[[Inputs, Tensor], Inputs]  # of a batch and of numbers [B, NUMBERS] in [0, 1)

OPTIMIZERS = ("sgd", "adam", "adamw")
SCHEDULES = ("constant", "linear", "cosine", "decay:0.99")
# Settings that earlier versions lacked. They are recorded and sent only if they are used.
ADDED = ("optimizer", "momentum", "weight_decay", "clip_norm", "schedule", "proximal")
BETAS, EPS = (0.9, 0.999), 1e-8  # of Adam, as in torch
LOSSES: dict[str, Loss] = {
    "cross_entropy": functional.cross_entropy,
    "bce_with_logits": functional.binary_cross_entropy_with_logits,
    "mse": functional.mse_loss,
    "huber": functional.huber_loss,
}


@dataclass(frozen=True, slots=True)
class Local:
    """How a client trains. Clients keep no state: momentum and Adam's moments start at 0 in every round.

    Args:
        batch_size: examples in a batch.
        lr: the learning rate.
        loss: a function of (outputs, targets) that returns the mean over a batch.
        l2: adds l2/2 * ‖w‖² to the loss, biases included.
        optimizer: "sgd", "adam" or "adamw", as in `torch.optim`, with Adam's betas 0.9 and 0.999.
        momentum: of "sgd".
        weight_decay: the optimiser's own: for "adamw" w <- w - lr weight_decay w; for the others the same as l2.
        clip_norm: the largest norm of a step's gradient, over all parameters; None does not clip.
        schedule: the factor of lr in step s of S: "constant"; "linear" 1 - s/S; "cosine" (1 + cos(π s/S)) / 2; or
            "decay:0.99", which is 0.99^t in round t.
        proximal: μ of FedProx: adds μ/2 * ‖w - w[t]‖² to the loss.
        augment: a function of a batch and of 16 numbers in [0, 1) for each of its rows, drawn at the step's address.
    """

    batch_size: int = 64
    lr: float = 0.005
    loss: Loss = functional.cross_entropy
    l2: float = 0.0
    optimizer: str = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip_norm: float | None = None
    schedule: str = "constant"
    proximal: float = 0.0
    augment: Augment | None = None

    def __post_init__(self) -> None:
        check_whole("batch_size", self.batch_size)
        check_positive("lr", self.lr, 0.005)
        for name in ("l2", "weight_decay", "proximal"):
            check_least(name, getattr(self, name))
        if self.optimizer not in OPTIMIZERS:
            raise ConfigError(
                f"there is no optimizer {self.optimizer!r}; choose one of {', '.join(OPTIMIZERS)}"
            )
        if not (is_finite(self.momentum) and 0 <= self.momentum < 1):
            raise ConfigError(f"momentum is {self.momentum!r}; give at least 0 and below 1")
        if self.momentum and self.optimizer != "sgd":
            raise ConfigError(
                f"{self.optimizer} has moments of its own; give momentum with optimizer 'sgd', or leave it out"
            )
        if self.l2 and (self.weight_decay or self.optimizer == "adamw"):
            raise ConfigError("l2 is the weight decay of sgd and adam; give weight_decay alone")
        if self.clip_norm is not None and not (is_finite(self.clip_norm) and self.clip_norm > 0):
            raise ConfigError(f"clip_norm is {self.clip_norm!r}; give a positive number, or leave it out")
        scale_lr(self.schedule, 0, 0, 1)

    @property
    def is_plain(self) -> bool:
        """Whether a step is w <- w - lr (∇loss + l2 w)."""
        return not (
            self.optimizer != "sgd"
            or self.momentum
            or self.clip_norm
            or self.schedule != "constant"
            or self.proximal
        )

    @property
    def decay(self) -> float:
        """The weight decay of the optimiser."""
        return self.l2 or self.weight_decay


def scale_lr(schedule: str, round: int, step: int, steps: int) -> float:
    """Return the factor of the learning rate in a client's step of a round, counted from 0, of ``steps`` in that round."""
    match schedule:
        case "constant":
            return 1.0
        case "linear":
            return 1 - step / steps
        case "cosine":
            return (1 + math.cos(math.pi * step / steps)) / 2
        case _:
            name, _, text = str(schedule).partition(":")
            try:
                factor = float(text)
            except ValueError:
                factor = math.nan
            if name != "decay" or not 0 < factor <= 1:
                raise ConfigError(f"there is no schedule {schedule!r}; choose one of {', '.join(SCHEDULES)}")
            return factor**round


def find_loss(loss: str | Loss) -> Loss:
    """Return a loss by its name, or the function itself."""
    if not isinstance(loss, str):
        return loss
    if loss not in LOSSES:
        raise ConfigError(f"there is no loss {loss!r}; choose one of {', '.join(LOSSES)}, or give a function")
    return LOSSES[loss]


def move_loss(loss: Loss, device: torch.device) -> Loss:
    """Return a loss whose tensors, such as weights of classes, are on a device."""
    if isinstance(loss, nn.Module):
        return copy.deepcopy(loss).to(device)
    if isinstance(loss, functools.partial):
        moved = {key: v.to(device) if isinstance(v, Tensor) else v for key, v in loss.keywords.items()}
        return functools.partial(loss.func, *loss.args, **moved)
    return loss


def describe_local(local: Local) -> Mapping[str, Any]:
    """Return how clients train, for the records of a run; settings that earlier versions lacked only if they are used."""
    found: dict[str, Any] = {
        "batch_size": local.batch_size, "lr": local.lr, "loss": name_function(local.loss), "l2": local.l2,
    }  # fmt: skip
    found |= list_added(local)
    return found if local.augment is None else {**found, "augment": name_function(local.augment)}


def list_added(local: Local) -> dict[str, Any]:
    """Return the settings that earlier versions lacked, by name, of those that are used."""
    unused = Local()
    return {name: value for name in ADDED if (value := getattr(local, name)) != getattr(unused, name)}
