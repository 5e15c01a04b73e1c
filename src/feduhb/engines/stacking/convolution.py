"""Convolution, ReLU and 2 x 2 max pooling as one layer on the GPU kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from feduhb.engines.kernels import conv, language
from feduhb.engines.stacking.layers import Dense, Descent, Layer
from feduhb.engines.stacking.tracing import Chain

THIN = 8  # channels up to which images are read batch-last: their runs of channels are too short to load


class Convolution(Layer):
    """nn.Conv2d with what follows it; see `feduhb.engines.kernels.conv` for the orders of images."""

    def __init__(
        self,
        modules: Sequence[nn.Module],
        clients: int,
        device: torch.device,
        precision: str,
        *,
        first: bool = False,
    ) -> None:
        convolution = modules[0]
        assert isinstance(convolution, nn.Conv2d)
        self.module = convolution
        self.first = first
        self.source: Convolution | None = None  # a convolution right before this one
        self.feeds = False  # whether another one comes right after
        self.relu = any(isinstance(module, nn.ReLU) for module in modules)
        self.pool = 2 if any(isinstance(module, nn.MaxPool2d) for module in modules) else 1
        self.dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        self.precision = "tf32x3" if precision == "float32" else "tf32"
        out, into, *window = convolution.weight.shape
        taps = window[0] * window[1]
        self.weights = [
            torch.empty(clients, out, taps * into, device=device),
            torch.zeros(clients, out, device=device),
        ]
        self._filters = (
            self.weights[0] if self.dtype == torch.float32 else self.weights[0].to(self.dtype)
        )  # [C, out, tap * in]
        self._turned = torch.empty(clients, taps, into, out, device=device, dtype=self.dtype)

    def begin(self, start: list[Tensor]) -> None:
        """Give every client the same weights, taps before channels."""
        w, b = self.weights
        w.copy_(start[0].permute(0, 2, 3, 1).flatten(1).expand_as(w))
        b.copy_(start[1].expand_as(b) if len(start) > 1 else torch.zeros_like(b))
        self._refresh(len(w))

    def end(self) -> list[Tensor]:
        """The weights as the module shapes them."""
        out, into, *window = self.module.weight.shape
        w = self.weights[0].view(-1, out, *window, into).permute(0, 1, 4, 2, 3)
        return [w.contiguous(), self.weights[1]] if self.module.bias is not None else [w.contiguous()]

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layers to [C, B, in, H, W]; the result is a view of channels-last memory."""
        shape = self._geometry(x)
        thin = shape.cin <= THIN
        last = self.source.outputs if self.source else _batch_last(x.to(self.dtype))
        images = last if thin else _channels_last(x.to(self.dtype))
        y, which, self.outputs = conv.forward(
            images, self._filters, self.weights[1], shape, self.precision, from_last=thin, batch_last=self.feeds
        )  # fmt: skip
        self._kept = last, which, shape
        return y.permute(0, 1, 4, 2, 3)

    def backward(self, dy: Tensor, descent: Descent) -> Tensor | None:
        """Give the gradient of the input, batch-last in memory, and take the step."""
        last, which, shape = self._kept
        del self._kept
        pooled = _batch_last(dy.to(self.dtype))
        dx = None
        if not self.first:
            spread = conv.spread(pooled, which, shape)
            dx = conv.to_input(spread, self._turned, shape, self.precision).permute(0, 4, 3, 1, 2)
        dw, db = conv.to_filters(last, pooled, which, shape, self.precision)
        descent(self.weights[0][: len(dw)], dw)
        if self.module.bias is not None:
            descent(self.weights[1][: len(db)], db)
        self._refresh(len(dw))
        return dx

    def _refresh(self, clients: int) -> None:
        """Copy the weights into the orders and the type that the kernels read."""
        w = self.weights[0][:clients]
        if self.dtype != torch.float32:
            self._filters[:clients].copy_(w)
        if not self.first:
            taps, into, out = self._turned.shape[1:]
            self._turned[:clients].copy_(w.view(clients, out, taps, into).permute(0, 2, 3, 1))

    def _geometry(self, x: Tensor) -> conv.Geometry:
        _, batch, into, height, width = x.shape
        out, _, kh, kw = self.module.weight.shape
        pad = int(self.module.padding[0])
        return conv.Geometry(batch, height, width, into, out, kh, kw, pad, self.pool, self.relu)


def _channels_last(x: Tensor) -> Tensor:
    """[C, B, ch, H, W] in the memory order [C, B, H, W, ch]."""
    return x.permute(0, 1, 3, 4, 2).contiguous()


def _batch_last(x: Tensor) -> Tensor:
    """[C, B, ch, H, W] as [C, H, W, ch, B] with images next to each other in memory; pixels and channels in either order."""
    turned = x.permute(0, 3, 4, 2, 1)
    regular = turned.stride(4) == 1 and turned.stride(1) == turned.shape[2] * turned.stride(2)
    return turned if regular else turned.contiguous()


def fits(module: nn.Module) -> bool:
    """Whether the kernels know this convolution."""
    return (
        isinstance(module, nn.Conv2d)
        and module.stride == module.dilation == (1, 1)
        and module.groups == 1
        and module.padding[0] == module.padding[1]
        and module.in_channels <= 128
        and module.weight.dtype == torch.float32
    )


def fused_layers(chain: Chain, clients: int, device: torch.device, precision: str) -> list[Layer]:
    """Make the layers of a chain, with convolutions on the kernels where they fit."""
    modules = [module for _, module in chain]
    weighted = next(i for i, module in enumerate(modules) if list(module.parameters()))
    layers: list[Layer] = []
    place = 0
    while place < len(modules):
        module, first = modules[place], place <= weighted
        if language.triton and fits(module):
            taken = _taken(modules[place:])
            made = Convolution(taken, clients, device, precision, first=first)
            if layers and isinstance(before := layers[-1], Convolution):
                made.source, before.feeds = before, True
            layers.append(made)
            place += len(taken)
        else:
            layers.append(
                (Dense if isinstance(module, nn.Linear) else Layer)(module, clients, device, first=first)
            )
            place += 1
    return layers


def _taken(modules: Sequence[nn.Module]) -> list[nn.Module]:
    """The convolution and those of the layers after it that go into the same kernel."""
    taken = [modules[0]]
    rest = list(modules[1:])
    if rest and isinstance(rest[0], nn.ReLU):
        taken.append(rest.pop(0))
    if rest and isinstance(pool := rest[0], nn.MaxPool2d) and _halves(pool):
        taken.append(pool)
    return taken


def _halves(pool: nn.MaxPool2d) -> bool:
    def two(size: object) -> bool:
        return size in (2, (2, 2))

    plain = pool.padding in (0, (0, 0)) and pool.dilation in (1, (1, 1)) and not pool.ceil_mode
    return two(pool.kernel_size) and two(pool.stride) and plain
