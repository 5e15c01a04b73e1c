"""Cases of the Python API: methods, engines, requests, sampling, resuming and chains of requests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import feduhb
from golden.reading import (
    describe_contents,
    describe_error,
    describe_folder,
    describe_history,
    describe_run,
    interrupt_after,
    interrupted,
)

Cases = Iterator[tuple[str, Any]]
ENGINES = ("loop", "pool", "stacked")
METHODS = ("feduhb", "retrain", "federaser", "fedrecover")
REPLAYING = ("federaser", "fedrecover")
ROUNDS = 6
SAMPLED = {"everyone": None, "sampled": 2}
LATE = (
    "c03"  # the client that is asked last where two are sampled, so that an erasure leaves rounds before it
)
FORGET: dict[str, Any] = {"clients": [LATE], "rows": {"c01": range(5)}, "class": "class:3"}
LOCAL: dict[str, Any] = {"epochs": 1, "batch_size": 16, "lr": 0.05, "show": None}
UNLEARN: dict[str, Any] = {"rounds": 5, "show": None}


@cache
def load_digits(model: str = "softmax") -> feduhb.Federation:
    """Return the federation of these cases: five clients of 60 images, one of whom plants a backdoor."""
    planted = feduhb.Backdoor(("c00",), size=2)
    return feduhb.load(
        "digits", clients=5, partition="dirichlet:0.5", per_client=60, model=model, backdoor=planted, seed=3
    )


def make_method(name: str) -> Any:
    """Return a method for a short run: FedRecover with two estimated rounds, the others by their name."""
    if name == "fedrecover":
        return feduhb.FedRecover(warmup=3, correction=0, final=1, buffer=2, epochs=1)
    return name


def copy_run(source: Path, target: Path) -> feduhb.Run:
    """Open a copy of a run over `load_digits`, so that an erasure does not reach the other cases."""
    shutil.copytree(source, target)
    return feduhb.open_run(target, load_digits())


def compute_matrix(place: Path) -> Cases:
    """Train with every engine, with and without sampling, and unlearn with every method what can be forgotten."""
    for engine in ENGINES:
        for who, count in SAMPLED.items():
            source = place / engine / who
            trained = feduhb.train(
                load_digits(),
                ROUNDS,
                engine=engine,
                clients_per_round=count,
                keep_history=True,
                out=source,
                **LOCAL,
            )
            yield f"train/{engine}/{who}", describe_run(trained)
            for method in METHODS:
                for what in FORGET:
                    name = f"unlearn/{engine}/{who}/{method}/{what}"
                    yield name, unlearn_copy(source, place / name, method, what)


def unlearn_copy(source: Path, place: Path, method: str, what: str) -> dict[str, Any]:
    """Unlearn from a copy of a training; return the run, or the error, and what is left of the old history."""
    run = copy_run(source, place / "old")
    if method in REPLAYING and what != "clients":
        refused = describe_error(lambda: feduhb.unlearn(run, FORGET[what], method=method, **UNLEARN))
        return {**refused, "old_history": describe_history(place / "old")}
    new = feduhb.unlearn(run, FORGET[what], method=make_method(method), out=place / "new", **UNLEARN)
    return {**describe_run(new), "old_history": describe_history(place / "old")}


def compute_resumed(place: Path) -> Cases:
    """Interrupt trainings and unlearnings in the middle and resume them in the same folder."""
    for engine in ENGINES:
        source = place / engine / "whole"
        how = {"engine": engine, "clients_per_round": 3, "keep_history": True, **LOCAL}
        whole = feduhb.train(load_digits(), ROUNDS, out=source, **how)
        folder = place / engine / "train"
        stopped = {**how, "show": interrupt_after(2)}
        cut = interrupted(lambda f=folder, h=stopped: feduhb.train(load_digits(), ROUNDS, out=f, **h))
        middle = describe_folder(folder)
        resumed = feduhb.train(load_digits(), ROUNDS, out=folder, resume=True, **how)
        yield f"resume/{engine}/train", _describe_resumed(cut, middle, resumed, whole)
        for method in METHODS:
            yield f"resume/{engine}/{method}", resume_unlearning(source, place / engine / method, method)
    source, ruled = place / "loop" / "whole", feduhb.dynamic_stop(50.0)
    yield "resume/stop-rule", resume_unlearning(source, place / "stop-rule", "feduhb", stop=ruled)
    rare = resume_unlearning(source, place / "rare", "feduhb", checkpoint_every=1000.0)
    yield "resume/rare-checkpoints", rare


def resume_unlearning(source: Path, place: Path, method: str, **more: Any) -> dict[str, Any]:
    """Interrupt an unlearning after its second round, resume it, and compare it with one that was left alone."""
    how: dict[str, Any] = {"method": make_method(method), **UNLEARN, **more}
    whole = feduhb.unlearn(copy_run(source, place / "calm"), [LATE], out=place / "whole", **how)
    old = copy_run(source, place / "old")
    stopped = {**how, "show": interrupt_after(1)}
    cut = interrupted(lambda: feduhb.unlearn(old, [LATE], out=place / "new", **stopped))
    middle = {**describe_folder(place / "new"), "old_history": describe_history(place / "old")}
    old = feduhb.open_run(place / "old", load_digits())
    new = feduhb.unlearn(old, [LATE], out=place / "new", resume=True, **how)
    again = feduhb.unlearn(old, [LATE], out=place / "new", resume=True, **how)
    found = _describe_resumed(cut, middle, new, whole)
    left = {"resumed_again": describe_run(again)["weights"], "old_history": describe_history(place / "old")}
    return {**found, **left}


def _describe_resumed(cut: bool, middle: Any, resumed: feduhb.Run, whole: feduhb.Run) -> dict[str, Any]:
    done, calm = describe_run(resumed), describe_run(whole)
    same = {key: done[key] == calm[key] for key in ("weights", "moved", "asked", "scores", "threshold")}
    return {"interrupted": cut, "middle": middle, "resumed": done, "equals_uninterrupted": same}


CHAINS = [
    ("loop", "feduhb", "feduhb"),
    ("loop", "retrain", "federaser"),
    ("loop", "feduhb", "fedrecover"),
    ("loop", "federaser", "retrain"),
    ("loop", "fedrecover", "feduhb"),
    ("pool", "feduhb", "retrain"),
    ("stacked", "retrain", "feduhb"),
]


def compute_chains(place: Path) -> Cases:
    """Serve a second request from the run that served the first; rows where the second method can forget them."""
    for engine, first, second in CHAINS:
        name = f"chain/{engine}/{first}-{second}"
        folder = place / name
        feduhb.train(
            load_digits(),
            ROUNDS,
            engine=engine,
            clients_per_round=2,
            keep_history=True,
            out=folder / "a",
            **LOCAL,
        )
        how = {"method": make_method(first), **UNLEARN}
        one = feduhb.unlearn(feduhb.open_run(folder / "a"), [LATE], out=folder / "b", **how)
        left = {"a": describe_history(folder / "a"), "b": describe_history(folder / "b")}
        forget: Any = ["c01"] if second in REPLAYING else {"c01": [0, 2, 3]}
        how = {"method": make_method(second), **UNLEARN}
        two = feduhb.unlearn(feduhb.open_run(folder / "b"), forget, out=folder / "c", **how)
        yield (
            name,
            {
                "first": describe_run(one),
                "second": describe_run(two),
                "after_first": left,
                "after_second": {run: describe_history(folder / run) for run in "abc"},
                "links": {run: _describe_links(folder / run) for run in "abc"},
            },
        )


def _describe_links(folder: Path) -> list[Any]:
    """Return what a run folder says of the runs before and after it, as pairs of a file and its content."""
    return [
        [n, found] for n, found in describe_contents(folder).items() if n in {"erased.json", "lineage.json"}
    ]


def compute_contents(place: Path) -> Cases:
    """Pin the values in every file of a run folder, one of each kind."""
    trained = feduhb.train(load_digits(), 4, engine="loop", keep_history=True, out=place / "train", **LOCAL)
    yield "contents/train", describe_contents(place / "train")
    more: dict[str, Any] = {"rounds": 3, "erase_history": False, "show": None}
    for method in METHODS:
        feduhb.unlearn(trained, [LATE], method=make_method(method), out=place / method, **more)
        yield f"contents/{method}", describe_contents(place / method)
    how = {**LOCAL, "show": interrupt_after(1), "engine": "stacked"}
    cut = interrupted(lambda: feduhb.train(load_digits(), 4, block=2, out=place / "unfinished", **how))
    yield "contents/unfinished", {"interrupted": cut, "files": describe_contents(place / "unfinished")}
