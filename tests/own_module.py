"""A module of a user's own: data with a model of its own class, methods, and functions that fail; and commands that use it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from feduhb.cli import app

MARKER = "imported"  # the file that the module appends to when it is imported
CODE = '''
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import torch

import feduhb
from feduhb import Method, Work, weighted_mean

with Path(__file__).with_name("imported").open("a") as file:
    file.write("imported\\n")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(x)


def draw(name, size):
    """Examples of three classes that a linear model can tell apart."""
    generator = torch.Generator().manual_seed(sum(name.encode()))
    y = torch.arange(size) % 3
    return torch.eye(3, 6)[y] * 4 + torch.randn(size, 6, generator=generator), y


def make():
    clients = {name: draw(name, 24) for name in ("north", "south", "east", "west")}
    return feduhb.Federation(clients, draw("test", 60), Net(), seed=99)


def raises():
    raise ValueError("the disk\\nis gone")


def leaves():
    raise SystemExit(3)


def returns_tensors():
    return draw("x", 3)


A_NUMBER = 3


class State(NamedTuple):
    params: torch.Tensor
    before: torch.Tensor


@dataclass(frozen=True, slots=True)
class Lookahead(Method[State]):
    momentum: float = 0.9
    epochs: int = 5

    name: ClassVar[str] = "lookahead"
    exact: ClassVar[bool] = True

    def __post_init__(self):
        if self.momentum >= 1:
            raise ValueError("momentum must be below 1")

    def init(self, params):
        return State(params, params)

    def ask(self, state):
        return Work(state.params + self.momentum * (state.params - state.before), self.epochs)

    def tell(self, state, answers):
        ahead = state.params + self.momentum * (state.params - state.before)
        return State(ahead - weighted_mean(answers), state.params)


GENTLE = Lookahead(momentum=0.3, epochs=1)


@dataclass(frozen=True, slots=True)
class Misnamed(Lookahead):
    name: ClassVar[str] = "../escape"
'''
CONFIG = """
seed = 3
[federation]
data = "{}"
[train]
rounds = 3
epochs = 1
batch_size = 8
lr = 0.1
"""


def write_project(folder: Path, name: str, data: str | None = None) -> Path:
    """Write a module of this name, and a config beside it; return the config."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.py").write_text(CODE)
    config = folder / "federation.toml"
    config.write_text(CONFIG.format(data or f"{name}.py:make"))
    return config


def was_imported(folder: Path) -> bool:
    """Whether a module in a folder was imported since the last call."""
    found = (folder / MARKER).exists()
    (folder / MARKER).unlink(missing_ok=True)
    return found


def forget_modules(path: list[str]) -> None:
    """Undo imports of modules that are named wards..., as in a new process."""
    for name in [name for name in sys.modules if name.startswith("wards")]:
        del sys.modules[name]
    sys.path[:] = path


@pytest.fixture(autouse=True)
def as_in_a_new_process():
    """Undo imports of own modules before and after each test."""
    path = [place for place in sys.path if "wards" not in place]
    forget_modules(path)
    yield
    forget_modules(path)


def invoke(*arguments: Any):
    """Run a command that must succeed."""
    ended = CliRunner().invoke(app, [str(a) for a in arguments])
    assert ended.exit_code == 0, ended.output
    return ended


def refuse(*arguments: Any) -> str:
    """Run a command that must fail with one line; return the line."""
    ended = CliRunner().invoke(app, [str(a) for a in arguments])
    assert ended.exit_code == 2, ended.output
    said = [line for line in ended.stderr.splitlines() if line]
    assert len(said) == 1, said
    return said[0]
