"""Kinds of models, inputs, losses and optimisers, each as a small federation of ragged clients in float64."""

import functools
import itertools

import torch
from torch import nn
from torch.nn import functional

import feduhb
from feduhb.core.flat import flatten
from feduhb.engines import Loop

SIZES = {
    "ant": 2,
    "bee": 5,
    "cat": 13,
    "dog": 16,
    "elk": 9,
}  # with batches of 4, three end with a batch of one
DRAW = torch.Generator().manual_seed(0)
BATCH = 4


def draw(*shape):
    return torch.randn(*shape, generator=DRAW, dtype=torch.float64)


def draw_labels(count, classes=3):
    return torch.randint(0, classes, (count,), generator=DRAW)


def draw_tokens(count):
    """Sentences of 1 to 6 tokens out of 11, padded with token 0."""
    mask = torch.arange(6) < torch.randint(1, 7, (count, 1), generator=DRAW)
    return {"tokens": torch.randint(1, 11, (count, 6), generator=DRAW) * mask, "mask": mask}


class Block(nn.Module):
    """A residual block, as in ResNet."""

    def __init__(self, channels):
        super().__init__()
        self.one = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.two = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.first, self.second = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels, momentum=0.3)

    def forward(self, x):
        return functional.relu(x + self.second(self.two(functional.relu(self.first(self.one(x))))))


class Pooled(nn.Module):
    """The mean over the places of an image."""

    def forward(self, x):
        return x.mean((2, 3))


def make_resnet():
    stem = nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(*stem, Block(4), Pooled(), nn.Linear(4, 3))


class Reader(nn.Module):
    """A transformer on tokens with a mask."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(11, 8, padding_idx=0)
        self.register_buffer("places", torch.linspace(0, 1, 48).view(6, 8).double())
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(8, 3)

    def forward(self, tokens, mask):
        x = self.layer(self.words(tokens) + self.places, src_key_padding_mask=~mask)
        return self.head(self.drop((x * mask.unsqueeze(-1)).sum(1)))


class Twins(nn.Module):
    """Two inputs, one of which goes through a norm that is used for both."""

    def __init__(self):
        super().__init__()
        self.norm, self.body, self.head = nn.BatchNorm1d(5, affine=False), nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, one, other):
        return self.head((self.norm(self.body(one)) * self.norm(other)).tanh())


class Rows(nn.Module):
    """BatchNorm of all places of a sequence, as rows [B * 6, 8]; and InstanceNorm with statistics."""

    def __init__(self):
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(4), nn.Linear(24, 3)
        self.own = nn.InstanceNorm1d(4, affine=True, track_running_stats=True, momentum=0.2)

    def forward(self, x):
        x = self.own(x)
        x = self.norm(x.transpose(1, 2).flatten(0, 1)).unflatten(0, (-1, 6))
        return self.head(x.flatten(1))


class Scaled(nn.Module):
    """A classifier that learns one number to multiply its outputs by, a tensor without axes."""

    def __init__(self):
        super().__init__()
        self.body, self.scale = make_mlp(), nn.Parameter(torch.ones(()))

    def reset_parameters(self):
        nn.init.ones_(self.scale)

    def forward(self, x):
        return self.body(x) * self.scale


class Adapter(nn.Module):
    """A frozen linear layer, and a trained product of two thin matrices beside it: LoRA."""

    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def adapt(model):
    """Freeze a transformer but for its head, and add adapters to its feed-forward layers."""
    model.requires_grad_(False)
    model.layer.linear1, model.layer.linear2 = Adapter(model.layer.linear1), Adapter(model.layer.linear2)
    model.head.requires_grad_(True)
    return model


def make_mlp(*more, out=3):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.Tanh(), *more, nn.Linear(6, out))


def freeze(model, *frozen):
    """Freeze the parts of a model, after its norms have gathered some statistics."""
    with torch.no_grad():
        model.double()(draw(9, 1, 8, 8))
    for part in frozen:
        model[part].requires_grad_(False)
    return model


def shift_and_flip(x, numbers):
    """Flip some images and move each by up to two places."""
    flipped = torch.where((numbers[:, 0] < 0.5).view(-1, 1, 1, 1), x.flip(-1), x)
    wide = functional.pad(flipped, (2, 2, 0, 0))
    places = (numbers[:, 1] * 5).long().view(-1, 1, 1, 1) + torch.arange(x.shape[-1], device=x.device)
    return wide.gather(-1, places.expand_as(x))


def images(count):
    return draw(count, 1, 8, 8)


KINDS = {  # model, inputs, targets, settings of the federation, settings of the clients
    "resnet": (make_resnet, images, draw_labels, {}, {}),
    "resnet, momentum, decay": (make_resnet, images, draw_labels, {}, {"momentum": 0.9, "weight_decay": 0.01}),
    "dropout": (lambda: make_mlp(nn.Dropout(0.3)), images, draw_labels, {}, {"l2": 0.01}),
    "dropout of channels": (
        lambda: nn.Sequential(nn.Conv2d(1, 6, 3), nn.Dropout2d(0.4), nn.BatchNorm2d(6), Pooled(), nn.Dropout(0.1), nn.Linear(6, 3)),
        images, draw_labels, {}, {},
    ),
    "frozen backbone": (
        lambda: freeze(nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), Pooled(), nn.Linear(4, 3)), 0, 1),
        images, draw_labels, {"start": "given"}, {},
    ),
    "frozen in part": (lambda: freeze(make_resnet(), 0, 4), images, draw_labels, {"start": "given"}, {"momentum": 0.5}),
    "tokens with a mask": (Reader, draw_tokens, draw_labels, {}, {"optimizer": "adam"}),
    "lora": (lambda: adapt(Reader()), draw_tokens, draw_labels, {"start": "given"}, {"optimizer": "adamw"}),
    "two inputs": (Twins, lambda n: (draw(n, 5), draw(n, 5)), draw_labels, {}, {}),
    "norms of rows": (Rows, lambda n: draw(n, 4, 6), draw_labels, {}, {}),
    "squares": (lambda: make_mlp(out=2), images, lambda n: draw(n, 2), {"loss": "mse"}, {}),
    "huber": (lambda: make_mlp(out=1), images, lambda n: 3 * draw(n, 1), {"loss": "huber"}, {}),
    "several labels": (
        lambda: make_mlp(out=4), images, lambda n: (draw(n, 4) > 0).double(),
        {"loss": nn.BCEWithLogitsLoss(pos_weight=torch.tensor([1.0, 2, 3, 4]).double())}, {},
    ),
    "weights of classes": (
        make_resnet, images, draw_labels, {"loss": nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5, 20]).double())}, {},
    ),
    "smoothing": (make_mlp, images, draw_labels, {"loss": nn.CrossEntropyLoss(label_smoothing=0.1)}, {}),
    "adamw, clipping, schedule": (
        make_mlp, images, draw_labels, {},
        {"optimizer": "adamw", "weight_decay": 0.1, "clip_norm": 0.5, "schedule": "cosine"},
    ),
    "adam, decay, schedule": (
        make_mlp, images, draw_labels, {}, {"optimizer": "adam", "l2": 0.1, "schedule": "linear"},
    ),
    "momentum, proximal": (
        make_mlp, images, draw_labels, {}, {"momentum": 0.9, "proximal": 0.5, "schedule": "decay:0.9"},
    ),
    "proximal, clipping": (make_mlp, images, draw_labels, {}, {"proximal": 0.5, "clip_norm": 0.1}),
    "a number, clipping": (Scaled, images, draw_labels, {}, {"optimizer": "adam", "clip_norm": 0.5}),
    "augmentation": (make_resnet, images, draw_labels, {"augment": shift_and_flip}, {}),
}  # fmt: skip


@functools.cache
def make_federation(kind, dtype=torch.float64):
    model, inputs, targets, settings, _ = KINDS[kind]
    DRAW.manual_seed(0)
    torch.manual_seed(0)
    module = model().double().to(dtype)

    def make_part(count):
        x = inputs(count)
        if isinstance(x, tuple):
            return tuple(part.to(dtype) for part in x), targets(count)
        return x if isinstance(x, dict) else x.to(dtype), targets(count)

    data = {client: make_part(size) for client, size in SIZES.items()}
    return feduhb.Federation(data, make_part(6), module, seed=7, **settings)


def make_local(kind):
    federation = make_federation(kind)
    return feduhb.Local(
        batch_size=BATCH, lr=0.05, loss=federation.loss, augment=federation.augment, **KINDS[kind][-1]
    )


def train_all(engine, federation, epochs=2, round=3):
    """Return the updates of all clients, and the start."""
    start = flatten(federation.fresh_model())
    blocks = list(engine.train(feduhb.Work(start, epochs), tuple(federation.clients), round))
    assert tuple(itertools.chain.from_iterable(block.clients for block in blocks)) == tuple(
        federation.clients
    )
    return torch.cat([block.values for block in blocks])


@functools.cache
def train_on_loop(kind):
    found = train_all(Loop(make_federation(kind), make_local(kind)), make_federation(kind))
    assert found.isfinite().all()
    assert found.any(1).all()
    return found
