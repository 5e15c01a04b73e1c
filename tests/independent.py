"""Kinds of models that compute every example on its own, with examples, losses, and whether one backward pass squares them."""

import functools

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm

from feduhb.core.modules import prepare_training
from feduhb.models import logistic, mlp, paper_cnn, resnet18, softmax


class Attention(nn.Module):
    """Attention with one head, out of linear layers on tokens [B, L, D]."""

    def __init__(self, width):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        scores = self.query(x) @ self.key(x).mT / x.shape[-1] ** 0.5
        return self.out(scores.softmax(-1) @ self.value(x))


class Words(nn.Module):
    """A small transformer on tokens [B, L], of which 0 is padding."""

    def __init__(self, words=5, width=6, mixing=None):
        super().__init__()
        self.words = nn.Embedding(words, width, padding_idx=0)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width, eps=1e-3)
        self.mixing = Attention(width) if mixing is None else mixing
        self.inner = nn.Sequential(nn.Linear(width, 9), nn.GELU(), nn.Linear(9, width, bias=False))
        self.head = nn.Linear(width, 3)

    def forward(self, tokens):
        x = self.words(tokens)
        x = x + self.mixing(self.first(x))
        return self.head((x + self.inner(self.second(x))).mean(1))


class Tied(Words):
    """Its last layer is its table of words."""

    def forward(self, tokens):
        x = self.words(tokens)
        return functional.linear((x + self.mixing(self.first(x))).mean(1), self.words.weight)


class Places(Words):
    """A row of a second table is added at each place, which all examples share."""

    def __init__(self):
        super().__init__()
        self.places = nn.Embedding(7, 6)

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.mixing(x).mean(1))


class LengthFirst(Words):
    """Its attention reads tokens as [L, B, D]."""

    def forward(self, tokens):
        x = self.words(tokens)
        return self.head(self.mixing.out(x.transpose(0, 1)).mean(0))


class Twice(nn.Module):
    """Calls one layer twice."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.layer(self.layer(x).tanh()))


class Twins(nn.Module):
    """Two layers with one weight."""

    def __init__(self):
        super().__init__()
        self.one, self.other, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.other.weight = self.one.weight

    def forward(self, x):
        return self.head(self.other(self.one(x).tanh()))


class Lending(nn.Module):
    """Uses the weight of a layer both in its call and beside it."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.layer(x).tanh()) + 0.1 * self.layer.weight.sum() * x[:, :3]


class Functional(nn.Module):
    """Uses the weight of a layer, and calls the layer only for what the loss does not see."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        self.layer(x)
        return self.head(functional.linear(x, self.layer.weight, self.layer.bias).tanh())


class Scaled(nn.Module):
    """Multiplies its outputs by a number that it learns."""

    def __init__(self):
        super().__init__()
        self.body, self.scale = nn.Linear(6, 3), nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.body(x) * self.scale


class Spare(nn.Module):
    """Has a layer that it does not call, and one whose outputs nobody reads; the others are called by keyword."""

    def __init__(self):
        super().__init__()
        self.idle, self.unread = nn.Linear(6, 6), nn.Linear(6, 6)
        self.first, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        self.unread(x)
        return self.head(input=functional.relu_(self.first(input=x)))


class Own(nn.Linear):
    """A layer with a forward pass of its own."""

    def forward(self, input):
        return super().forward(input) * 2


def convolve():
    """Convolutions with strides, padding, dilation and groups, and ReLUs that overwrite their outputs."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=(2, 1), padding=(1, 2)), nn.ReLU(inplace=True),
        nn.Conv2d(4, 6, (2, 3), dilation=(2, 1), groups=2), nn.GroupNorm(3, 6), nn.ReLU(inplace=True),
        nn.Conv2d(6, 6, 1, groups=6, bias=False), nn.Flatten(), nn.LazyLinear(3),
    )  # fmt: skip


def along_lines():
    return nn.Sequential(
        nn.Conv1d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(28, 3)
    )


def in_space():
    return nn.Sequential(
        nn.Conv3d(1, 2, 2, padding=(1, 0, 1)), nn.GroupNorm(1, 2), nn.Flatten(), nn.LazyLinear(3)
    )


def adapt():
    """Freeze a convolution, and the weight of a layer whose bias is trained."""
    model = convolve()
    model[0].requires_grad_(False)
    model[2].weight.requires_grad_(False)
    model[3].bias.requires_grad_(False)
    return model


def hook():
    """Double the outputs of a layer from outside."""

    def double(_layer, _inputs, outputs):
        return 2 * outputs

    layer = nn.Linear(6, 3)
    layer.register_forward_hook(double)
    return layer


def replace_forward():
    layer = nn.Linear(6, 3)
    layer.forward = lambda input: functional.linear(input, layer.weight, layer.bias) * 2
    return layer


def make_values(*shape):
    return lambda count, draw: torch.randn(count, *shape, generator=draw, dtype=torch.float64)


def make_tokens(count, draw):
    return torch.randint(0, 5, (count, 7), generator=draw)


def make_labels(classes=3):
    return lambda count, draw: torch.randint(0, classes, (count,), generator=draw)


def make_some_labels(count, draw):
    """Some are left out, but not all."""
    return torch.where(torch.arange(count) % 3 == 1, -100, make_labels()(count, draw))


def make_places(count, draw):
    """A label for every place of an image, of which some are left out."""
    labels = torch.randint(0, 3, (count, 4, 4), generator=draw)
    return torch.where(torch.rand(count, 4, 4, generator=draw) < 0.3, 1, labels)


def overwrite(outputs, targets):
    """A loss of the user's own, which changes its inputs."""
    return outputs.sub_(targets).pow(2).mean()


def weigh_largest(outputs, targets):
    """A loss of the user's own, in which an example's share depends on the others."""
    errors = (outputs - targets).square().sum(1)
    return (
        (errors.softmax(0).detach() * errors).sum() + outputs.std(0).sum()
        if len(errors) > 1
        else errors.sum()
    )


SUM = functools.partial(functional.cross_entropy, reduction="sum")
WEIGHTS = torch.tensor([1.0, 5.0, 20.0], dtype=torch.float64)
VECTOR, IMAGE, LABELS, PLAIN = make_values(6), make_values(2, 8, 7), make_labels(), functional.cross_entropy

KINDS = {  # model, inputs, targets, loss, whether one backward pass gives the squares
    "cnn for MNIST": (lambda: paper_cnn((1, 28, 28), 10), make_values(1, 28, 28), make_labels(10), PLAIN, True),
    "cnn for CIFAR": (lambda: paper_cnn((3, 32, 32), 10), make_values(3, 32, 32), make_labels(10), PLAIN, True),
    "mlp": (lambda: mlp((2, 8, 7), 3), IMAGE, LABELS, PLAIN, True),
    "softmax": (lambda: softmax((6,), 3), VECTOR, LABELS, PLAIN, True),
    "logistic": (lambda: logistic((6,), 2), VECTOR, make_labels(2), PLAIN, True),
    "resnet": (lambda: resnet18((2, 8, 7), 3, norm="group", width=4), IMAGE, LABELS, PLAIN, True),
    "convolutions": (convolve, IMAGE, LABELS, PLAIN, True),
    "lines": (along_lines, make_values(2, 7), LABELS, PLAIN, True),
    "space": (in_space, make_values(1, 3, 4, 3), LABELS, PLAIN, True),
    "a label for each place": (lambda: nn.Conv2d(2, 3, 1), make_values(2, 4, 4), make_places, nn.CrossEntropyLoss(WEIGHTS, ignore_index=1), True),
    "tokens": (Words, make_tokens, LABELS, PLAIN, True),
    "tokens, torch's attention": (
        lambda: Words(mixing=nn.TransformerEncoderLayer(6, 2, 8, 0.0, batch_first=True)), make_tokens, LABELS, PLAIN, False,
    ),
    "a table for places": (Places, make_tokens, LABELS, PLAIN, False),
    "tokens before examples": (LengthFirst, make_tokens, LABELS, PLAIN, False),
    "weights of classes": (convolve, IMAGE, LABELS, nn.CrossEntropyLoss(WEIGHTS), True),
    "smoothing": (convolve, IMAGE, LABELS, nn.CrossEntropyLoss(label_smoothing=0.2), True),
    "weights of classes, smoothing": (
        convolve, IMAGE, LABELS, functools.partial(functional.cross_entropy, weight=WEIGHTS, label_smoothing=0.1), True,
    ),
    "labels left out": (convolve, IMAGE, make_some_labels, PLAIN, True),
    "sums": (convolve, IMAGE, LABELS, SUM, True),
    "squared errors": (convolve, IMAGE, make_values(3), functional.mse_loss, True),
    "several labels": (convolve, IMAGE, lambda n, draw: (make_values(3)(n, draw) > 0).double(), nn.BCEWithLogitsLoss(pos_weight=WEIGHTS), True),
    "probabilities": (convolve, IMAGE, lambda n, draw: make_values(3)(n, draw).softmax(1), PLAIN, True),
    "a loss that overwrites": (convolve, IMAGE, make_values(3), overwrite, False),
    "a loss of the user's own": (convolve, IMAGE, make_values(3), weigh_largest, True),
    "frozen parts": (adapt, IMAGE, LABELS, PLAIN, True),
    "parts that are not used": (Spare, VECTOR, LABELS, PLAIN, True),
    "tied words": (Tied, make_tokens, make_labels(5), PLAIN, False),
    "tied layers": (Twins, VECTOR, LABELS, PLAIN, False),
    "a layer called twice": (Twice, VECTOR, LABELS, PLAIN, False),
    "a weight lent": (Lending, VECTOR, LABELS, PLAIN, False),
    "a weight without its layer": (Functional, VECTOR, LABELS, PLAIN, False),
    "a number": (Scaled, VECTOR, LABELS, PLAIN, False),
    "an own layer": (lambda: Own(6, 3), VECTOR, LABELS, PLAIN, False),
    "a hook": (hook, VECTOR, LABELS, PLAIN, False),
    "an own forward": (replace_forward, VECTOR, LABELS, PLAIN, False),
    "weight norm": (lambda: weight_norm(nn.Linear(6, 3)), VECTOR, LABELS, PLAIN, False),
    "circular padding": (
        lambda: nn.Sequential(nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"), nn.Flatten(), nn.LazyLinear(3)),
        IMAGE, LABELS, PLAIN, False,
    ),
    "a table of bounded rows": (
        lambda: nn.Sequential(nn.Embedding(5, 3, max_norm=0.5), nn.Flatten(), nn.LazyLinear(3)), make_tokens, LABELS, PLAIN, False,
    ),
}  # fmt: skip
FAST = [name for name, kind in KINDS.items() if kind[-1]]


def make_examples(kind, count, seed=0):
    """Return inputs and targets of a kind in float64."""
    _, inputs, targets, _, _ = KINDS[kind]
    draw = torch.Generator().manual_seed(seed)
    return inputs(count, draw), targets(count, draw)


def make_independent(kind):
    """Return a module of a kind in float64, in training mode, and its loss."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = KINDS[kind][0]().double()
        model(make_examples(kind, 2)[0])  # lazy layers learn their sizes
    return prepare_training(model), KINDS[kind][3]
