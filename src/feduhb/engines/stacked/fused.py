"""Layers on the GPU kernels, each of which does the work of several layers of a chain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

import torch
from torch import Tensor, nn

from feduhb.engines.stacked.layers import Chain, Descent, Layer, make_layers
from feduhb.engines.triton import convolution as kernels
from feduhb.engines.triton.convolution import THIN, Geometry
from feduhb.engines.triton.elementwise import add_bias, backward_bias


class FusedConvolution(Layer):
    """nn.Conv2d with the ReLU and max pooling after it; `triton.convolution_kernels` explains the orders of images."""

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
        self.source: FusedConvolution | None = None  # the convolution right before this one
        self.feeds = False  # whether another convolution comes right after
        self.outputs: Tensor | None = None  # for that convolution, batch-last
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
        """Set every client to the same weights, taps before channels."""
        w, b = self.weights
        w.copy_(start[0].permute(0, 2, 3, 1).flatten(1).expand_as(w))
        b.copy_(start[1].expand_as(b) if len(start) > 1 else torch.zeros_like(b))
        if self._copy is not None:
            self._copy.copy_(w)
        if self._turned is not None:
            clients, taps, into, out = self._turned.shape
            self._turned.copy_(w.view(clients, out, taps, into).permute(0, 2, 3, 1))

    def end(self) -> list[Tensor]:
        """Return the weights in the shapes of the module."""
        out, into, *window = self.module.weight.shape
        w = self.weights[0].view(-1, out, *window, into).permute(0, 1, 4, 2, 3)
        return [w.contiguous(), self.weights[1]] if self.module.bias is not None else [w.contiguous()]

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layers to [C, B, in, H, W]; return a view of channels-last memory."""
        shape = self._geometry(x)
        x = x.to(self.dtype)
        given = self.source.outputs if self.source else None
        last = _batch_last(x) if given is None else given
        images = last.movedim(-1, 1) if self.batch_last else x.permute(0, 1, 3, 4, 2).contiguous()
        filters = self.weights[0] if self._copy is None else self._copy
        y, which, self.outputs = kernels.forward(
            images, filters, self.weights[1], shape, self.precision, batch_last=self.feeds
        )
        self._kept = last, which, shape
        return y.permute(0, 1, 4, 2, 3)

    def backward(self, dy: Tensor, descent: Descent) -> Tensor | None:
        """Take the step; return the gradient of the input, batch-last in memory."""
        last, which, shape = self._kept
        del self._kept
        pooled = _batch_last(dy.to(self.dtype))
        dx = None
        if self._turned is not None:
            unpooled = kernels.unpool(pooled, which, shape)
            dx = kernels.input_gradient(unpooled, self._turned, shape, self.precision).permute(0, 4, 3, 1, 2)
        dw, db = kernels.filter_gradients(last, pooled, which, shape, self.precision)
        w, b = self.weights
        kernels.descend(w, dw, descent.on, descent.lr, descent.l2, self._copy, self._turned)
        if self.module.bias is not None:
            kernels.descend(b, db, descent.on, descent.lr, descent.l2)
        return dx

    def _geometry(self, x: Tensor) -> Geometry:
        _, batch, into, height, width = x.shape
        out, _, kh, kw = self.module.weight.shape
        pad = int(self.module.padding[0])
        return Geometry(batch, height, width, into, out, kh, kw, pad, self.pool, self.relu)


def _batch_last(x: Tensor) -> Tensor:
    """Return [C, B, ch, H, W] as [C, H, W, ch, B], with the images of a batch next to each other in memory."""
    turned = x.permute(0, 3, 4, 2, 1)
    regular = turned.stride(4) == 1 and turned.stride(1) == turned.shape[2] * turned.stride(2)
    return turned if regular else turned.contiguous()


class FusedFlatten(Layer):
    """nn.Flatten of channels-last images without a copy: the linear layer after it has its columns in that order."""

    def forward(self, x: Tensor) -> Tensor:
        """Return [C, B, ch, H, W] as [C, B, H * W * ch]."""
        self._image = x.shape[2:]
        return x.permute(0, 1, 3, 4, 2).flatten(2)

    def backward(self, dy: Tensor, descent: Descent) -> Tensor | None:  # noqa: ARG002
        """Return [C, B, H * W * ch] as [C, B, ch, H, W]."""
        channels, height, width = self._image
        return dy.unflatten(2, (height, width, channels)).permute(0, 1, 4, 2, 3)


class FusedLinear(Layer):
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
        self.image = image  # (ch, H, W) if the inputs are images flattened in the order H, W, ch

    def begin(self, start: list[Tensor]) -> None:
        """Set every client to the same weights, with columns in the order of the inputs."""
        w, *bias = start
        if self.image:
            w = w.unflatten(1, self.image).permute(0, 2, 3, 1).flatten(1)
        super().begin([w, *bias])

    def end(self) -> list[Tensor]:
        """Return the weights in the shapes of the module."""
        w, *bias = self.weights
        if self.image:
            channels, height, width = self.image
            w = w.unflatten(2, (height, width, channels)).permute(0, 1, 4, 2, 3).flatten(2)
        return [w, *bias]

    def forward(self, x: Tensor) -> Tensor:
        """Return y = relu(x w' + b)."""
        x = x.to(self.weights[0].dtype)
        w, *bias = (w[: len(x)] for w in self.weights)
        y = x @ w.transpose(1, 2)
        if bias:
            add_bias(y, bias[0], relu=self.relu)
        elif self.relu:
            y.relu_()
        self._kept = x, y
        return y

    def backward(self, dy: Tensor, descent: Descent) -> Tensor | None:
        """Take the step within the last product; return dx as a view of [C, in, B], which is batch-last."""
        x, y = self._kept
        del self._kept
        w, *bias = (w[: len(x)] for w in self.weights)
        if bias or self.relu:
            backward_bias(
                dy, y, bias[0] if bias else None, descent.on, descent.lr, descent.l2, relu=self.relu
            )
        dx = None if self.first else (w.transpose(1, 2) @ dy.transpose(1, 2)).transpose(1, 2)
        descent.decay(w)
        w.baddbmm_(dy.transpose(1, 2), x, alpha=-descent.lr)
        return dx


def make_fused_layers(
    chain: Chain, clients: int, device: torch.device, precision: str, example: Tensor
) -> list[Layer]:
    """Return the layers of a chain, on the GPU kernels where possible; ``example`` is a batch of inputs."""
    modules = [module for _, module in chain]
    inputs = _list_input_shapes(modules, example)
    plain = make_layers(chain, clients, device)
    layers: list[Layer] = []
    place = 0
    while place < len(modules):
        module, first = modules[place], plain[place].first
        before = layers[-1] if layers else None
        if has_kernel(module):
            after = _list_fusible(modules[place + 1 :])
            made = FusedConvolution(module, after, clients, device, precision, first=first)
            if isinstance(before, FusedConvolution):
                made.source, before.feeds = before, True
            layers.append(made)
            place += 1 + len(after)
        elif isinstance(before, FusedConvolution) and _is_flatten_for_linear(modules[place:]):
            layers.append(FusedFlatten(module, clients, device))
            place += 1
        elif (
            isinstance(module, nn.Linear) and len(inputs[place]) == 2 and module.weight.dtype == torch.float32
        ):
            relu = place + 1 < len(modules) and isinstance(modules[place + 1], nn.ReLU)
            image = inputs[place - 1][1:] if isinstance(before, FusedFlatten) else None
            layers.append(FusedLinear(module, clients, device, relu=relu, image=image, first=first))
            place += 1 + relu
        else:
            layers.append(plain[place])
            place += 1
    return layers


def has_kernel(module: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Return whether the kernels support this module."""
    return (
        isinstance(module, nn.Conv2d)
        and module.stride == module.dilation == (1, 1)
        and module.groups == 1
        and module.padding[0] == module.padding[1]
        and module.in_channels <= 128
        and module.weight.dtype == torch.float32
    )


def _list_input_shapes(modules: Sequence[nn.Module], x: Tensor) -> list[torch.Size]:
    """Return the shape of each layer's input."""
    found = []
    with torch.no_grad():
        for module in modules:
            found.append(x.shape)
            x = module(x)
    return found


def _list_fusible(modules: Sequence[nn.Module]) -> list[nn.Module]:
    """Return the layers after a convolution that run in the same kernel."""
    match modules:
        case [nn.ReLU() as relu, nn.MaxPool2d() as pool, *_] if _is_halving(pool):
            return [relu, pool]
        case [nn.ReLU() | nn.MaxPool2d() as one, *_] if isinstance(one, nn.ReLU) or _is_halving(one):
            return [one]
        case _:
            return []


def _is_halving(pool: nn.MaxPool2d) -> bool:
    plain = pool.padding in (0, (0, 0)) and pool.dilation in (1, (1, 1)) and not pool.ceil_mode
    return plain and all(size in (2, (2, 2)) for size in (pool.kernel_size, pool.stride))


def _is_flatten_for_linear(modules: Sequence[nn.Module]) -> bool:
    """Return whether the first layer flattens images entirely, and the second is linear."""
    if len(modules) < 2 or not isinstance(modules[0], nn.Flatten) or not isinstance(modules[1], nn.Linear):
        return False
    return (modules[0].start_dim, modules[0].end_dim) == (1, -1)
