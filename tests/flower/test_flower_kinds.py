"""Models with statistics, dropout, frozen parts or several inputs: over a grid every bit is that of the loop in process."""

from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, RecordDict
from torch import nn

import feduhb
from feduhb import flower
from feduhb.core.flat import count_statistics, flatten, list_parts
from feduhb.core.modules import list_carried
from feduhb.errors import ConfigError
from feduhb.flower.files import Memory
from feduhb.flower.validation import Limits, Usual, judge_answers
from feduhb.flower.wire import Layout
from feduhb.runs.folder import HISTORY, LIMITS, RunFolder
from feduhb.runs.history import DiskHistory
from flower.gridding import Killed, change_answers, make_app, make_grid, make_killing_grid
from flower.kinds import HOW, NAMES, SIZES, Tagger, make_federation, make_frozen, make_settings

USUAL_LIMITS = Limits()


def shift(x, numbers):
    """Return a batch that is moved a little."""
    return x + 0.1 * numbers[:, :4]


KINDS: dict[str, Any] = {
    "BatchNorm": (lambda: make_federation(), {}),
    "dropout": (
        lambda: make_federation(lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))),
        {},
    ),
    "frozen": (lambda: make_federation(make_frozen(), start="given"), {}),
    "tokens": (lambda: make_federation(Tagger, as_tokens=True), {}),
    "adamw": (
        lambda: make_federation(),
        {"optimizer": "adamw", "weight_decay": 0.01, "clip_norm": 0.5, "schedule": "cosine"},
    ),
    "augmented": (lambda: make_federation(augment=shift), {"momentum": 0.5, "proximal": 0.1}),
}


@pytest.fixture
def federation():
    return make_federation()


def train_here(federation, rounds, local=None, **more):
    settings = {**HOW, **(local or {}), "engine": "loop", "show": None, **more}
    return feduhb.train(federation, rounds, epochs=2, **settings)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_the_in_process_run_bit_for_bit(kind):
    make, local = KINDS[kind]
    federation = make()
    settings, grid = make_settings(federation, local), make_grid(federation)
    trained = flower.Train(**settings, evaluate_every=2).start(grid, num_rounds=2)
    here = train_here(federation, 2, local)
    assert torch.equal(trained.params, here.params)
    assert [r.moved for r in trained.rounds] == [r.moved for r in here.rounds]
    assert (trained.left_out, trained.bounded) == ({}, {})
    without = flower.FedUHB("bee", **settings, stop=feduhb.never).start(grid, num_rounds=2)
    unlearned = feduhb.unlearn(here, "bee", rounds=2, stop=feduhb.never, show=None)
    assert torch.equal(without.params, unlearned.params)
    assert {tuple(array.shape) for array in without.arrays.values()} == {
        tuple(part.shape) for _, part in list_parts(federation.fresh_model())
    }


@pytest.mark.parametrize("kind", ["BatchNorm", "frozen", "tokens"])
def test_train_and_unlearn_over_connected_clients_too(kind):
    make, local = KINDS[kind]
    federation = make()
    far = flower.connected(
        make_grid(federation), federation.test, federation.model, start=federation.start, seed=7, partitions=NAMES, timeout=5
    )  # fmt: skip
    there, here = train_here(far, 2, local, engine=far.engine), train_here(federation, 2, local)
    assert torch.equal(there.params, here.params)
    assert [r.scores for r in there.rounds] == [r.scores for r in here.rounds]
    without = [feduhb.unlearn(run, "bee", rounds=1, show=None) for run in (there, here)]
    assert torch.equal(without[0].params, without[1].params)


@pytest.mark.parametrize("method", ["FedEraser", "FedRecover"])
def test_replays_of_a_model_with_statistics(method, federation, tmp_path):
    settings = make_settings(federation)
    few: dict[str, Any] = {"warmup": 2, "buffer": 1, "final": 1} if method == "FedRecover" else {}
    flower.Train(checkpoint=tmp_path / "there", keep_history=True, **settings).start(
        make_grid(federation), num_rounds=4
    )
    there = getattr(flower, method)("bee", trained=tmp_path / "there", **{**settings, **few})
    here = train_here(federation, 4, out=tmp_path / "here", keep_history=True)
    wanted = feduhb.unlearn(here, "bee", method=getattr(feduhb, method)(epochs=2, **few), show=None)
    assert torch.equal(there.start(make_grid(federation)).params, wanted.params)


def test_a_run_with_statistics_is_resumed(federation, tmp_path):
    strategy = flower.FedUHB("bee", checkpoint=tmp_path, **make_settings(federation), stop=feduhb.never)
    with pytest.raises(Killed):
        strategy.start(make_killing_grid(federation, 1), num_rounds=3)
    outcome = strategy.start(make_grid(federation), num_rounds=3)
    wanted = flower.FedUHB("bee", **make_settings(federation), stop=feduhb.never).start(
        make_grid(federation), num_rounds=3
    )
    assert torch.equal(outcome.params, wanted.params)
    opened = feduhb.open_run(tmp_path, federation)
    assert torch.equal(opened.params, wanted.params)


@pytest.mark.parametrize(
    ("strategy", "settings", "words"),
    [
        (flower.FedUHB, {"epochs": 0}, "epochs=0 asks for full-batch gradients, but the model has BatchNorm"),
        (flower.RapidRetrain, {}, "clients cannot train by preconditioned steps: .* normalises by statistics of batches"),
    ],
)  # fmt: skip
def test_work_that_a_model_cannot_do_is_refused_before_anything_is_erased(
    strategy, settings, words, federation, tmp_path
):
    known = make_settings(federation)
    flower.Train(checkpoint=tmp_path / "run", keep_history=True, **known).start(
        make_grid(federation), num_rounds=1
    )
    with pytest.raises(ConfigError, match=words):
        strategy("bee", trained=tmp_path / "run", **{**known, **settings}).start(
            make_grid(federation), num_rounds=1
        )
    assert DiskHistory(tmp_path / "run" / HISTORY).rounds


def test_batches_that_joined_others_are_recorded(federation, tmp_path):
    settings = make_settings(federation)
    folders = {name: RunFolder(tmp_path / name) for name in ("all", "without", "here")}
    flower.Train(checkpoint=folders["all"].path, **settings).start(make_grid(federation), num_rounds=1)
    strategy = flower.FedUHB("bee", checkpoint=folders["without"].path, **settings, stop=feduhb.never)
    with pytest.raises(Killed):
        strategy.start(make_killing_grid(federation, 1), num_rounds=2)
    strategy.start(make_grid(federation), num_rounds=2)
    train_here(federation, 1, out=folders["here"].path)
    joined = {name: folder.result()["engine"]["joined_last_batch"] for name, folder in folders.items()}
    assert joined == {"all": ["ant", "bee", "cat"], "without": ["ant", "cat"], "here": ["ant", "bee", "cat"]}
    assert Memory.model_validate_json((folders["without"].path / LIMITS).read_text()).joined == {"ant", "cat"}


def test_clients_score_a_model_as_it_is_used():
    layers = (nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    federation = make_federation(nn.Sequential(*layers))
    outcome = flower.Train(**make_settings(federation), evaluate_every=1).start(
        make_grid(federation), num_rounds=1
    )
    here = train_here(federation, 1)
    model, losses = here.model(), {}
    for client, examples in federation.clients.items():
        x, y = examples.all()
        losses[client] = nn.functional.cross_entropy(model(x), y).item() * len(y)
    found = outcome.evaluate_metrics_clientapp[1]
    assert found["loss"] == pytest.approx(sum(losses.values()) / sum(SIZES.values()), rel=1e-6)


def test_the_loss_has_a_name():
    federation = make_federation(nn.Linear(4, 3), loss="mse")
    data = {client: (e.x, nn.functional.one_hot(e.y, 3).float()) for client, e in federation.clients.items()}
    federation = feduhb.Federation(data, data["ant"], federation.model, seed=7, loss="mse")
    grid = make_grid(federation, loss="mse")
    outcome = flower.Train(**make_settings(federation)).start(grid, num_rounds=1)
    assert torch.equal(outcome.params, train_here(federation, 1).params)
    with pytest.raises(ConfigError, match="there is no loss 'mean'"):
        flower.client_app(model=federation.model, data=lambda _: None, loss="mean")


@pytest.mark.parametrize("start", ["fresh", "given"])
def test_a_client_with_other_constants_is_left_out_by_name(start):
    """A backbone, or a table of constants, is each side's own copy; the digest tells whether they are alike."""
    own, other = (Tagger(), Tagger()) if start == "fresh" else (make_frozen(), make_frozen())
    federation = make_federation(own, as_tokens=start == "fresh", start=start)
    next(value for _, value in list_carried(other)).flatten()[0] += 1e-3
    grid = make_grid(federation, apps={"cat": make_app(federation, model=other)})
    outcome = flower.Train(**make_settings(federation), evaluate_every=1).start(grid, num_rounds=1)
    assert set(outcome.left_out[0]) == {"cat"}
    assert outcome.left_out[0]["cat"] == (
        "it answered with a refusal: the frozen parameters and constant buffers of this client's module are not those of the "
        "server's; install the same module, with the same weights, on both sides"
    )
    assert torch.equal(outcome.params, train_here(federation.without("cat"), 1).params)
    scored = {node for node, kind, config in grid.sent if kind == "evaluate" and "carried-sha256" in config}
    assert scored == {*grid.seats}


def test_nothing_is_sent_of_a_model_without_frozen_parts(federation):
    grid = make_grid(federation)
    flower.Train(**make_settings(federation), evaluate_every=1).start(grid, num_rounds=1)
    assert not any("carried-sha256" in config for _, _, config in grid.sent)


def test_a_client_of_one_example_is_left_out_in_words(federation):
    x, y = federation.clients["ant"].all()
    grid = make_grid(federation.replace(clients={**federation.clients, "ant": (x[:1], y[:1])}))
    outcome = flower.Train(**make_settings(federation)).start(grid, num_rounds=1)
    assert "client ant has one example, and BatchNorm needs two or more" in outcome.left_out[0]["ant"]


def change_statistics(change):
    """Return a client whose statistics are changed, and whose parameters are honest."""

    def spoil(content):
        arrays = {name: array.numpy().copy() for name, array in content["update"].items()}
        for name in [name for name in arrays if "running" in name]:
            arrays[name] = change(name, arrays[name])
        update = ArrayRecord({name: Array(value) for name, value in arrays.items()})
        return RecordDict({"update": update, "metrics": content["metrics"]})

    return spoil


def set_first(value, kind="running_mean"):
    def change(name, array):
        if name == f"4.{kind}":
            array[0] = value
        return array

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (set_first(float("nan")), "NaN in 4.running_mean"),
        (set_first(float("-inf")), "infinity in 4.running_mean"),
        (set_first(2.0, "running_var"), "a negative variance in 4.running_var"),
        (set_first(-1e6, "running_var"), "a change of 4.running_var of norm 1e+06, above the limit "),
        (lambda _, array: array * 500, "a change of 1.running_mean of norm "),
    ],
    ids=["NaN", "infinity", "a negative variance", "far away", "500 times"],
)
def test_hostile_statistics_are_left_out_and_named(change, words, federation, caplog):
    """The parameters of the hostile client are honest; 4 is the second norm, far smaller than the whole model."""
    hostile = change_answers(make_app(federation), change_statistics(change))
    outcome = flower.Train(**make_settings(federation)).start(
        make_grid(federation, apps={"cat": hostile}), num_rounds=2
    )
    assert set(outcome.left_out) == {0, 1}
    for reasons in outcome.left_out.values():
        assert set(reasons) == {"cat"}
        assert reasons["cat"].startswith(f"it answered with {words}")
    assert f"round 1: cat is left out: it answered with {words}" in caplog.text
    assert torch.equal(outcome.params, train_here(federation.without("cat"), 2).params)


def test_parameters_and_statistics_are_judged_apart(federation):
    """Statistics of large inputs do not hide a long update, and a limit on updates does not concern them."""
    module = federation.fresh_model()
    layout, start = Layout.of_module(module), flatten(module)
    size = len(start) - count_statistics(module)

    def judge(longer, limits=USUAL_LIMITS):
        honest = torch.cat([torch.full((size,), 0.01), torch.full((len(start) - size,), -1e4)])
        answers = {client: (honest.clone(), 9.0) for client in NAMES}
        answers["cat"][0][:size] *= longer
        return judge_answers(answers, start, layout, limits, Usual(), is_first=True)

    assert judge(5)[1] == {}
    assert judge(50)[1].keys() == {"cat"}
    assert judge(1, Limits(max_norm=1.0))[1] == {}
    usual = judge(1)[2]
    assert usual.update == pytest.approx(0.01 * size**0.5)
    assert usual.statistics["1.running_mean"] == pytest.approx(1e4 * 8**0.5)
    few = judge_answers({"ant": (start * 0, 9.0)}, start, layout, Limits(), usual, is_first=False)
    assert few[2] == usual
