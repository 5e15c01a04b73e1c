"""Models that cannot be trained exactly: each is refused in one line with the way out, before anything trains or is erased."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import feduhb
from data.wording import refused
from feduhb.core.modules import check_module
from feduhb.errors import ConfigError, DataError, ModelError
from runs.remembering import files

X = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 3
SIZES = {"ant": 4, "bee": 5, "cat": 6}
NO_ADDRESS = "draws random numbers that have no address, so no seed of a client and round fixes them"


def federation(model: Any, sizes: dict[str, int] = SIZES, **how: Any) -> feduhb.Federation:
    return feduhb.Federation({c: (X[:n], Y[:n]) for c, n in sizes.items()}, (X, Y), model, **how)


def train(model: Any, sizes: dict[str, int] = SIZES, *, given: bool = False, **how: Any) -> feduhb.Run:
    made = federation(model, sizes, start="given" if given else "fresh")
    return feduhb.train(made, 2, **{"epochs": 1, "batch_size": 3, "show": None, **how})


def normalised(norm: nn.Module | None = None) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), norm or nn.BatchNorm1d(4), nn.Linear(4, 3))


def dropping() -> nn.Module:
    return normalised(nn.Dropout(0.5))


def gathering() -> nn.Module:
    """Statistics of single examples, in a layer that needs no batch."""
    norm = nn.InstanceNorm1d(2, track_running_stats=True)
    return nn.Sequential(nn.Linear(3, 4), nn.Unflatten(1, (2, 2)), norm, nn.Flatten(), nn.Linear(4, 3))


def half_frozen() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3).requires_grad_(False), nn.Linear(3, 3))


class Drawing(nn.Module):
    """Adds a random number that a function returns."""

    def __init__(self, draw: Callable[[], Any]) -> None:
        super().__init__()
        self.draw = draw

    def forward(self, x: Tensor) -> Tensor:
        return x + self.draw()


class Counting(nn.Linear):
    """Counts its batches in a buffer, which is a new tensor each time, or does not exist at first."""

    def __init__(self, before: Tensor | None, *, anew: bool = False) -> None:
        super().__init__(3, 3)
        self.anew = anew
        self.register_buffer("seen", before)

    def forward(self, input: Tensor) -> Tensor:
        if self.anew or self.seen is None:
            self.seen = input.mean() if self.seen is None else self.seen + 1
        else:
            self.seen += 1
        return super().forward(input)


class Growing(nn.Linear):
    """Multiplies by the number of batches that it has seen."""

    seen = 0

    def forward(self, input: Tensor) -> Tensor:
        self.seen += 1
        return super().forward(input) * self.seen


BUFFER = (
    "buffer seen changes in training, but it is neither a constant nor a statistic of a normalisation layer, so the server "
    "has no rule to combine it; compute it in forward, or use the running statistics of BatchNorm"
)
STATE = (
    "the model returns other outputs when it computes the same batch again, so it draws numbers that have no address or keeps a "
    "state of its own; use nn.Dropout or the numbers of an augmentation, and keep no state in forward"
)
FROZEN = (
    "parameter 0.weight is frozen (requires_grad=False), so a fresh draw of it would never be trained; if the module's weights "
    "are public and never saw clients' data, start from them: start='given'; else unfreeze it"
)


def drawn_by(draw: Callable[[], Any]) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.ReLU(), Drawing(draw)))


MODELS: dict[str, tuple[Callable[[], Any], str]] = {
    "all frozen": (
        lambda: nn.Linear(3, 3).requires_grad_(False),
        (
            "all parameters of Linear are frozen (requires_grad=False), so nothing would be trained; unfreeze the part to train, "
            "such as the head: net.head.requires_grad_(True)"
        ),
    ),
    "draws of torch": (
        lambda: drawn_by(lambda: torch.rand(1)),
        f"layer 1.1 (Drawing) {NO_ADDRESS}; use nn.Dropout or ",
    ),
    "draws of numpy": (
        lambda: drawn_by(lambda: float(np.random.rand())),  # noqa: NPY002
        f"layer 1.1 (Drawing) {NO_ADDRESS}; use nn.Dropout or ",
    ),
    "draws of Python": (
        lambda: drawn_by(random.random),
        f"layer 1.1 (Drawing) {NO_ADDRESS}; use nn.Dropout or ",
    ),
    "draws after which torch's generator is restored": (lambda: drawn_by(draw_apart), STATE),
    "a generator of numpy's": (lambda: drawn_by(np.random.default_rng(0).random), STATE),
    "a generator of torch's": (lambda: drawn_by(own_generator()), STATE),
    "a state in Python": (lambda: Growing(3, 3), STATE),
    "no momentum": (
        lambda: normalised(nn.BatchNorm1d(4, momentum=None)),
        (
            "layer 1 (BatchNorm1d) averages over all batches it ever saw (momentum=None), but clients keep no state; give a "
            "number, such as momentum=0.1"
        ),
    ),
    "no statistics": (
        lambda: normalised(nn.BatchNorm1d(4, track_running_stats=False)),
        (
            "layer 1 (BatchNorm1d) scores an example by the others in its batch; set track_running_stats=True, or use GroupNorm "
            "or LayerNorm"
        ),
    ),
    "a counter": (lambda: Counting(torch.zeros(())), BUFFER),
    "a counter made anew": (lambda: Counting(torch.zeros(()), anew=True), BUFFER),
    "a buffer that appears": (lambda: Counting(None), BUFFER),
    "spectral norm": (
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3)),
        "changes in training, but it is neither a constant nor a statistic of a normalisation layer",
    ),
}


def draw_apart() -> Tensor:
    with torch.random.fork_rng(devices=[]):
        return torch.rand(1)


def own_generator() -> Callable[[], Tensor]:
    draw = torch.Generator()
    return lambda: torch.rand(1, generator=draw)


@pytest.mark.parametrize("name", MODELS)
def test_models(name, tmp_path: Path):
    make, words = MODELS[name]
    with refused(ModelError, words):
        train(make(), given=True, out=tmp_path / "run")
    with refused(ModelError, words):
        train(make, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_frozen_parts_need_a_given_start():
    for source in (half_frozen(), half_frozen):
        with refused(ModelError, FROZEN):
            train(source)
    assert train(half_frozen(), given=True).params.numel() == 12


def test_a_given_start_is_a_module_with_finite_weights():
    with refused(
        ModelError,
        "a given start needs the module itself, with its weights, and not a factory: model=net, start='given'",
    ):
        train(half_frozen, given=True)
    net = normalised()
    net.get_buffer("1.running_var").fill_(torch.nan)
    with refused(
        ModelError, "1.running_var of the given start is not finite; give a module with weights that are"
    ):
        train(net, given=True)
    frozen = half_frozen()
    next(p for p in frozen.parameters() if not p.requires_grad).data.fill_(torch.nan)
    with refused(ModelError, " of the given start is not finite; give a module with weights that are"):
        train(frozen, given=True)
    with refused(
        ModelError, "start is 'old'; give 'fresh', or 'given' for a module whose weights are public"
    ):
        federation(net, start="old")


SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "adam with momentum": (
        {"optimizer": "adam", "momentum": 0.9},
        "adam has moments of its own; give momentum with optimizer 'sgd', or leave it out",
    ),
    "adamw with l2": (
        {"optimizer": "adamw", "l2": 0.1},
        "l2 is the weight decay of sgd and adam; give weight_decay alone",
    ),
    "optimizer": ({"optimizer": "lion"}, "there is no optimizer 'lion'; choose one of sgd, adam, adamw"),
    "schedule": (
        {"schedule": "step"},
        "there is no schedule 'step'; choose one of constant, linear, cosine, decay:0.99",
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings(name, tmp_path: Path):
    settings, words = SETTINGS[name]
    with refused(ConfigError, words):
        train(nn.Linear(3, 3), out=tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_losses_and_augmentations():
    with refused(
        ConfigError,
        "there is no loss 'entropy'; choose one of cross_entropy, bce_with_logits, mse, huber, or",
    ):
        federation(nn.Linear(3, 3), loss="entropy")
    with refused(DataError, "augment is 'flip'; give a function of a batch and of 16 numbers for each row"):
        federation(nn.Linear(3, 3), augment="flip")

    def shaken(outputs: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(outputs, y) * torch.rand(1)[0]

    def shake(x: Any, _: Tensor) -> Any:
        return x + torch.rand(1)

    for made in (federation(nn.Linear(3, 3), loss=shaken), federation(nn.Linear(3, 3), augment=shake)):
        with refused(ModelError, f"the loss, the augmentation or the backward pass {NO_ADDRESS}"):
            made.fresh_model()
    with refused(
        ModelError, "the loss returns another value for the same outputs, so it keeps a state or draws"
    ):
        federation(nn.Linear(3, 3), loss=lambda z, y: F.cross_entropy(z, y) * draw_apart()[0]).fresh_model()
    draw = own_generator()
    with refused(ModelError, STATE):
        federation(nn.Linear(3, 3), augment=lambda x, _: x + draw()).fresh_model()


def test_a_loss_that_counts_its_calls():
    class Counting(nn.Module):
        calls = 0

        def forward(self, outputs: Tensor, y: Tensor) -> Tensor:
            self.calls += 1
            return F.cross_entropy(outputs, y)

    log = []

    def logged(outputs: Tensor, y: Tensor) -> Tensor:
        log.append(len(y))
        return F.cross_entropy(outputs, y)

    counting = Counting()
    counting.calls = 0
    with refused(
        ModelError,
        "Counting changes its own settings when it is called, and a run recognises it by these; keep",
    ):
        federation(nn.Linear(3, 3), loss=counting).fresh_model()
    federation(nn.Linear(3, 3), loss=logged).fresh_model()


class Noted(nn.Module):
    """Keeps the rate of its dropout in a field of the same name."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.dropout = rate
        self.drop = nn.Dropout(rate)
        self.head = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(x))


def test_layers_that_draw_nothing_are_not_refused():
    for layer in (Noted(0.5), nn.Sequential(nn.AlphaDropout(0.0), nn.Linear(3, 3))):
        assert train(layer).params.numel() == 12
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_module(nn.LSTM(3, 4, dropout=0.5))
    with refused(ModelError, NO_ADDRESS):
        check_module(nn.LSTM(3, 4, num_layers=2, dropout=0.5))


def test_an_augmentation_may_write_into_its_batch():
    made = federation(nn.Linear(3, 3), augment=lambda x, draws: x.add_(draws[:, :3]))
    before = X.clone()
    feduhb.train(made, 1, epochs=1, show=None)
    assert torch.equal(X, before)


MIXED: dict[str, tuple[Any, Any, str]] = {
    "names and none": ({"t": X}, X, "by the names t, the test set as one tensor"),
    "other names": ({"t": X}, {"u": X}, "by the names t, the test set by the names u"),
    "names and places": ((X, X), {"0": X, "1": X}, "as a tuple of 2, the test set by the names 0, 1"),
    "fewer": ((X,), (X, X), "as a tuple of 1, the test set as a tuple of 2"),
    "types": (
        {"t": X.double()},
        {"t": X},
        'torch.float64, the test set torch.float32 (x.float(), or x.astype("float32") of an array, gives torch.float32)',
    ),
    "shapes": ((X, X[:, :2]), (X, X), "[2], the test set [3]"),
}


@pytest.mark.parametrize("name", MIXED)
def test_mixed_inputs(name):
    one, other, words = MIXED[name]
    with refused(DataError, f"client bee holds inputs {words}; make them alike"):
        feduhb.Federation({"ant": (other, Y), "bee": (one, Y)}, (other, Y), nn.Linear(3, 3))


ENGINES = ["loop", "pool"]
ONE = "client ant has one example, and BatchNorm needs two or more in a batch; leave that client out or forget it, or use GroupNorm"
GRADIENTS = {
    normalised: "the model has BatchNorm, which depends on batches",
    dropping: "the model has dropout, which is random",
    gathering: "layer 2 of the model gathers statistics of batches",
}


@pytest.mark.parametrize("engine", ENGINES)
def test_batches_of_one_under_batch_norm(engine, tmp_path: Path):
    with refused(DataError, ONE):
        train(normalised(), {"ant": 1, "bee": 4}, engine=engine, out=tmp_path / "run")
    words = "BatchNorm cannot normalise batches of one example; give a batch_size of 2 or more"
    with refused(ConfigError, words):
        train(normalised(), batch_size=1, engine=engine, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    train(normalised(nn.GroupNorm(2, 4)), {"ant": 1, "bee": 4}, batch_size=1, engine=engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_last_batch_of_one_joins_the_batch_before_it_and_is_recorded(engine):
    """Of batches of 3: ant has 3 + 1, bee 3 + 2, cat 3 + 3."""
    assert train(normalised(), engine=engine).make_engine().about["joined_last_batch"] == ["ant"]
    assert "joined_last_batch" not in train(dropping(), engine=engine).make_engine().about


@pytest.mark.parametrize("make", GRADIENTS, ids=["BatchNorm", "dropout", "statistics"])
@pytest.mark.parametrize("engine", ENGINES)
def test_full_batch_gradients(make, engine, tmp_path: Path):
    words = f"epochs=0 asks for full-batch gradients, but {GRADIENTS[make]}; give epochs of 1 or more"
    with refused(ConfigError, words):
        train(make(), epochs=0, engine=engine, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    work = feduhb.Work(torch.zeros(1), 0)
    made = {"loop": feduhb.Loop, "pool": feduhb.Pool}[engine](federation(make()))
    with refused(ConfigError, words):
        made.train(work, ["ant"], 0)


def test_full_batch_gradients_of_augmented_batches():
    made = federation(nn.Linear(3, 3), augment=lambda x, draws: x + draws[:, :3])
    with refused(ConfigError, "batches are augmented, which is random; give epochs of 1 or more"):
        feduhb.train(made, 1, epochs=0, show=None)


def test_a_frozen_norm_may_have_clients_of_one_example_and_gradients():
    net = normalised()
    net.get_submodule("1").requires_grad_(False)
    for how in ({"epochs": 0}, {"epochs": 1}):
        run = train(net, {"ant": 1, "bee": 4}, given=True, batch_size=1, **how)
        assert run.params.numel() == 16 + 15


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> feduhb.Run:
    return train(normalised(), out=tmp_path_factory.mktemp("kept") / "old", keep_history=True)


VAIN: dict[str, tuple[Any, dict[str, Any], str]] = {
    "gradients": ("ant", {"method": feduhb.FedUHB(epochs=0)}, "epochs=0 asks for full-batch gradients"),
    "one row left": ({"ant": (0, 1, 3)}, {"method": "retrain"}, ONE),
}


@pytest.mark.parametrize("name", VAIN)
def test_no_history_is_erased_for_an_unlearning_that_is_refused(kept, name, tmp_path: Path):
    assert kept.folder is not None
    forget, how, words = VAIN[name]
    before = files(kept.folder)
    with refused(DataError if name == "one row left" else ConfigError, words):
        feduhb.unlearn(kept, forget, rounds=1, out=tmp_path / "new", show=None, **how)
    with refused(DataError if name == "one row left" else ConfigError, words):
        feduhb.compare(
            kept, forget, [feduhb.Retrain(epochs=1), *how.values()], rounds=1, out=tmp_path / "new", show=None
        )
    assert files(kept.folder) == before
    assert not (tmp_path / "new").exists()


def test_a_replay_that_is_refused_keeps_its_history(kept, tmp_path: Path):
    assert kept.folder is not None
    before = files(kept.folder)
    method = feduhb.FedRecover(warmup=2, buffer=1, epochs=0)
    with refused(ConfigError, "epochs=0 asks for full-batch gradients"):
        feduhb.unlearn(kept, "ant", method=method, out=tmp_path / "new", show=None)
    assert {name: data for name, data in files(kept.folder).items() if "history" in name} == {
        name: data for name, data in before.items() if "history" in name
    }
