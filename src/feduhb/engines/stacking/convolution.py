"""Convolution, ReLU and 2 x 2 max pooling as one layer on the GPU kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from feduhb.engines.kernels import conv
from feduhb.engines.kernels.tiling import THIN, Geometry
from feduhb.engines.stacking.layers import Descent, Layer


class Convolution(Layer):
    """nn.Conv2d with what follows it; see `feduhb.engines.kernels.conv` for the orders of images."""

    def __init__(
        self,
        convolution: nn.Conv2d,
        after: Sequence[nn.Module],
        clients: int,
        device: torch.device,
        precision: str,
        *,
        first: bool = False,
    ) -> None:
        self.module = convolution
        self.first = first
        self.batch_last = convolution.in_channels <= THIN
        self.source: Convolution | None = None  # a convolution right before this one
        self.feeds = False  # whether another one comes right after
        self.outputs: Tensor | None = None  # for that one, batch-last
        kinds = {type(module) for module in after}
        self.relu, self.pool = nn.ReLU in kinds, 2 if nn.MaxPool2d in kinds else 1
        self.dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        self.precision = "tf32x3" if precision == "float32" else "tf32"
        out, into, *window = convolution.weight.shape
        taps = window[0] * window[1]
        self.weights = [
            torch.empty(clients, out, taps * into, device=device),
            torch.zeros(clients, out, device=device),
        ]
        self._copy = None if self.dtype == torch.float32 else self.weights[0].to(self.dtype)
        turned = torch.empty(clients, taps, into, out, device=device, dtype=self.dtype)
        self._turned = None if first else turned

    def begin(self, start: list[Tensor]) -> None:
        """Give every client the same weights, taps before channels."""
        w, b = self.weights
        w.copy_(start[0].permute(0, 2, 3, 1).flatten(1).expand_as(w))
        b.copy_(start[1].expand_as(b) if len(start) > 1 else torch.zeros_like(b))
        if self._copy is not None:
            self._copy.copy_(w)
        if self._turned is not None:
            clients, taps, into, out = self._turned.shape
            self._turned.copy_(w.view(clients, out, taps, into).permute(0, 2, 3, 1))

    def end(self) -> list[Tensor]:
        """The weights as the module shapes them."""
        out, into, *window = self.module.weight.shape
        w = self.weights[0].view(-1, out, *window, into).permute(0, 1, 4, 2, 3)
        return [w.contiguous(), self.weights[1]] if self.module.bias is not None else [w.contiguous()]

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layers to [C, B, in, H, W]; the result is a view of channels-last memory."""
        shape = self._geometry(x)
        x = x.to(self.dtype)
        given = self.source.outputs if self.source else None
        last = _batch_last(x) if given is None else given
        images = last.movedim(-1, 1) if self.batch_last else x.permute(0, 1, 3, 4, 2).contiguous()
        filters = self.weights[0] if self._copy is None else self._copy
        y, which, self.outputs = conv.forward(
            images, filters, self.weights[1], shape, self.precision, batch_last=self.feeds
        )
        self._kept = last, which, shape
        return y.permute(0, 1, 4, 2, 3)

    def backward(self, dy: Tensor, descent: Descent) -> Tensor | None:
        """Give the gradient of the input, batch-last in memory, and take the step."""
        last, which, shape = self._kept
        del self._kept
        pooled = _batch_last(dy.to(self.dtype))
        dx = None
        if self._turned is not None:
            spread = conv.spread(pooled, which, shape)
            dx = conv.to_input(spread, self._turned, shape, self.precision).permute(0, 4, 3, 1, 2)
        dw, db = conv.to_filters(last, pooled, which, shape, self.precision)
        w, b = self.weights
        conv.descend(w, dw, descent.on, descent.lr, descent.l2, self._copy, self._turned)
        if self.module.bias is not None:
            conv.descend(b, db, descent.on, descent.lr, descent.l2)
        return dx

    def _geometry(self, x: Tensor) -> Geometry:
        _, batch, into, height, width = x.shape
        out, _, kh, kw = self.module.weight.shape
        pad = int(self.module.padding[0])
        return Geometry(batch, height, width, into, out, kh, kw, pad, self.pool, self.relu)


def _batch_last(x: Tensor) -> Tensor:
    """[C, B, ch, H, W] as [C, H, W, ch, B] with images next to each other in memory; pixels and channels in either order."""
    turned = x.permute(0, 3, 4, 2, 1)
    regular = turned.stride(4) == 1 and turned.stride(1) == turned.shape[2] * turned.stride(2)
    return turned if regular else turned.contiguous()
