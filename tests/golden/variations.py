"""Single cases of the Python API: one setting at a time that the matrix leaves as it is."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

import feduhb
from golden.library import (
    ENGINES,
    FORGET,
    LATE,
    LOCAL,
    METHODS,
    UNLEARN,
    Cases,
    copy_run,
    load_digits,
    make_method,
)
from golden.masking import round_number
from golden.reading import (
    describe_contents,
    describe_error,
    describe_history,
    describe_run,
    digest_weights,
)

RULES = ("median", "trimmed_mean:0.25", "krum", "geometric_median")


class Weights(NamedTuple):
    """The state of `Halved`."""

    params: Tensor  # [P]


@dataclass(frozen=True, slots=True)
class Halved:
    """A method of a user's own: FedAvg with half its step."""

    epochs: int = 1

    name: ClassVar[str] = "halved"
    exact: ClassVar[bool] = True

    @property
    def rounds(self) -> int | None:
        """Leave the number of rounds to the user."""
        return None

    @property
    def needs(self) -> Literal["sum", "each"]:
        """Need no more than the mean."""
        return "sum"

    def init(self, params: Tensor) -> Weights:
        """Begin at these parameters."""
        return Weights(params)

    def ask(self, state: Weights) -> feduhb.Work:
        """Ask everyone who takes part."""
        return feduhb.Work(state.params, self.epochs)

    def tell(self, state: Weights, answers: Iterable[feduhb.Updates]) -> Weights:
        """Take half a step."""
        return Weights(state.params - 0.5 * feduhb.weighted_mean(answers))


@dataclass(frozen=True, slots=True)
class Kept(Halved):
    """A method that cheats: it gives back the weights that it carries."""

    weights: Tensor | None = None
    name: ClassVar[str] = "kept"

    def tell(self, state: Weights, answers: Iterable[feduhb.Updates]) -> Weights:
        """Keep the old weights, whatever clients answer."""
        for _ in answers:
            pass
        return state if self.weights is None else Weights(self.weights.clone())


def make_engine(federation: feduhb.Federation, local: feduhb.Local) -> feduhb.Loop:
    """Make an engine of a user's own: the reference engine, two clients a block."""
    return feduhb.Loop(federation, local, block=2)


def make_own_federation() -> feduhb.Federation:
    """Return a federation of tensors and a convolutional module in float64 that no config can describe."""
    draw = torch.Generator().manual_seed(5)

    def take(count: int) -> tuple[Tensor, Tensor]:
        x = torch.rand(count, 1, 8, 8, generator=draw, dtype=torch.float64) * 2 - 1
        return x, torch.randint(0, 3, (count,), generator=draw)

    layers = (nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 3))
    sizes = {"ant": 1, "bee": 5, "cat": 13, "dog": 24}
    data = {client: take(size) for client, size in sizes.items()}
    return feduhb.Federation(data, take(20), nn.Sequential(*layers).double(), seed=7)


def compute_federations(place: Path) -> Cases:
    """Load federations in every way and train one round on each; the config pins each client's data."""
    ways: dict[str, dict[str, Any]] = {
        "iid": {"partition": "iid"},
        "dirichlet": {"partition": "dirichlet:0.1"},
        "shards": {"partition": "shards:2", "per_client": 40},
        "held-out": {"per_client": 50, "held_out": 0.5},
        "canaries": {"per_client": 50, "canaries": ["c00", "c01"]},
        "backdoor": {"per_client": 50, "backdoor": feduhb.Backdoor(("c01",), target=2, share=0.3, size=3)},
        "mlp": {"per_client": 50, "model": "mlp"},
    }
    for name, asked in ways.items():
        federation = feduhb.load("digits", **{"clients": 4, "model": "softmax", "seed": 11, **asked})
        run = feduhb.train(federation, 1, engine="pool", out=place / name, **LOCAL)
        data = describe_contents(place / name)["config.toml"]["clients"]
        yield f"load/{name}", {**describe_run(run), "data": data}


def compute_engines(place: Path) -> Cases:
    """Train models of more than one layer and whole gradients with every engine; and data of the user's own."""
    for engine in ENGINES:
        how = {**LOCAL, "engine": engine}
        deep = feduhb.train(load_digits("mlp"), 2, **{**how, "epochs": 2, "l2": 0.01})
        yield (
            f"mlp/{engine}",
            {
                "train": describe_run(deep),
                "feduhb": describe_run(feduhb.unlearn(deep, [LATE], rounds=3, show=None)),
            },
        )
        steps = feduhb.train(load_digits(), 3, **{**how, "epochs": 0})
        yield (
            f"gradients/{engine}",
            {
                "train": describe_run(steps),
                **{
                    m: describe_run(feduhb.unlearn(steps, [LATE], method=m, rounds=3, show=None))
                    for m in METHODS[:2]
                },
                "federaser": describe_error(lambda r=steps: feduhb.unlearn(r, [LATE], method="federaser")),
            },
        )
        folder = place / engine
        own = feduhb.train(make_own_federation(), 3, keep_history=True, out=folder / "a", **how)
        first = feduhb.unlearn(own, "bee,dog:0-4+9", out=folder / "b", **UNLEARN)
        opened = feduhb.open_run(folder / "b", make_own_federation().without("bee"))
        yield (
            f"own-data/{engine}",
            {
                "train": describe_run(own),
                "first": describe_run(first),
                "second_after_deletion": describe_run(feduhb.unlearn(opened, "cat,dog:12", **UNLEARN)),
                "unopened": describe_error(lambda f=folder: feduhb.open_run(f / "b")),
            },
        )
    small = feduhb.train(load_digits(), 2, block=2, out=place / "block", **{**LOCAL, "engine": "stacked"})
    yield "block/stacked", describe_run(small)


def compute_rules(place: Path) -> Cases:
    """Train and unlearn with every aggregation rule; methods that replay refuse them."""
    for rule in RULES:
        folder = place / rule.partition(":")[0]
        how = {**LOCAL, "engine": "loop", "aggregate": rule}
        run = feduhb.train(load_digits(), 3, keep_history=True, out=folder / "a", **how)
        yield (
            f"rule/{rule}",
            {
                "train": describe_run(run),
                "federaser": describe_error(lambda r=run: feduhb.unlearn(r, [LATE], method="federaser")),
                "feduhb": describe_run(feduhb.unlearn(run, [LATE], out=folder / "b", **UNLEARN)),
            },
        )


def compute_stops(source: Path) -> Cases:
    """Stop by the dynamic rule in each of its forms, or never."""
    run = feduhb.open_run(source)
    rules = {
        "early": feduhb.dynamic_stop(50.0),
        "window": feduhb.dynamic_stop(20.0, window=4),
        "floor": feduhb.dynamic_stop(0.0, floor=1e6),
        "printed": feduhb.dynamic_stop(50.0, as_printed=True),
        "never": feduhb.never,
    }
    for name, rule in rules.items():
        new = feduhb.unlearn(run, [LATE], stop=rule, rounds=6, erase_history=False, show=None)
        replayed = feduhb.replay(rule, [record.moved for record in new.rounds])
        yield f"stop/{name}", {**describe_run(new), "replayed": replayed}


def compute_settings(place: Path, source: Path) -> Cases:
    """Change one setting of an unlearning at a time. ``source`` is a training with a history."""

    def serve(name: str, **changes: Any) -> dict[str, Any]:
        run = copy_run(source, place / name / "old")
        asked = {"forget": [LATE], "out": place / name / "new", **UNLEARN, **changes}
        new = feduhb.unlearn(run, **asked)
        return {**describe_run(new), "old_history": describe_history(place / name / "old")}

    own: Any = Halved()  # it has the parts that a method needed in version 0.1
    yield "setting/no-folder", serve("no-folder", out=None)
    yield "setting/history-kept", serve("history-kept", erase_history=False)
    yield "setting/no-new-history", serve("no-new-history", keep_history=False)
    yield "setting/half-history", serve("half-history", keep_history="float16")
    yield "setting/engine", serve("engine", engine="stacked", block=2)
    yield "setting/own-engine", serve("own-engine", engine=make_engine)
    yield (
        "setting/own-method",
        {
            **serve("own-method", method=own),
            "unopened": describe_error(lambda: feduhb.open_run(place / "own-method" / "new")),
            "opened": describe_run(feduhb.open_run(place / "own-method" / "new", method=own)),
        },
    )
    yield "setting/own-rule", serve("own-rule", method=feduhb.FedUHB(epochs=1, aggregate=feduhb.median))
    yield "setting/momentum", serve("momentum", method=feduhb.FedUHB(0.8, momentum=0.5, epochs=2))
    yield "setting/interval", serve("interval", method=feduhb.FedEraser(interval=3, ratio=1.0, epochs=2))
    corrected = feduhb.FedRecover(warmup=2, correction=1, final=0, buffer=1, abnormal=0.3, epochs=1)
    yield "setting/correction", serve("correction", method=corrected)
    yield "setting/rare-checkpoints", serve("rare-checkpoints", checkpoint_every=1000.0)
    yield "setting/mixed-request", serve("mixed-request", forget="c00,c02:0-3+7,class:5")


def compute_half(place: Path) -> Cases:
    """Keep a history in half precision and replay it."""
    how = {**LOCAL, "engine": "loop", "keep_history": "float16"}
    run = feduhb.train(load_digits(), 5, out=place / "a", **how)
    found: dict[str, Any] = {"train": describe_run(run)}
    for method in ("federaser", "fedrecover"):
        new = feduhb.unlearn(
            run, [LATE], method=make_method(method), out=place / method, erase_history=False, show=None
        )
        found[method] = describe_run(new)
    yield "half-precision", found


def compute_comparison(place: Path, source: Path) -> Cases:
    """Compare methods from Python."""
    run = copy_run(source, place / "old")
    found = feduhb.compare(run, [LATE], rounds=3, out=place / "all", show=None)
    named = feduhb.compare(run, "class:3", rounds=2, show=None)
    several = [feduhb.FedUHB(momentum=beta, epochs=1) for beta in (0.9, 0.5)]
    twice = feduhb.compare(run, [LATE], several, rounds=1, show=None)
    yield (
        "compare",
        {
            "all": {name: describe_run(one) for name, one in found.items()},
            "class": {name: describe_run(one) for name, one in named.items()},
            "twice": {name: describe_run(one) for name, one in twice.items()},
            "chosen": [list(found), list(named), list(twice)],
            "old_history": describe_history(place / "old"),
        },
    )


def compute_audits(place: Path, chain: Path) -> Cases:
    """Audit models that learned wrong labels by heart, one that replayed and one that kept them; and a second request.

    Args:
        chain: two requests one after the other, of `golden.library.compute_chains`.
    """
    marked = feduhb.Canaries(("c00", "c01"), share=1.0)
    asked = {"clients": 4, "per_client": 120, "held_out": 0.5, "model": "mlp", "canaries": marked, "seed": 2}
    how = {**LOCAL, "epochs": 4, "batch_size": 4, "lr": 0.3, "engine": "loop", "keep_history": True}
    trained = feduhb.train(feduhb.load("digits", **asked), 4, out=place / "trained", **how)
    methods = {"retrain": "retrain", "federaser": "federaser", "kept": Kept(weights=trained.params)}
    runs: dict[str, feduhb.Run] = {}
    for name, method in methods.items():
        plain = {"rounds": 4, "erase_history": False, "keep_history": False, "show": None}
        runs[name] = feduhb.unlearn(trained, ["c00", "c01"], method=method, out=place / name, **plain)
    for name in ("federaser", "kept"):
        few: dict[str, Any] = {"exactness": name == "kept", "relearn": 0, "show": None}
        feduhb.audit(runs[name], trained, retrain=runs["retrain"], **few)
        yield f"audit/{name}", describe_contents(place / name)["audit.json"]
    first, second = feduhb.open_run(chain / "b"), feduhb.open_run(chain / "c")
    feduhb.audit(second, first, out=place / "since", canaries=0.0, relearn=1, show=None)
    yield "audit/since", describe_contents(place / "since")["audit.json"]


ERRORS: dict[str, Callable[[feduhb.Run, Path], object]] = {
    "nobody-remains": lambda run, _: feduhb.unlearn(run, list(run.federation.clients)),
    "unknown-client": lambda run, _: feduhb.unlearn(run, ["zoe"]),
    "unknown-row": lambda run, _: feduhb.unlearn(run, {"c00": [9999]}),
    "unknown-class": lambda run, _: feduhb.unlearn(run, "class:77"),
    "unknown-method": lambda run, _: feduhb.unlearn(run, [LATE], method="magic"),
    "a-class-for-a-method": lambda run, _: feduhb.unlearn(run, [LATE], method=feduhb.FedUHB),  # pyright: ignore[reportArgumentType]
    "no-rounds": lambda run, _: feduhb.unlearn(run, [LATE], rounds=0),
    "folder-taken": lambda run, _: feduhb.unlearn(run, [LATE], out=run.folder),
    "history-of-a-replay": lambda run, p: feduhb.unlearn(
        run, [LATE], method="federaser", out=p, keep_history=True
    ),
    "history-without-folder": lambda run, _: feduhb.train(run.federation, 1, keep_history=True),
    "too-many-sampled": lambda run, _: feduhb.train(run.federation, 1, clients_per_round=9),
    "unknown-engine": lambda run, _: feduhb.train(run.federation, 1, engine="warp"),
    "unknown-rule": lambda run, _: feduhb.train(run.federation, 1, aggregate="mode"),
    "bad-lr": lambda run, _: feduhb.train(run.federation, 1, lr=-1.0),
    "unknown-data": lambda *_: feduhb.load("letters"),
    "bad-partition": lambda *_: feduhb.load("digits", partition="dirichlet"),
    "no-run": lambda _, place: feduhb.open_run(place / "nowhere"),
    "bad-momentum": lambda *_: feduhb.FedUHB(momentum=1.0),
    "bad-warmup": lambda *_: feduhb.FedRecover(warmup=1),
    "audit-of-a-training": lambda run, _: feduhb.audit(run),
    "bad-shadows": lambda run, _: feduhb.audit(run, shadows=3),
}


def compute_errors(place: Path, source: Path) -> Cases:
    """Pin the kinds of errors, and that a refused request erases nothing."""
    for name, action in ERRORS.items():
        run = copy_run(source, place / name / "run")
        found = describe_error(lambda a=action, r=run, n=name: a(r, place / n / "new"))
        yield f"error/{name}", {**found, "old_history": describe_history(place / name / "run")}
    plain = feduhb.train(load_digits(), 1, engine="loop", **LOCAL)
    yield "error/no-history", describe_error(lambda: feduhb.unlearn(plain, [LATE], method="federaser"))


def compute_functions() -> Cases:
    """Apply the public functions that need no run."""
    draw = torch.Generator().manual_seed(1)
    values = torch.randn(6, 4, generator=draw, dtype=torch.float64)
    block = feduhb.Updates(tuple("abcdef"), values, torch.arange(1.0, 7.0, dtype=torch.float64))
    rules = ("weighted_mean", "median", "trimmed_mean", "krum", "geometric_median")
    yield (
        "function/aggregate",
        {rule: [round_number(v) for v in getattr(feduhb, rule)([block]).tolist()] for rule in rules},
    )
    moved = [1.0, 1.4, 1.2, 0.9, 0.3, 0.2]
    stops = {"plain": feduhb.dynamic_stop(), "strict": feduhb.dynamic_stop(1.5, window=3, floor=0.25)}
    yield "function/stop", {name: feduhb.replay(rule, moved) for name, rule in stops.items()}
    federation = load_digits()
    parameters = federation.without(FORGET["rows"]).fresh_model().parameters()
    fresh = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
    yield (
        "function/federation",
        {
            "fresh": digest_weights(fresh),
            "sizes": {client: len(examples) for client, examples in federation.clients.items()},
            "rows": {c: len(e) for c, e in federation.without(FORGET["rows"]).clients.items()},
            "class": {c: len(e) for c, e in federation.without(FORGET["class"]).clients.items()},
        },
    )


def compute_names() -> Cases:
    """Pin the public names, and the parameters of each with those defaults that are plain values."""
    for package in (feduhb, feduhb.flower):
        yield (
            f"names/{package.__name__}",
            {name: _describe_name(getattr(package, name)) for name in package.__all__},
        )


def _describe_name(value: Any) -> dict[str, Any]:
    if not callable(value) or (isinstance(value, type) and issubclass(value, Exception)):
        return {}
    plain = (str, int, float, bool, type(None))
    found = inspect.signature(value).parameters.values()
    return {p.name: p.default if isinstance(p.default, plain) else "(required or other)" for p in found}
