"""Cases of the Flower strategies, over the grid in one process of ``tests/flower/gridding.py``."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

import feduhb
from feduhb import flower
from flower.gridding import Stage, change_answers, make_app, make_grid
from golden.library import LATE, Cases, load_digits
from golden.masking import mask
from golden.reading import (
    Interruption,
    describe_contents,
    describe_error,
    describe_folder,
    describe_history,
    describe_records,
    digest_weights,
    interrupted,
)

ROUNDS = 5
TOLD: dict[str, Any] = {
    "epochs": 1,
    "seed": 3,
    "local": feduhb.Local(batch_size=16, lr=0.05),
    "timeout": 5.0,
}
FORGET: dict[str, Any] = {"clients": [LATE], "rows": {"c01": range(5)}, "class": "class:3"}
STRATEGIES = ("FedUHB", "Retrain", "FedEraser", "FedRecover")
REPLAYING = ("FedEraser", "FedRecover")


def make_strategy(name: str, forget: Any, **more: Any) -> Any:
    """Return a strategy for a short run."""
    few = {"warmup": 3, "correction": 0, "final": 1} if name == "FedRecover" else {}
    return getattr(flower, name)(forget, **few, **TOLD, **more)


def draw_start() -> ArrayRecord:
    """Return the fresh weights that every run here begins with."""
    federation = load_digits()
    return flower.fresh_arrays(federation.model, federation.seed)


def start(strategy: Any, grid: Stage | None = None, rounds: int = ROUNDS, **more: Any) -> flower.Outcome:
    """Run a strategy over a grid, a new one if none is given."""
    return strategy.start(grid or make_grid(load_digits()), draw_start(), rounds, **more)


def stop_in_round(number: int, federation: feduhb.Federation | None = None) -> Stage:
    """Return a grid whose server is interrupted after it has sent one message of a round."""
    grid, sent = make_grid(federation or load_digits()), []

    def before(message: Message) -> None:
        if message.metadata.message_type == "train" and message.content["config"]["round"] == number:
            sent.append(message)
            if len(sent) > 1:
                raise Interruption

    grid.before = before
    return grid


def describe_outcome(outcome: flower.Outcome) -> dict[str, Any]:
    """Return what is pinned of an outcome."""
    return {
        "weights": digest_weights(outcome.params),
        **describe_records([asdict(record) for record in outcome.rounds]),
        "left_out": [[t, " ".join(sorted(who))] for t, who in sorted(outcome.left_out.items()) if who],
        "names": dict(outcome.names),
    }


def describe_both(outcome: flower.Outcome, folder: Path) -> dict[str, Any]:
    """Return what is pinned of an outcome and of its checkpoint folder."""
    found = describe_folder(folder)
    same = found["weights"] == digest_weights(outcome.params)
    return {
        **describe_outcome(outcome),
        "history": found["history"],
        "files": found["files"],
        "folder_agrees": same,
    }


def compute_strategies(place: Path) -> Cases:
    """Train and unlearn with every strategy, with and without sampling."""
    for who, count in {"everyone": None, "sampled": 2}.items():
        source = place / who / "trained"
        train = flower.Train(checkpoint=source, keep_history=True, clients_per_round=count, **TOLD)
        yield f"flower/{who}/Train", describe_both(start(train), source)
        for name in STRATEGIES:
            for what, forget in FORGET.items():
                folder = place / who / f"{name}-{what}"
                old = shutil.copytree(source, folder / "old")
                sampled = {} if name in REPLAYING else {"clients_per_round": count}
                asked = make_strategy(name, forget, trained=old, checkpoint=folder / "new", **sampled)
                if name in REPLAYING and what != "clients":
                    found = describe_error(lambda s=asked: start(s))
                else:
                    found = describe_both(start(asked), folder / "new")
                yield f"flower/{who}/{name}/{what}", {**found, "old_history": describe_history(old)}


def compute_resumed(place: Path) -> Cases:
    """Interrupt every strategy in the middle of a round and submit it again."""
    source = place / "trained"
    start(flower.Train(checkpoint=source, keep_history=True, **TOLD))
    folder = place / "again"
    again = flower.Train(checkpoint=folder, keep_history=True, **TOLD)
    cut = interrupted(lambda: start(again, stop_in_round(2)))
    middle = describe_folder(folder)
    done = describe_both(start(again), folder)
    same = done["weights"] == describe_folder(source)["weights"]
    yield (
        "flower/resume/Train",
        {"interrupted": cut, "middle": middle, "done": done, "equals_uninterrupted": same},
    )
    for name in STRATEGIES:
        yield f"flower/resume/{name}", resume_strategy(name, source, place / name)


def resume_strategy(name: str, source: Path, place: Path) -> dict[str, Any]:
    """Interrupt a strategy in its third round, submit it twice more, and compare it with one that was left alone."""
    calm = make_strategy(
        name, [LATE], trained=shutil.copytree(source, place / "calm"), checkpoint=place / "whole"
    )
    old = shutil.copytree(source, place / "old")
    number = 1 if name == "FedEraser" else 2
    asked = make_strategy(name, [LATE], trained=old, checkpoint=place / "new")
    whole = describe_outcome(start(calm))
    cut = interrupted(lambda: start(asked, stop_in_round(number)))
    middle = {**describe_folder(place / "new"), "old_history": describe_history(old)}
    done = describe_both(start(asked), place / "new")
    grid = make_grid(load_digits())
    last = start(asked, grid)
    return {
        "interrupted": cut,
        "middle": middle,
        "done": done,
        "old_history": describe_history(old),
        "equals_uninterrupted": {key: done[key] == whole[key] for key in ("weights", "moved", "asked")},
        "submitted_again": {"weights": digest_weights(last.params), "trained": sorted(grid.list_trained())},
    }


def compute_chain(place: Path) -> Cases:
    """Serve a second request from the run that served the first, whole clients first and rows after."""
    for first, second in (("FedUHB", "Retrain"), ("Retrain", "FedRecover"), ("FedEraser", "FedUHB")):
        folder = place / f"{first}-{second}"
        start(flower.Train(checkpoint=folder / "a", keep_history=True, clients_per_round=2, **TOLD))
        kept = {} if first in REPLAYING else {"keep_history": True}
        one = make_strategy(first, [LATE], trained=folder / "a", checkpoint=folder / "b", **kept)
        found = {
            "first": describe_both(start(one), folder / "b"),
            "after_first": describe_history(folder / "a"),
        }
        forget: Any = ["c01"] if second in REPLAYING else {"c01": [0, 2, 3]}
        two = make_strategy(second, forget, trained=folder / "b", checkpoint=folder / "c")
        yield (
            f"flower/chain/{first}-{second}",
            {
                **found,
                "second": describe_both(start(two), folder / "c"),
                "after_second": {run: describe_history(folder / run) for run in "ab"},
                "contents": describe_contents(folder / "c"),
            },
        )


def compute_messages(place: Path) -> Cases:
    """Pin what is sent to clients, how they are named, and whose answers are left out."""
    federation = load_digits()
    grid = make_grid(federation, keyed=True)
    asked = make_strategy("FedUHB", "c01,c02:0-3,class:3", checkpoint=place / "keyed", stop=feduhb.never)
    outcome = start(asked, grid, 2, train_config=ConfigRecord({"mine": 1}))
    sent = [{"node": node, "kind": kind, "config": mask(config)} for node, kind, config in grid.sent]
    keys = {str(node): flower.key_id(seat.key) for node, seat in grid.seats.items()}
    yield (
        "flower/messages",
        {
            **describe_both(outcome, place / "keyed"),
            "sent": sent,
            "keys": keys,
            "contents": describe_contents(place / "keyed"),
        },
    )
    spoilt = make_grid(federation, apps={"c02": change_answers(make_app(federation), spoil)})
    yield "flower/left-out", describe_outcome(start(make_strategy("Retrain", [LATE]), spoilt, 2))

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord({"number": number, "size": sum(a.numpy().size for a in arrays.values())})

    scored = start(flower.Train(evaluate_every=2, **TOLD), None, 3, evaluate_fn=evaluate)
    yield (
        "flower/scores",
        {
            **describe_outcome(scored),
            "by_server": {
                str(t): mask(dict(found)) for t, found in scored.evaluate_metrics_serverapp.items()
            },
            "by_clients": {
                str(t): mask(dict(found)) for t, found in scored.evaluate_metrics_clientapp.items()
            },
        },
    )


def spoil(content: RecordDict) -> RecordDict:
    """Put a NaN into an answer."""
    values = {name: array.numpy().copy() for name, array in content.array_records["update"].items()}
    next(iter(values.values())).flat[0] = np.nan
    update = ArrayRecord({name: Array(value) for name, value in values.items()})
    return RecordDict({"update": update, "metrics": content["metrics"]})


def compute_connected(place: Path) -> Cases:
    """Train and unlearn from Python over the clients of a grid."""
    grid, here = make_grid(load_digits(), keyed=True), load_digits()
    far = flower.connected(grid, here.test, here.model, seed=here.seed, timeout=5)
    how: dict[str, Any] = {"epochs": 1, "batch_size": 16, "lr": 0.05, "show": None}
    trained = feduhb.train(far, 2, engine=far.engine, keep_history=True, out=place / "a", **how)
    new = feduhb.unlearn(trained, "c01,c02:0-3", rounds=2, out=place / "b", show=None)
    again = feduhb.open_run(
        place / "b", flower.connected(grid, here.test, here.model, seed=here.seed, timeout=5)
    )
    yield (
        "flower/connected",
        {
            "train": describe_folder(place / "a"),
            "unlearn": describe_folder(place / "b"),
            "forgot": str(new.forgot),
            "opened": {
                "weights": digest_weights(again.params),
                "clients": " ".join(again.federation.clients),
            },
        },
    )


def compute_errors(place: Path) -> Cases:
    """Pin the kinds of errors that strategies raise."""
    start(flower.Train(checkpoint=place / "a", **TOLD), None, 1)
    actions = {
        "no-history": lambda: start(make_strategy("FedEraser", [LATE])),
        "history-not-kept": lambda: start(make_strategy("FedEraser", [LATE], trained=place / "a")),
        "history-of-a-replay": lambda: start(
            make_strategy("FedEraser", [LATE], trained=place / "a", keep_history=True)
        ),
        "other-start": lambda: make_strategy("FedUHB", [LATE], trained=place / "a").start(
            make_grid(load_digits()), flower.fresh_arrays(load_digits().model, 99), 1
        ),
        "own-lr": lambda: start(make_strategy("FedUHB", [LATE]), train_config=ConfigRecord({"lr": 1.0})),
        "same-folder": lambda: make_strategy("FedUHB", [LATE], trained=place / "a", checkpoint=place / "a"),
        "momentum": lambda: flower.FedUHB([LATE], momentum=1.0),
        "unknown-client": lambda: start(make_strategy("FedUHB", ["zoe"])),
        "nobody-remains": lambda: start(make_strategy("FedUHB", list(load_digits().clients))),
        "other-settings": lambda: start(flower.Train(checkpoint=place / "a", **TOLD), None, 2),
        "wrapped": lambda: flower.FedUHB([LATE]).configure_train(
            1, draw_start(), ConfigRecord(), make_grid(load_digits())
        ),
    }
    for name, action in actions.items():
        yield f"flower/error/{name}", describe_error(action)
