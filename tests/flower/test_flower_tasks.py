"""Tasks over a grid: clients do them with the bits of the in-process run, and leavers are asked only if that is allowed."""

import itertools
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord

import feduhb
from federations import ragged
from feduhb import flower
from feduhb.core.aggregate import median
from feduhb.core.flat import flatten
from feduhb.core.tasks import Ascend, Precondition, Relabel
from feduhb.core.types import Work
from feduhb.errors import AnswerError, ConfigError, RequestError
from feduhb.flower import wire
from feduhb.flower.wire import MalformedError
from flower.gridding import Killed, make_app, make_grid, make_killing_grid

LOCAL = feduhb.Local(batch_size=6, lr=0.05)
NAMES = ("ant", "bee", "cat", "dog", "elk")


def make_settings(federation, **more):
    given = {"seed": federation.seed, "local": LOCAL, "partitions": NAMES, "timeout": 5}
    return {**given, "model": federation.model, "epochs": 1, **more}


@pytest.fixture
def trained(tmp_path):
    """The same training over a grid and in this process."""
    federation = ragged()
    flower.Train(checkpoint=tmp_path / "first", **make_settings(federation)).start(
        make_grid(federation), num_rounds=2
    )
    here = feduhb.train(federation, 2, epochs=1, batch_size=6, lr=0.05, engine="loop")
    return federation, tmp_path / "first", here


@pytest.mark.parametrize(
    "task", [Precondition(0.01, eps=0.1), Ascend(0.5, 0.02, clip_norm=1.0), Relabel(3, 0.25)]
)
def test_a_task_survives_the_message(task):
    config = wire.describe_work(Work(torch.zeros(1), 2, task=task), LOCAL, "ant", 0, 1)
    assert {*config} <= {*wire.OURS}
    sent = dict(ConfigRecord(config))
    assert wire.read_task(sent) == task
    assert wire.wants_update(sent, task)
    assert not wire.wants_update(sent, None)  # a client that does not know the task answers with arrays


def test_an_unknown_task_or_setting_is_refused_in_words():
    with pytest.raises(MalformedError, match=r"does not know the task 'dance'; install the server's version"):
        wire.read_task({"task": "dance"})
    with pytest.raises(MalformedError, match=r"the setting 'speed' of the task ascend; install the server's"):
        wire.read_task({"task": "ascend", "task-radius": 1.0, "task-lr": 0.1, "task-speed": 2.0})


def test_rapidretrain_is_the_in_process_run_bit_for_bit(trained):
    federation, folder, here = trained
    outcome = flower.RapidRetrain(
        ["bee"], lr=0.01, eps=0.1, trained=folder, **make_settings(federation)
    ).start(make_grid(federation), num_rounds=2)
    method = feduhb.RapidRetrain(lr=0.01, eps=0.1, epochs=1)
    assert torch.equal(outcome.params, feduhb.unlearn(here, ["bee"], method=method, rounds=2).params)
    assert {r.asked for r in outcome.rounds} == {("ant", "cat", "dog", "elk")}


@pytest.mark.parametrize("forget", [["bee"], {"cat": [0, 3]}, "class:1"], ids=["client", "rows", "class"])
@pytest.mark.parametrize("name", ["FineTune", "NoT"])
def test_methods_that_train_the_old_model_on_are_the_in_process_run_bit_for_bit(
    trained, tmp_path, name, forget
):
    federation, folder, here = trained
    method = getattr(feduhb, name)(epochs=1, step_size=0.8)
    made = getattr(flower, name)(
        forget, step_size=0.8, trained=folder, checkpoint=tmp_path / "new", **make_settings(federation)
    )
    assert made.method() == method
    outcome = made.start(make_grid(federation), num_rounds=2)
    wanted = feduhb.unlearn(here, forget, method=method, rounds=2)
    assert torch.equal(outcome.params, wanted.params)
    assert [r.answered for r in outcome.rounds] == [r.answered for r in wanted.rounds]
    assert not any(r.leavers for r in outcome.rounds)
    assert feduhb.open_run(tmp_path / "new", federation).rounds == outcome.rounds


@pytest.mark.parametrize("name", ["FineTune", "NoT"])
def test_the_old_model_is_read_from_the_training_again_after_a_kill(trained, tmp_path, name):
    federation, folder, here = trained

    def make():
        return getattr(flower, name)(
            ["bee"], trained=folder, checkpoint=tmp_path / "new", **make_settings(federation)
        )

    with pytest.raises(Killed):
        make().start(make_killing_grid(federation, 1), num_rounds=3)
    outcome = make().start(make_grid(federation), num_rounds=3)
    wanted = feduhb.unlearn(here, ["bee"], method=getattr(feduhb, name)(epochs=1), rounds=3)
    assert torch.equal(outcome.params, wanted.params)


def test_a_client_of_an_earlier_version_is_left_out_with_a_reason(trained):
    federation, folder, _ = trained
    app = make_app(federation)

    def answer_as_before(message, context):
        """Ignore the keys that earlier versions did not know."""
        if "config" in message.content:
            known = {key: v for key, v in message.content["config"].items() if not key.startswith("task")}
            message.content["config"] = ConfigRecord(known)
        return app(message, context)

    outcome = flower.RapidRetrain(["bee"], trained=folder, **make_settings(federation)).start(
        make_grid(federation, apps={"cat": answer_as_before}), num_rounds=1
    )
    assert outcome.rounds[0].answered == ("ant", "dog", "elk")
    assert "its feduhb is of an earlier version, which does not know tasks" in outcome.left_out[0]["cat"]


@pytest.mark.parametrize("strategy", [flower.PGA, flower.FedAF])
def test_leavers_are_not_asked_unless_the_operator_allows_it(strategy):
    with pytest.raises(ConfigError, match=r"asks leavers to work on .*, allow it: \w+\(\.\.\., allow_asking"):
        strategy(["bee"], **make_settings(ragged()))


def test_an_engine_refuses_work_of_leavers_that_nobody_allowed():
    federation = ragged()
    arrays = flower.fresh_arrays(federation.model, 1)
    engine = flower.FlowerEngine(
        make_grid(federation), arrays, LOCAL, forget=["bee"], partitions=NAMES, timeout=5
    )
    work = Work(flatten(federation.fresh_model()), 1, ("bee",), leavers=True)
    with pytest.raises(AnswerError, match=r"leavers must not be asked: the operator did not allow it"):
        list(engine.train(work, ["bee"], 0))


def test_pga_is_the_in_process_run_and_the_leaver_leaves_after_its_work(trained, tmp_path):
    federation, folder, here = trained
    grid, settings = make_grid(federation), {"ascent": 2, "after": 2, "lr": 0.1}
    outcome = flower.PGA(
        ["bee"], allow_asking_leavers=True, trained=folder, checkpoint=tmp_path / "new", **settings,
        **make_settings(federation),
    ).start(grid)  # fmt: skip
    wanted = feduhb.unlearn(here, ["bee"], method=feduhb.PGA(epochs=1, **settings))
    assert torch.equal(outcome.params, wanted.params)
    assert [r.leavers for r in outcome.rounds] == [("bee",), ("bee",), (), ()]
    bee = [kind for node, kind, _ in grid.sent if node == 101 and kind != wire.WHO]
    assert [kind for kind, _ in itertools.groupby(bee)] == [wire.TRAIN, wire.LEAVE]
    assert bee.count(wire.TRAIN) == 2
    assert feduhb.open_run(tmp_path / "new", federation).rounds == outcome.rounds


@pytest.mark.parametrize("round", [1, 2])
def test_pga_killed_in_the_middle_asks_the_leaver_no_more_than_needed(trained, tmp_path, round):
    federation, folder, here = trained
    settings: dict[str, Any] = {"ascent": 1, "after": 2}

    def make():
        return flower.PGA(
            ["bee"], allow_asking_leavers=True, trained=folder, checkpoint=tmp_path / "new", **settings,
            **make_settings(federation),
        )  # fmt: skip

    with pytest.raises(Killed):
        make().start(make_killing_grid(federation, round))
    grid = make_grid(federation)
    outcome = make().start(grid)
    wanted = feduhb.unlearn(here, ["bee"], method=feduhb.PGA(epochs=1, **settings))
    assert torch.equal(outcome.params, wanted.params)
    bee = [kind for node, kind, _ in grid.sent if node == 101]
    assert bee.count(wire.TRAIN) == 2 - round
    assert bee[-1] == wire.LEAVE


def test_fedaf_relabels_rows_before_the_client_drops_them(trained, tmp_path):
    federation, folder, here = trained
    grid = make_grid(federation, cache=tmp_path / "cache")
    outcome = flower.FedAF(
        {"cat": [0, 3]}, allow_asking_leavers=True, trained=folder, evaluate_every=1, teachers=2, overwriting=2,
        after=1, **make_settings(federation),
    ).start(grid)  # fmt: skip
    wanted = feduhb.unlearn(
        here, {"cat": [0, 3]}, method=feduhb.FedAF(teachers=2, overwriting=2, after=1, epochs=1)
    )
    assert torch.equal(outcome.params, wanted.params)
    assert [r.leavers for r in outcome.rounds] == [("cat",), ("cat",), ()]
    last = [told for node, kind, told in grid.sent if node == 102 and kind == wire.TRAIN][-1]
    assert last[wire.ROWS] == [0, 3]
    assert wire.TARGETS not in last


@pytest.mark.parametrize(
    ("strategy", "forget", "words"),
    [
        (flower.PGA, {"cat": [0]}, "pga cannot forget rows; use FedUHB or Retrain"),
        (flower.FedAF, ["cat"], "fedaf cannot forget clients; use FedUHB or Retrain"),
        (flower.FedAF, "class:1", "fedaf asks the clients that hold a class, and the server does not know"),
    ],
)
def test_requests_that_cannot_be_served_are_refused(trained, strategy, forget, words):
    federation, folder, _ = trained
    made = strategy(forget, allow_asking_leavers=True, trained=folder, **make_settings(federation))
    with pytest.raises(RequestError, match=words):
        made.start(make_grid(federation))


@pytest.mark.parametrize(
    ("strategy", "more", "words"),
    [
        (flower.FedEraser, {}, "federaser can replay only training by weighted_mean, but .* used median; use FedUHB"),
        (flower.PGA, {"allow_asking_leavers": True}, "pga averages by weighted_mean, but .* used median; use FedUHB"),
    ],
)  # fmt: skip
def test_a_training_by_another_rule_is_refused_as_in_process(tmp_path, strategy, more, words):
    federation = ragged()
    flower.Train(
        checkpoint=tmp_path / "first", aggregate=median, keep_history=True, **make_settings(federation)
    ).start(make_grid(federation), num_rounds=2)
    made = strategy(["bee"], trained=tmp_path / "first", **more, **make_settings(federation))
    with pytest.raises(ConfigError, match=words):
        made.start(make_grid(federation))
    assert not (tmp_path / "first" / "erased.json").exists()


def test_a_method_that_needs_the_old_model_must_be_given_the_training():
    federation = ragged()
    made = flower.PGA(["bee"], allow_asking_leavers=True, **make_settings(federation))
    with pytest.raises(
        ConfigError, match=r"pga begins at the model that is to forget; give .* trained=FOLDER"
    ):
        made.start(make_grid(federation))
