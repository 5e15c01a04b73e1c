"""Tasks: what clients can be asked for besides plain training and full-batch gradients.

A task takes the place of the step that a client trains by. `Work.task` names it, `Work.epochs` says how often the client
goes over its data, and the batches are those of plain training, drawn at the same addresses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from feduhb.core.checks import check_decay, check_least, check_positive, check_whole


@dataclass(frozen=True, slots=True)
class Precondition:
    """Train by steps that a moving average of the diagonal Fisher scales, as Rapid Retrain does.

        m <- β1 m + (1 - β1) g,    q <- β2 q + (1 - β2) F²,    w <- w - lr m̂ / (√q̂ + ε)

    g is the gradient of the batch and F the mean over its examples of their squared gradients. m̂ = m / (1 - β1^s) and
    q̂ = q / (1 - β2^s) after s steps; both averages start at 0 in every round. Of `Local`, the batch size, the loss, l2,
    weight decay, clipping, the schedule and the proximal term apply: they change g, or scale lr, and never F.

    Args:
        lr: the learning rate.
        b1, b2: β1 and β2.
        eps: ε, which bounds the step where F is small.
    """

    lr: float
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8

    name: ClassVar[str] = "precondition"
    verb: ClassVar[str] = "train by preconditioned steps"

    def __post_init__(self) -> None:
        check_positive("lr", self.lr, 0.001)
        check_decay("b1", self.b1)
        check_decay("b2", self.b2, 0.999)
        check_positive("eps", self.eps, 1e-8)


@dataclass(frozen=True, slots=True)
class Ascend:
    """Climb the loss inside a ball around the model that was sent, as projected gradient ascent does.

        v <- μ v + g,    w <- w + lr v,    then w <- w0 + (w - w0) min(1, radius / ‖w - w0‖)

    g is the gradient of the batch, cut to the length ``clip_norm``. Of `Local`, only the batch size, the loss and the
    augmentation apply. Statistics of normalisation layers are gathered as in training.

    Args:
        radius: of the ball; 0 leaves the parameters as they are.
        lr: the learning rate.
        momentum: μ.
        clip_norm: the largest norm of a gradient.
    """

    radius: float
    lr: float
    momentum: float = 0.9
    clip_norm: float = 5.0

    name: ClassVar[str] = "ascend"
    verb: ClassVar[str] = "climb the loss inside a ball"

    def __post_init__(self) -> None:
        check_least("radius", self.radius)
        check_positive("lr", self.lr, 0.01)
        check_decay("momentum", self.momentum)
        check_positive("clip_norm", self.clip_norm, 5.0)


@dataclass(frozen=True, slots=True)
class Relabel:
    """Train on labels of untrained teachers, and stay where the data that remains is sensitive, as FedAF does.

        loss of (x, q) + penalty Σ_i F_i (w_i - w0_i)²,    q = mean over the teachers of softmax(z_k(x))

    x are the examples that the client asked to forget. The teachers are fresh models, drawn at (seed, "teacher", k) and
    used as in evaluation. F is the mean of the squared gradients of the examples that the client keeps, at the model w0
    that was sent, in evaluation mode. All of `Local` applies.

    Args:
        teachers: their number.
        penalty: λ; 0 leaves F out.
    """

    teachers: int
    penalty: float

    name: ClassVar[str] = "relabel"
    verb: ClassVar[str] = "train on the labels of untrained teachers"

    def __post_init__(self) -> None:
        check_whole("teachers", self.teachers)
        check_least("penalty", self.penalty)


Task = Precondition | Ascend | Relabel
TASKS: dict[str, type[Task]] = {kind.name: kind for kind in (Precondition, Ascend, Relabel)}
