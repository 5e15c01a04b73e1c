"""`feduhb theorem`: FedUHB and Retrain where the paper's theorem speaks, and how far apart they are."""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from feduhb.core.checks import check_whole
from feduhb.core.flat import flatten, with_params
from feduhb.core.types import Local, Method
from feduhb.data.federation import Federation
from feduhb.data.load import FederationSettings, build_federation
from feduhb.data.request import as_request
from feduhb.engines import Pool
from feduhb.engines.scoring import score_model
from feduhb.errors import ConfigError, StorageError
from feduhb.methods import FedUHB, Retrain
from feduhb.runs.execute import watch_rounds
from feduhb.runs.folder import Round, disk_errors, versions, write_atomically
from feduhb.runs.plan import Show
from feduhb_reproduction import bounds

FILE = "theorem.json"
SHOWN = 20  # rounds of a run that are shown, evenly spaced


@dataclass(frozen=True, slots=True, kw_only=True)
class TheoremSettings:
    """What to measure on. A larger regulariser μ converges in fewer rounds, to a model that fits less."""

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
            raise ConfigError("no beta is given; name some, such as 0,0.3,0.6,0.9")
        for beta in self.betas:
            FedUHB(momentum=beta)  # refuses what cannot be
        if not 0 < self.regulariser < math.inf:
            raise ConfigError(
                f"the regulariser is {self.regulariser}; give a positive number, such as 0.02: without it the loss is not strongly convex and the theorem is silent"
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
    """Run Retrain, then FedUHB with every β, from one fresh model; give distances, bounds and constants.

    ``folder`` holds the files of data sets that do not come along.
    """
    began = time.perf_counter()
    federation = remaining(settings, folder)
    known = bounds.constants(federation, settings.regulariser)
    engine = Pool(federation, Local(loss=federation.loss, l2=known.strong))
    start = flatten(federation.fresh_model())

    def follow(label: str, method: Method[Any]) -> bounds.Path:
        with watch_rounds(show, label, settings.rounds) as tell:

            def sometimes(record: Round) -> None:
                done = record.round + 1
                if tell and (done % max(1, settings.rounds // SHOWN) == 0 or done == settings.rounds):
                    tell(record)

            clients = list(federation.clients)
            return bounds.follow(method, engine, clients, start, settings.rounds, sometimes)

    plain = follow("retrain", Retrain(epochs=0, step_size=known.step_size))
    retrain = _ended(federation, plain, known)
    runs: list[dict[str, Any]] = []
    from_optimum = (retrain["gap"], _from_start(plain))
    for beta in settings.betas:
        ball = follow(f"beta {beta:g}", FedUHB(epochs=0, step_size=known.step_size, momentum=beta))
        runs.append(_compared(beta, ball, plain, known) | _ended(federation, ball, known))
        from_optimum = min(from_optimum, (runs[-1]["gap"], _from_start(ball)))
    return {
        "settings": asdict(settings) | {"forget": str(as_request(settings.forget))},
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


def remaining(settings: TheoremSettings, folder: Path | None = None) -> Federation:
    """Return softmax regression on the clients that remain, with all of their images."""
    federation = build_federation(
        FederationSettings(
            data=settings.data,
            clients=settings.clients,
            partition=settings.partition,
            held_out=0.0,
            model="softmax",
        ),
        settings.seed,
        folder,
    )
    return bounds.regression(federation.without(settings.forget))


def _compared(beta: float, ball: bounds.Path, plain: bounds.Path, known: bounds.Constants) -> dict[str, Any]:
    """Set a measured path under its two bounds."""
    largest = bounds.largest_gradient(ball, plain)
    distance = bounds.distances(ball, plain)
    rounds, rho = len(distance) - 1, known.shrink
    pushes = {
        name: bounds.push(known.step_size, beta, largest, tight=name == "tight")
        for name in ("paper", "tight")
    }
    bound = {name: bounds.bound(rounds, rho, pushed) for name, pushed in pushes.items()}
    peak = max(range(rounds + 1), key=distance.__getitem__)
    return {
        "beta": beta,
        "G": largest,
        "peak_round": peak,
        "peak": distance[peak],
        "final": distance[-1],
        **{f"under_{name}": all(map(float.__le__, distance, bound[name])) for name in bound},
        **{f"{name}_limit": bounds.limit(rho, pushed) for name, pushed in pushes.items()},
        **{f"{name}_closest": _closest(distance, bound[name]) for name in bound},
        "distance": _short(distance),
        **{name: _short(series) for name, series in bound.items()},
    }


def _closest(distance: list[float], bound: list[float]) -> dict[str, float] | None:
    """Return the least that a bound exceeds the distance by, as a ratio, and where; None if nothing is apart."""
    ratios = [
        (above / below, t) for t, (below, above) in enumerate(zip(distance, bound, strict=True)) if below
    ]
    return dict(zip(("ratio", "round"), min(ratios), strict=True)) if ratios else None


def _ended(federation: Federation, path: bounds.Path, known: bounds.Constants) -> dict[str, float]:
    """Return where a path ended: how near the optimum at most, and how good a classifier."""
    model = with_params(federation.fresh_model(), path.weights[-1])
    _, accuracy = score_model(model, federation.test, federation.loss)
    return {"gap": path.gap(known.strong), "test_accuracy": accuracy}


def _from_start(path: bounds.Path) -> float:
    return float(torch.linalg.vector_norm(path.weights[-1] - path.weights[0]))


def _short(values: list[float]) -> list[float]:
    """Keep six digits: enough for any figure."""
    return [float(f"{value:.6g}") for value in values]
