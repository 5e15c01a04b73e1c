"""`feduhb theorem`: the distance of FedUHB to Retrain on a problem that meets the paper's assumptions."""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import feduhb
from feduhb import Federation, FedUHB, Local, Method, Pool, Request, Retrain
from feduhb.core import check_whole, flatten, with_params
from feduhb.engines import score_model
from feduhb.errors import ConfigError, StorageError
from feduhb.runs import Show, disk_errors, show_steps, versions, write_atomically
from feduhb_reproduction import bounds

FILE = "theorem.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TheoremSettings:
    """The settings of the measurement. A larger regulariser μ converges in fewer rounds, to a model that fits less."""

    data: str = "mnist-5k"
    clients: int = 20
    partition: str = "iid"
    forget: str = "c00,c01"
    betas: tuple[float, ...] = (0.0, 0.3, 0.6, 0.9)
    regulariser: float = 0.02  # μ
    rounds: int = 400
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "betas", tuple(sorted({float(beta) for beta in self.betas})))
        check_whole("rounds", self.rounds)
        if not self.betas:
            raise ConfigError("no beta is given; give some, such as 0,0.3,0.6,0.9")
        for beta in self.betas:
            FedUHB(momentum=beta)  # refuses what cannot be
        if not 0 < self.regulariser < math.inf:
            raise ConfigError(
                f"the regulariser is {self.regulariser}; give a positive number, such as 0.02: the theorem needs a strongly convex loss"
            )


def run_theorem(
    out: Path, settings: TheoremSettings | None = None, *, folder: Path | None = None, show: Show = "auto"
) -> dict[str, Any]:
    """Measure, and write theorem.json into ``out``."""
    chosen = settings or TheoremSettings()
    try:
        with disk_errors(out):
            out.mkdir(parents=True, exist_ok=True)
        found = measure(chosen, folder=folder, show=show)
        write_atomically(out / FILE, (json.dumps(found, allow_nan=False) + "\n").encode())
    except StorageError as error:
        reason = getattr(error.__cause__, "strerror", None) or error
        raise StorageError(
            f"cannot write {FILE} into {out}: {reason}; choose another folder with --out"
        ) from error
    return found


def measure(settings: TheoremSettings, *, folder: Path | None = None, show: Show = "auto") -> dict[str, Any]:
    """Run Retrain, then FedUHB with every β, from one fresh model; return distances, bounds and constants.

    ``folder`` holds the files of data sets that are not installed with feduhb.
    """
    began = time.perf_counter()
    federation = load_remaining(settings, folder)
    known = bounds.find_constants(federation, settings.regulariser)
    engine = Pool(federation, Local(loss=federation.loss, l2=known.strong))
    start = flatten(federation.fresh_model())

    with show_steps(show, "theorem", 1 + len(settings.betas)) as begin:

        def follow(label: str, method: Method[Any]) -> bounds.Path:
            begin(label, settings.rounds)
            return bounds.follow_method(method, engine, list(federation.clients), start, settings.rounds)

        plain = follow("retrain", Retrain(epochs=0, step_size=known.step_size))
        retrain = _measure_end(federation, plain, known)
        runs: list[dict[str, Any]] = []
        from_optimum = (retrain["gap"], _measure_length(plain))
        for beta in settings.betas:
            ball = follow(f"beta {beta:g}", FedUHB(epochs=0, step_size=known.step_size, momentum=beta))
            runs.append(_compare(beta, ball, plain, known) | _measure_end(federation, ball, known))
            from_optimum = min(from_optimum, (runs[-1]["gap"], _measure_length(ball)))
    return {
        "settings": asdict(settings) | {"forget": str(Request.parse(settings.forget))},
        "remaining_clients": len(federation.clients),
        "remaining_examples": sum(map(len, federation.clients.values())),
        "parameters": start.numel(),
        "mu": known.strong,
        "L": known.smooth,
        "alpha": known.step_size,
        "rho": known.shrink,
        "start_from_optimum": from_optimum[1],
        "retrain": retrain,
        "runs": runs,
        "engine": dict(engine.about),
        "versions": versions(),
        "seconds": time.perf_counter() - began,
    }


def load_remaining(settings: TheoremSettings, folder: Path | None = None) -> Federation:
    """Return softmax regression on the clients that remain, with all of their images."""
    federation = feduhb.load(
        settings.data, clients=settings.clients, partition=settings.partition, held_out=0.0, model="softmax",
        seed=settings.seed, data=folder,
    )  # fmt: skip
    return bounds.make_regression(federation.without(settings.forget))


def _compare(beta: float, ball: bounds.Path, plain: bounds.Path, known: bounds.Constants) -> dict[str, Any]:
    """Compare a measured path with its two bounds."""
    largest = bounds.find_largest_gradient(ball, plain)
    distance = bounds.measure_distances(ball, plain)
    rounds, rho = len(distance) - 1, known.shrink
    pushes = {
        name: bounds.compute_push(known.step_size, beta, largest, tight=name == "tight")
        for name in ("paper", "tight")
    }
    bound = {name: bounds.bound_distances(rounds, rho, pushed) for name, pushed in pushes.items()}
    peak = max(range(rounds + 1), key=distance.__getitem__)
    return {
        "beta": beta,
        "G": largest,
        "peak_round": peak,
        "peak": distance[peak],
        "final": distance[-1],
        **{f"under_{name}": all(map(float.__le__, distance, bound[name])) for name in bound},
        **{f"{name}_limit": bounds.find_limit(rho, pushed) for name, pushed in pushes.items()},
        **{f"{name}_closest": _find_closest(distance, bound[name]) for name in bound},
        "distance": _round_series(distance),
        **{name: _round_series(series) for name, series in bound.items()},
    }


def _find_closest(distance: list[float], bound: list[float]) -> dict[str, float] | None:
    """Return the least ratio of bound to distance, and its round; None if the distance is always 0."""
    ratios = [
        (above / below, t) for t, (below, above) in enumerate(zip(distance, bound, strict=True)) if below
    ]
    return dict(zip(("ratio", "round"), min(ratios), strict=True)) if ratios else None


def _measure_end(federation: Federation, path: bounds.Path, known: bounds.Constants) -> dict[str, float]:
    """Return a path's end: a bound on its distance to the optimum, and its test accuracy."""
    model = with_params(federation.fresh_model(), path.weights[-1])
    _, accuracy = score_model(model, federation.test, federation.loss)
    return {"gap": path.gap(known.strong), "test_accuracy": accuracy}


def _measure_length(path: bounds.Path) -> float:
    return float(torch.linalg.vector_norm(path.weights[-1] - path.weights[0]))


def _round_series(values: list[float]) -> list[float]:
    """Return the values to six digits, enough for a figure."""
    return [float(f"{value:.6g}") for value in values]
