"""A pretrained backbone, frozen, with a new head: train the head over clients, then forget one of them.

The backbone learns digits 0 to 4, which are public here. Six clients hold digits 5 to 9, and one of them all 9s. The
run starts from the given weights, so `start="given"` declares that they never saw the clients' data. Only the head is
trained and sent.

    python examples/pretrained_head.py
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import feduhb

LEAVER = "client-0"


def load() -> tuple[Tensor, Tensor]:
    """Return the 1,797 digits of scikit-learn [n, 1, 8, 8] in [-1, 1], and their classes, in a fixed random order."""
    x, y = load_digits(return_X_y=True)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    return torch.tensor(x, dtype=torch.float32)[order].view(-1, 1, 8, 8) / 8 - 1, torch.tensor(y)[order]


def make_backbone() -> nn.Module:
    """Return a small convolutional network with BatchNorm, without a head."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
    )  # fmt: skip


def pretrain(backbone: nn.Module, x: Tensor, y: Tensor) -> None:
    """Train a backbone, with a head that is thrown away, on public examples."""
    net = nn.Sequential(backbone, nn.Linear(128, 5))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.005)
    for _ in range(4):
        for batch in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[batch]), y[batch]).backward()
            optimizer.step()


def make_federation() -> feduhb.Federation:
    """Return clients with digits 5 to 9 and a pretrained backbone with a new head; only the leaver holds 9s."""
    torch.manual_seed(0)
    x, y = load()
    backbone = make_backbone()
    pretrain(backbone, x[y < 5], y[y < 5])
    net = nn.Sequential(backbone.requires_grad_(False), nn.Linear(128, 5))
    x, y = x[y >= 5], y[y >= 5] - 5
    test, (x, y) = (x[:200], y[:200]), (x[200:], y[200:])
    clients = {f"client-{i}": (x[y < 4][i - 1 :: 5], y[y < 4][i - 1 :: 5]) for i in range(1, 6)}
    return feduhb.Federation({LEAVER: (x[y == 4], y[y == 4]), **clients}, test, net, start="given")


def main() -> None:
    """Train, forget a client by FedUHB and by Retrain, and print a table."""
    federation = make_federation()
    trained = feduhb.train(federation, 15, epochs=1, batch_size=32, lr=0.01, momentum=0.9, show=None)
    runs = feduhb.compare(trained, [LEAVER], ["feduhb", "retrain"], rounds=15, show=None)
    everything = sum(p.numel() for p in federation.fresh_model().parameters())
    print(f"trained and sent: {trained.params.numel()} of {everything} parameters")
    x, y = federation.test.all()
    print("run          rounds  digits 5 to 8  digit 9")
    for name, run in {"with leaver": trained, **runs}.items():
        right = run.model()(x).argmax(1) == y
        others, nines = (float(right[some].float().mean()) for some in (y < 4, y == 4))
        print(f"{name:11}  {len(run.rounds):6}  {others:13.1%}  {nines:7.1%}")


if __name__ == "__main__":
    main()
