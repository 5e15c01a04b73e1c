"""Run the rounds in JAX: a round is one compiled function, `lax.map` over clients around `lax.scan` over steps.

Convolutions are matrix products of patches. This was the fastest of five ways tried on two cores (4 clients x 100 images, on a
busy machine). XLA's own convolutions took as long step by step, and twenty times as long inside a compiled loop; `vmap` over
clients took twice as long.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from task import BATCH, RATE, Task, print_answer

SHAPES = ((32, 1, 5, 5), (32,), (64, 32, 5, 5), (64,), (512, 1024), (512,), (10, 512), (10,))


def convolve(x: Any, w: Any, b: Any) -> Any:
    """Return a 5 x 5 convolution, ReLU and 2 x 2 maximum of x [n, channels, side, side]."""
    side = x.shape[2] - 4
    patches = jnp.stack([x[:, :, i : i + side, j : j + side] for i in range(5) for j in range(5)], -1)
    patches = patches.transpose(0, 2, 3, 1, 4).reshape(len(x) * side * side, -1)
    y = jax.nn.relu(patches @ w.reshape(len(w), -1).T + b)
    return y.reshape(len(x), side // 2, 2, side // 2, 2, -1).max((2, 4)).transpose(0, 3, 1, 2)


def compute_loss(w: list[Any], x: Any, y: Any, keep: Any) -> Any:
    """Return the mean cross entropy of the images of a batch that are kept."""
    x = convolve(convolve(x, w[0], w[1]), w[2], w[3]).reshape(len(x), -1)
    x = jax.nn.relu(x @ w[4].T + w[5]) @ w[6].T + w[7]
    each = -jnp.take_along_axis(jax.nn.log_softmax(x), y[:, None], 1)[:, 0]
    return (each * keep).sum() / keep.sum()


def train_client(start: list[Any], x: Any, y: Any, rows: Any, keep: Any) -> list[Any]:
    """Return one client's parameters after its steps; rows and keep are [steps, batch]."""

    def step(w: list[Any], batch: Any) -> tuple[list[Any], None]:
        at, kept = batch
        slope = jax.grad(compute_loss)(w, x[at], y[at], kept)
        return [a - RATE * g for a, g in zip(w, slope, strict=True)], None

    return lax.scan(step, start, (rows, keep))[0]


@jax.jit
def run_round(start: list[Any], x: Any, y: Any, rows: Any, keep: Any) -> list[Any]:
    """Return the mean of all clients' models after a round; all clients hold the same number of images."""
    models = lax.map(lambda own: train_client(start, *own), (x, y, rows, keep))
    return [part.mean(0) for part in models]


def make_schedule(task: Task, round: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of every batch [clients, steps, BATCH], padded with the first image, and which of them count."""
    ragged = [list(task.draw_batches(client, round)) for client in range(task.clients)]
    rows = np.zeros((task.clients, len(ragged[0]), BATCH), np.int32)
    keep = np.zeros(rows.shape, np.float32)
    for client, batches in enumerate(ragged):
        for step, positions in enumerate(batches):
            rows[client, step, : len(positions)] = positions
            keep[client, step, : len(positions)] = 1
    return rows, keep


def main() -> None:
    """Run the rounds."""
    task = Task.from_arguments()
    cuts = np.cumsum([np.prod(shape) for shape in SHAPES])[:-1]
    w = [part.reshape(shape) for part, shape in zip(np.split(task.start, cuts), SHAPES, strict=True)]
    x, y = (jnp.stack(parts) for parts in zip(*map(task.read_part, range(task.clients)), strict=True))
    seconds = []
    for number in range(task.rounds):
        began = time.perf_counter()
        w = jax.block_until_ready(run_round(w, x, y, *make_schedule(task, number)))
        seconds.append(time.perf_counter() - began)
    print_answer(seconds, np.concatenate([np.asarray(part).ravel() for part in w]), f"jax {jax.__version__}")


if __name__ == "__main__":
    main()
