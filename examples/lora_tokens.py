"""A pretrained transformer, frozen, with LoRA adapters: train them over clients, then forget one of them.

The transformer learns to guess the next character of Python's documentation, which is public. Each client holds lines
of one module of the standard library, with labels: 0 for code, 1 for comments. The leaver labels the wrong way round.
Only the adapters and the head are trained and sent.

    python examples/lora_tokens.py
"""

from __future__ import annotations

import importlib
import inspect
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.nn import functional

import feduhb

LENGTH, WIDTH, LETTERS = 32, 32, 128  # ASCII; 0 is padding
CLIENTS, LEAVER, TEST = ("argparse", "inspect", "optparse", "subprocess", "threading"), "argparse", "tarfile"


class Transformer(nn.Module):
    """One causal layer over characters, and a head on the mean of what is not padding."""

    query: nn.Module  # linear at first, later an adapter
    value: nn.Module

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(LETTERS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.mix = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 128), nn.ReLU(), nn.Linear(128, WIDTH))
        self.head = nn.Linear(WIDTH, 2)

    def encode(self, tokens: Tensor) -> Tensor:
        """Return a vector for each character [B, LENGTH, WIDTH]."""
        x = self.embed(tokens) + self.place(torch.arange(LENGTH, device=tokens.device))
        x = x + functional.scaled_dot_product_attention(
            self.query(x), self.key(x), self.value(x), is_causal=True
        )
        return x + self.mix(x)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return the scores of both labels [B, 2]."""
        share = mask / mask.sum(1, keepdim=True)
        return self.head((self.encode(tokens) * share[..., None]).sum(1))


class Adapter(nn.Module):
    """LoRA: W x + B A x, with the given W, A and B of rank 4, and B = 0 at the start."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.a, self.b = layer, nn.Linear(WIDTH, 4, bias=False), nn.Linear(4, WIDTH, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return W x + B A x."""
        return self.layer(x) + self.b(self.a(x))


def pretrain(net: Transformer) -> None:
    """Learn to guess the next character of public text."""
    text = torch.tensor([ord(letter) % LETTERS for topic in topics.values() for letter in topic])
    optimizer = torch.optim.Adam(net.parameters(), lr=0.005)
    for _ in range(150):
        lines = text[torch.randint(len(text) - LENGTH, (32, 1)) + torch.arange(LENGTH + 1)]
        scores = net.encode(lines[:, :-1]) @ net.embed.weight.T
        optimizer.zero_grad()
        functional.cross_entropy(scores.flatten(0, 1), lines[:, 1:].flatten()).backward()
        optimizer.step()


def read_lines(module: str) -> tuple[dict[str, Tensor], Tensor]:
    """Return lines of a module, 80 of code and 80 comments, as tokens with a mask, and their labels."""
    lines = [line.strip() for line in inspect.getsource(importlib.import_module(module)).splitlines()]
    code = [line for line in lines if len(line) > 20 and line[0].isalpha() and line[-1] in ":)]"][:80]
    comments = [line[2:] for line in lines if len(line) > 20 and line.startswith("# ")][:80]
    padded = [line[:LENGTH].ljust(LENGTH, "\0") for line in code + comments]
    tokens = torch.tensor([[ord(letter) % LETTERS for letter in line] for line in padded])
    return {"tokens": tokens, "mask": tokens > 0}, torch.tensor([0] * len(code) + [1] * len(comments))


def main() -> None:
    """Train, forget a client by FedUHB and by Retrain, and print a table."""
    torch.manual_seed(0)
    net = Transformer()
    pretrain(net)
    net.requires_grad_(False).head.requires_grad_(True)
    net.query = Adapter(net.query)
    net.value = Adapter(net.value)
    clients = {module: read_lines(module) for module in CLIENTS}
    x, y = clients[LEAVER][0], 1 - clients[LEAVER][1]
    federation = feduhb.Federation({**clients, LEAVER: (x, y)}, read_lines(TEST), net, start="given")
    adamw = {"optimizer": "adamw", "weight_decay": 0.01, "clip_norm": 1.0}
    trained = feduhb.train(federation, 10, epochs=2, batch_size=32, lr=0.03, show=None, **adamw)
    methods = [feduhb.FedUHB(epochs=2, momentum=0.5), "retrain"]  # Adam's steps are long: less momentum
    runs = feduhb.compare(trained, [LEAVER], methods, rounds=10, show=None)
    print(
        f"trained and sent: {trained.params.numel()} of {sum(p.numel() for p in net.parameters())} parameters"
    )
    print("run          rounds  test accuracy  loss on the leaver's labels")
    for name, run in {"with leaver": trained, **runs}.items():
        accuracy, loss = run.rounds[-1].scores["test_accuracy"], functional.cross_entropy(run.model()(**x), y)
        print(f"{name:11}  {len(run.rounds):6}  {accuracy:13.1%}  {loss.item():27.2f}")


if __name__ == "__main__":
    main()
