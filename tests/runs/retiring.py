"""Runs to retire: a training, the run that replaces it, its audit, and runs beside them that still hold the leaver."""

from __future__ import annotations

from pathlib import Path

import torch

import feduhb

NAMES = ("c00", "c01", "c02", "c03")
LEAVER = "c01"
FAST = {"canaries": 0.0, "relearn": 0}  # of an audit


def draw(client: str, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return examples of three classes that a linear model can tell apart, drawn from the client's name."""
    generator = torch.Generator().manual_seed(sum(client.encode()))
    y = torch.arange(size) % 3
    return torch.eye(3, 6)[y] * 4 + torch.randn(size, 6, generator=generator), y


def federation(*names: str) -> feduhb.Federation:
    """Return the federation of these clients; all if none is named."""
    clients = {name: draw(name, 24) for name in names or NAMES}
    return feduhb.Federation(clients, draw("test", 60), torch.nn.Linear(6, 3), seed=3)


def train(folder: Path, rounds: int = 3) -> feduhb.Run:
    """Train all clients with a history."""
    return feduhb.train(
        federation(), rounds, epochs=1, batch_size=8, lr=0.1, keep_history=True, out=folder, show=None
    )


def unlearn(run: feduhb.Run, forget: str, folder: Path, *, audited: bool = True, **more) -> feduhb.Run:
    """Serve a request and audit it."""
    new = feduhb.unlearn(run, forget, rounds=3, stop=feduhb.never, out=folder, show=None, **more)
    if audited:
        assert feduhb.audit(new, run, show=None, **FAST).verdict.word == "forgotten"
    return new


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the content of every file in a folder, and the target of every link."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_symlink() or path.is_file())
    return {
        str(path.relative_to(folder)): bytes(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in found
    }
