"""Linear layers with bias and ReLU around the matrix products, on the GPU kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from feduhb.engines.kernels import dense
from feduhb.engines.stacking.layers import Descent, Layer


class Flat(Layer):
    """nn.Flatten of images that lie channels-last: nothing moves, for the linear layer after it has its columns in that order."""

    def forward(self, x: Tensor) -> Tensor:
        """[C, B, ch, H, W] as [C, B, H * W * ch]."""
        self._image = x.shape[2:]
        return x.permute(0, 1, 3, 4, 2).flatten(2)

    def backward(self, dy: Tensor, descent: Descent) -> Tensor | None:  # noqa: ARG002
        """[C, B, H * W * ch] as [C, B, ch, H, W]."""
        channels, height, width = self._image
        return dy.unflatten(2, (height, width, channels)).permute(0, 1, 4, 2, 3)


class Linear(Layer):
    """nn.Linear with the ReLU after it, on inputs [C, B, in]."""

    def __init__(
        self,
        module: nn.Linear,
        clients: int,
        device: torch.device,
        *,
        relu: bool,
        image: Sequence[int] | None,
        first: bool = False,
    ) -> None:
        super().__init__(module, clients, device, first=first)
        self.relu = relu
        self.image = image  # (ch, H, W) of inputs that come flattened as H, W, ch

    def begin(self, start: list[Tensor]) -> None:
        """Give every client the same weights, columns in the order of the inputs."""
        w, *bias = start
        if self.image:
            w = w.unflatten(1, self.image).permute(0, 2, 3, 1).flatten(1)
        super().begin([w, *bias])

    def end(self) -> list[Tensor]:
        """The weights as the module shapes them."""
        w, *bias = self.weights
        if self.image:
            channels, height, width = self.image
            w = w.unflatten(2, (height, width, channels)).permute(0, 1, 4, 2, 3).flatten(2)
        return [w, *bias]

    def forward(self, x: Tensor) -> Tensor:
        """y = relu(x w' + b)."""
        x = x.to(self.weights[0].dtype)
        w, *bias = (w[: len(x)] for w in self.weights)
        y = x @ w.transpose(1, 2)
        if bias:
            dense.lift(y, bias[0], relu=self.relu)
        elif self.relu:
            y.relu_()
        self._kept = x, y
        return y

    def backward(self, dy: Tensor, descent: Descent) -> Tensor | None:
        """Give dx, as a view of [C, in, B], for images go backward batch-last; take the step within the last product."""
        x, y = self._kept
        del self._kept
        w, *bias = (w[: len(x)] for w in self.weights)
        if bias or self.relu:
            dense.fall(dy, y, bias[0] if bias else None, descent.on, descent.lr, descent.l2, relu=self.relu)
        dx = None if self.first else (w.transpose(1, 2) @ dy.transpose(1, 2)).transpose(1, 2)
        descent.decay(w)
        w.baddbmm_(dy.transpose(1, 2), x, alpha=-descent.lr)
        return dx
