"""Federations of the kinds of models that people have: small, ragged, each client's data drawn from its name alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import feduhb
from feduhb.core.seeds import fixed_draws

SIZES = {"ant": 6, "bee": 5, "cat": 9}  # in batches of 4, bee and cat have a last batch of one
LETTERS, LENGTH = 12, 6
Data = tuple[Any, Tensor]
Make = Callable[[torch.Generator, int], Data]


class Block(nn.Module):
    """Two convolutions with BatchNorm and a shortcut, as in ResNet-18."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after))
        self.second = nn.Sequential(nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after))
        shorter = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        self.shortcut = nn.Identity() if before == after and stride == 1 else shorter

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(F.relu(self.first(x))) + self.shortcut(x))


def resnet(channels: int, widths: Mapping[int, int], classes: int, inputs: int = 1) -> nn.Module:
    """A ResNet for small images: {width: blocks} of its stages; ResNet-18 is {64: 2, 128: 2, 256: 2, 512: 2}."""
    layers = [nn.Conv2d(inputs, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
    before = channels
    for width, blocks in widths.items():
        for number in range(blocks):
            layers.append(Block(before, width, 1 if number or before == channels == width else 2))
            before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


class Attention(nn.Module):
    """A transformer over tokens: attention with a mask of padding, a position table, the mean of what is no padding."""

    def __init__(self, width: int = 8, classes: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(LETTERS, width)
        self.norm = nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.head = nn.Linear(width, classes)
        waves = torch.arange(LENGTH)[:, None] / 9.0 ** (torch.arange(width) / width)
        self.register_buffer("positions", torch.sin(waves))

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        x = self.embed(tokens) + self.positions
        z = self.norm(x)
        q, k, v = self.query(z), self.key(z), self.value(z)
        scores = (q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])).masked_fill(~mask[:, None], -math.inf)
        x = x + torch.softmax(scores, dim=-1) @ v
        share = mask.to(x.dtype) / mask.sum(1, keepdim=True)
        return self.head((x * share[..., None]).sum(1))


class Adapter(nn.Module):
    """LoRA: a frozen linear layer and a trained product of two thin matrices."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def small_resnet() -> nn.Module:
    return resnet(8, {8: 1, 16: 1}, 3)


def perceptron(outputs: int = 3, *between: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), *between, nn.Linear(8, outputs))


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.2), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))


def grouped() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3, 2), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3))


def frozen_backbone() -> nn.Module:
    """A public backbone with statistics of its own, frozen, and a new head."""
    backbone = nn.Sequential(nn.Conv2d(1, 4, 3, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    backbone.train()(torch.rand(20, 1, 8, 8) * 3)
    return nn.Sequential(backbone.requires_grad_(False), nn.Linear(36, 3))


def adapted() -> nn.Module:
    net = Attention().requires_grad_(False)
    for part in ("query", "value"):
        setattr(net, part, Adapter(getattr(net, part)))
    net.head.requires_grad_(True)
    return net


def given(make: Callable[[], nn.Module]) -> nn.Module:
    with fixed_draws(3, "public"):
        return make()


def images(draw: torch.Generator, size: int) -> Data:
    x = torch.randn(size, 1, 8, 8, generator=draw, dtype=torch.float64)
    return x, torch.randint(0, 3, (size,), generator=draw)


def vectors(draw: torch.Generator, size: int) -> Data:
    x = torch.randn(size, 5, generator=draw, dtype=torch.float64)
    return x, torch.randint(0, 3, (size,), generator=draw)


def numbers(draw: torch.Generator, size: int) -> Data:
    x = torch.randn(size, 5, generator=draw, dtype=torch.float64)
    return x, x[:, :2] * x[:, 2:4]


def several_labels(draw: torch.Generator, size: int) -> Data:
    x, _ = vectors(draw, size)
    return x, (x[:, :4] > 0).double()


def sentences(draw: torch.Generator, size: int) -> Data:
    tokens = torch.randint(1, LETTERS, (size, LENGTH), generator=draw)
    mask = torch.arange(LENGTH) < torch.randint(1, LENGTH + 1, (size, 1), generator=draw)
    return {"tokens": tokens * mask, "mask": mask}, torch.randint(0, 3, (size,), generator=draw)


def flip_and_shift(x: Any, draws: Tensor) -> Any:
    """Flip half of the images and change their brightness."""
    flipped = torch.where((draws[:, 0] < 0.5)[:, None, None, None], x.flip(-1), x)
    return flipped + (draws[:, 1] - 0.5).to(x.dtype)[:, None, None, None]


@dataclass(frozen=True)
class Kind:
    """A model with its data, and how clients train it."""

    model: Callable[[], nn.Module]
    data: Make
    how: Mapping[str, Any] = field(default_factory=dict)  # settings of `feduhb.train`
    federated: Mapping[str, Any] = field(default_factory=dict)  # settings of `feduhb.Federation`

    def tensors(
        self, name: str, size: int, *, dtype: torch.dtype = torch.float32, loud: bool = False
    ) -> Data:
        """A client's examples, drawn from its name; loud ones are 3 times as large where they are numbers."""
        x, y = self.data(torch.Generator().manual_seed(sum(name.encode())), size)
        return cast(x, dtype, 3.0 if loud else 1.0), cast(y, dtype)

    def federation(
        self, sizes: Mapping[str, int] = SIZES, *, dtype: torch.dtype = torch.float32, **changes: Data
    ) -> feduhb.Federation:
        """A federation of clients of these sizes; changes give some clients other examples."""
        data = {name: self.tensors(name, size, dtype=dtype) for name, size in sizes.items()}
        is_given = self.federated.get("start") == "given"
        model = (given(self.model) if is_given else self.model()).to(dtype)
        return feduhb.Federation(
            {**data, **changes}, self.tensors("test", 12, dtype=dtype), model, seed=5, **self.federated
        )

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of `feduhb.train`, all of them."""
        return {"epochs": 2, "batch_size": 4, "lr": 0.05, "show": None, **self.how}


def cast(x: Any, dtype: torch.dtype, scale: float = 1.0) -> Any:
    """Return numbers in another precision; tokens, masks and classes as they are."""
    if isinstance(x, dict):
        return {name: cast(part, dtype, scale) for name, part in x.items()}
    return (x * scale).to(dtype) if x.is_floating_point() else x


ADAMW = {"optimizer": "adamw", "lr": 0.02, "weight_decay": 0.1, "clip_norm": 0.5, "schedule": "cosine"}
HEAVY = {"momentum": 0.9, "proximal": 0.5, "schedule": "decay:0.9", "lr": 0.02}
KINDS = {
    "resnet": Kind(small_resnet, images),
    "dropout": Kind(dropping, vectors),
    "frozen backbone": Kind(frozen_backbone, images, federated={"start": "given"}),
    "lora": Kind(adapted, sentences, ADAMW, {"start": "given"}),
    "tokens": Kind(Attention, sentences, {"optimizer": "adam", "lr": 0.01, "schedule": "linear"}),
    "regression": Kind(lambda: perceptron(2), numbers, HEAVY, {"loss": "mse"}),
    "several labels": Kind(lambda: perceptron(4), several_labels, federated={"loss": "bce_with_logits"}),
    "adamw": Kind(lambda: perceptron(3, nn.BatchNorm1d(8), nn.Dropout(0.3)), vectors, ADAMW),
    "augmented": Kind(grouped, images, federated={"augment": flip_and_shift}),
}
