"""Every strategy gives the bits of the in-process run with the same method."""

from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, MetricRecord

import feduhb
from federations import ragged
from feduhb import flower
from feduhb.core.flat import flatten
from feduhb.core.seeds import sample_clients
from feduhb.errors import ConfigError
from feduhb.flower.wire import ADDED_KEYS, CARRIED, HELD_OUT, OURS, TARGETS, TASK
from feduhb.runs.loop import run
from feduhb.stopping import StopRule
from flower.gridding import make_grid

LOCAL = feduhb.Local(batch_size=4, lr=0.05)
NAMES = ("ant", "bee", "cat", "dog", "elk")


@pytest.fixture
def federation():
    return ragged()


def draw_start(federation):
    return flower.fresh_arrays(federation.model, federation.seed)


def make_settings(federation, **more):
    return {"seed": federation.seed, "local": LOCAL, "partitions": NAMES, "timeout": 5, **more}


def run_in_process(federation, method, rounds, stop: StopRule = feduhb.never):
    state, records = method.init(flatten(federation.fresh_model())), []
    for new, record in run(
        method, feduhb.Loop(federation, LOCAL), list(federation.clients), state, rounds=rounds, stop=stop
    ):
        state = new
        records.append(record)
    return state.params, records


def test_feduhb_is_the_in_process_run_bit_for_bit(federation):
    outcome = flower.FedUHB(
        ["bee"], momentum=0.5, epochs=2, stop=feduhb.never, **make_settings(federation)
    ).start(make_grid(federation), draw_start(federation), 4)
    wanted, records = run_in_process(federation.without(["bee"]), feduhb.FedUHB(momentum=0.5, epochs=2), 4)
    assert torch.equal(outcome.params, wanted)
    assert [r.moved for r in outcome.rounds] == [r.moved for r in records]
    assert {r.asked for r in outcome.rounds} == {("ant", "cat", "dog", "elk")}
    assert outcome.stopped == "all 4 scheduled rounds were run"


def test_training_and_retraining(federation):
    trained = flower.Train(epochs=1, **make_settings(federation)).start(
        make_grid(federation), draw_start(federation), 3
    )
    assert torch.equal(trained.params, run_in_process(federation, feduhb.Retrain(epochs=1), 3)[0])
    again = flower.Retrain(["ant"], epochs=1, **make_settings(federation)).start(
        make_grid(federation), draw_start(federation), 3
    )
    assert torch.equal(
        again.params, run_in_process(federation.without(["ant"]), feduhb.Retrain(epochs=1), 3)[0]
    )


@pytest.mark.parametrize("momentum", [0.5, None])
def test_nesterov_is_the_in_process_run_bit_for_bit(federation, momentum):
    settings = {} if momentum is None else {"momentum": momentum}
    compare_with_loop(federation, flower.Nesterov, feduhb.Nesterov(epochs=2, **settings), settings)


@pytest.mark.parametrize("settings", [{}, {"lr": 0.03, "b1": 0.5, "b2": 0.9, "tau": 0.1}])
@pytest.mark.parametrize(
    ("strategy", "method"),
    [
        (flower.FedAdam, feduhb.FedAdam),
        (flower.FedYogi, feduhb.FedYogi),
        (flower.FedNadam, feduhb.FedNadam),
    ],
)
def test_the_adam_family_is_the_in_process_run_bit_for_bit(federation, strategy, method, settings):
    compare_with_loop(federation, strategy, method(epochs=2, **settings), settings)


@pytest.mark.parametrize("settings", [{}, {"eps": 1e-9}])
def test_fedexp_is_the_in_process_run_bit_for_bit(federation, settings):
    compare_with_loop(federation, flower.FedExP, feduhb.FedExP(epochs=2, **settings), settings)


def compare_with_loop(federation, strategy, method, settings):
    made = strategy(["bee"], epochs=2, **settings, **make_settings(federation))
    assert made.method() == method
    assert made.stop_rule() == feduhb.never
    outcome = made.start(make_grid(federation), draw_start(federation), 4)
    wanted, records = run_in_process(federation.without(["bee"]), method, 4)
    assert torch.equal(outcome.params, wanted)
    assert [r.moved for r in outcome.rounds] == [r.moved for r in records]
    assert {r.asked for r in outcome.rounds} == {("ant", "cat", "dog", "elk")}


@pytest.mark.parametrize(
    "strategy", ["FedUHB", "Retrain", "Nesterov", "FedAdam", "FedYogi", "FedNadam", "FedExP"]
)
def test_with_a_pinned_seed_two_requests_one_after_the_other_equal_one_for_both(
    federation, strategy, tmp_path
):
    def forget(clients, **more):
        settings = make_settings(federation, model=federation.model, epochs=1, stop=feduhb.never, **more)
        return getattr(flower, strategy)(clients, **settings).start(make_grid(federation), num_rounds=2)

    both = forget(["bee", "dog"])
    forget(["bee"], checkpoint=tmp_path / "a")
    second = forget(["dog"], checkpoint=tmp_path / "b", trained=tmp_path / "a")
    assert {r.asked for r in second.rounds} == {("ant", "cat", "elk")}
    assert torch.equal(both.params, second.params)


def test_full_batch_gradients(federation):
    outcome = flower.FedUHB(
        "bee", epochs=0, step_size=0.1, stop=feduhb.never, **make_settings(federation)
    ).start(make_grid(federation), draw_start(federation), 3)
    wanted, _ = run_in_process(federation.without(["bee"]), feduhb.FedUHB(step_size=0.1, epochs=0), 3)
    assert torch.equal(outcome.params, wanted)


def test_a_robust_aggregation_rule(federation):
    outcome = flower.FedUHB(
        "bee", epochs=1, aggregate=feduhb.median, stop=feduhb.never, **make_settings(federation)
    ).start(make_grid(federation), draw_start(federation), 2)
    wanted, _ = run_in_process(
        federation.without(["bee"]), feduhb.FedUHB(epochs=1, aggregate=feduhb.median), 2
    )
    assert torch.equal(outcome.params, wanted)


def test_the_stop_rule_ends_a_run_with_a_reason(federation):
    stop = feduhb.dynamic_stop(100.0)
    outcome = flower.FedUHB("bee", epochs=1, stop=stop, **make_settings(federation)).start(
        make_grid(federation), draw_start(federation), 9
    )
    _, records = run_in_process(federation.without(["bee"]), feduhb.FedUHB(epochs=1), 9, stop)
    assert len(outcome.rounds) == len(records) == 3
    assert outcome.stopped.startswith("movement ")
    assert outcome.rounds[-1].stopped == records[-1].stopped


def test_auto_is_the_papers_rule_with_the_methods_momentum():
    assert flower.FedUHB("a", momentum=0.3).stop_rule() == feduhb.dynamic_stop(0.6, momentum=0.3)
    assert flower.FedUHB("a", stop=feduhb.never).stop_rule() == feduhb.never
    assert flower.Retrain("a").stop_rule() == feduhb.never


def test_rows_travel_to_their_client_alone_and_are_dropped_there(federation):
    grid, request = make_grid(federation), {"cat": [0, 5], "dog": [3]}
    outcome = flower.FedUHB(request, epochs=2, stop=feduhb.never, **make_settings(federation)).start(
        grid, draw_start(federation), 3
    )
    wanted, _ = run_in_process(federation.without(request), feduhb.FedUHB(epochs=2), 3)
    assert torch.equal(outcome.params, wanted)
    rows = {
        (node, tuple(config.get("forget-rows", ()))) for node, kind, config in grid.sent if kind == "train"
    }
    assert rows == {(100, ()), (101, ()), (102, (0, 5)), (103, (3,)), (104, ())}


def test_a_class_is_dropped_by_everyone(federation):
    outcome = flower.FedUHB("class:1", epochs=1, stop=feduhb.never, **make_settings(federation)).start(
        make_grid(federation), draw_start(federation), 2
    )
    remaining = federation.without("class:1")
    assert torch.equal(outcome.params, run_in_process(remaining, feduhb.FedUHB(epochs=1), 2)[0])
    absent = set(federation.clients) - set(remaining.clients)
    assert set(outcome.left_out.get(0, {})) == absent


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "method"),
    [
        (flower.FedEraser, feduhb.FedEraser(epochs=2)),
        (flower.FedRecover, feduhb.FedRecover(warmup=3, correction=2, final=1, epochs=2)),
    ],
)
def test_methods_that_replay_a_history(federation, strategy, method, tmp_path):
    grid, first = make_grid(federation), tmp_path / "first"
    flower.Train(epochs=2, checkpoint=first, keep_history=True, **make_settings(federation)).start(
        grid, draw_start(federation), 6
    )
    settings = {key: getattr(method, key) for key in method.__slots__ if key not in {"history", "clients"}}
    outcome = strategy(["bee"], trained=first, **settings, **make_settings(federation)).start(
        grid, draw_start(federation)
    )

    trained = feduhb.train(
        federation, 6, epochs=2, batch_size=4, lr=0.05, engine="loop", out=tmp_path / "own", keep_history=True
    )
    wanted = feduhb.unlearn(trained, ["bee"], method=method)
    assert torch.equal(outcome.params, wanted.params)
    assert [r.asked for r in outcome.rounds] == [r.asked for r in wanted.rounds]


def test_sampling_is_seeded_by_client_and_round_and_never_takes_a_leaver(federation):
    outcome = flower.FedUHB(
        "bee", epochs=1, clients_per_round=2, stop=feduhb.never, **make_settings(federation)
    ).start(grid := make_grid(federation), draw_start(federation), 6)
    remaining = sorted(federation.without("bee").clients)
    assert [set(r.asked) for r in outcome.rounds] == [
        set(sample_clients(7, t, remaining, 2)) for t in range(6)
    ]
    assert 101 not in grid.list_trained()


def test_scores_come_from_the_server_and_from_the_clients(federation):
    seen = []

    def evaluate(number, given):
        seen.append(number)
        return MetricRecord({"norm": float(sum((a.numpy() ** 2).sum() for a in given.values()))})

    outcome = flower.Train(epochs=1, evaluate_every=2, **make_settings(federation)).start(
        make_grid(federation), draw_start(federation), 3, evaluate_fn=evaluate
    )
    assert seen == [0, 1, 2, 3] == sorted(outcome.evaluate_metrics_serverapp)
    assert set(outcome.evaluate_metrics_clientapp) == {2}
    assert set(outcome.rounds[1].scores) == {"norm", "clients_loss", "clients_accuracy"}
    assert 0 <= outcome.rounds[1].scores["clients_accuracy"] <= 1
    norm = outcome.params.double().square().sum().item()
    assert outcome.evaluate_metrics_serverapp[3]["norm"] == pytest.approx(norm)


def test_scores_that_are_not_numbers_stay_out_of_the_records(federation, tmp_path):
    def evaluate(number, _):
        return MetricRecord({"loss": float("nan"), "each": [1.0, 2.0], "count": number})

    outcome = flower.Train(epochs=1, checkpoint=tmp_path, **make_settings(federation)).start(
        make_grid(federation), draw_start(federation), 1, evaluate_fn=evaluate
    )
    assert outcome.rounds[0].scores == {"count": 1.0}
    assert outcome.evaluate_metrics_serverapp[1]["each"] == [1.0, 2.0]


@pytest.mark.parametrize("key", ["lr", "epochs", "seed", "round", "client", "answer", "forget-rows"])
def test_train_config_cannot_set_what_the_strategy_sends(federation, key):
    grid = make_grid(federation)
    with pytest.raises(ConfigError, match=f"train_config sets {key}, which the strategy sends itself"):
        flower.Train(**make_settings(federation)).start(
            grid, draw_start(federation), 1, train_config=ConfigRecord({"mine": 1, key: 1})
        )
    assert grid.sent == []


def list_said(grid):
    return {key for _, kind, config in grid.sent if kind == "train" for key in config}


def test_a_train_message_holds_our_keys_and_train_config(federation):
    grid = make_grid(federation)
    flower.FedUHB("class:1,cat:0", epochs=1, stop=feduhb.never, **make_settings(federation)).start(
        grid, draw_start(federation), 1, train_config=ConfigRecord({"mine": 1})
    )
    only_if_used = {*ADDED_KEYS, TARGETS, CARRIED, HELD_OUT, *(key for key in OURS if key.startswith(TASK))}
    assert list_said(grid) == {*OURS, "mine"} - only_if_used


def test_settings_that_earlier_clients_do_not_know_are_sent_only_if_they_are_used(federation):
    """A client that is told nothing trains as before."""
    used: dict[str, Any] = {
        "momentum": {"momentum": 0.9, "proximal": 0.1, "clip_norm": 2.0, "schedule": "cosine"},
        "adamw": {"optimizer": "adamw", "weight_decay": 0.01},
    }
    for settings in used.values():
        grid, local = make_grid(federation), feduhb.Local(batch_size=4, lr=0.05, **settings)
        there = flower.Train(epochs=1, **make_settings(federation, local=local)).start(
            grid, draw_start(federation), 2
        )
        assert list_said(grid) & {*ADDED_KEYS} == {key.replace("_", "-") for key in settings}
        here = feduhb.train(
            federation, 2, epochs=1, batch_size=4, lr=0.05, engine="loop", show=None, **settings
        )
        assert torch.equal(there.params, here.params)


def test_an_augmentation_of_the_strategy_is_refused(federation):
    local = feduhb.Local(augment=lambda x, _: x)
    with pytest.raises(ConfigError, match=r"give it to client_app\(augment=...\)"):
        flower.Train(**make_settings(federation, local=local))


def test_another_loop_cannot_drive_a_strategy(federation):
    strategy = flower.FedUHB("bee")
    with pytest.raises(ConfigError, match="FedUHB runs its own loop and cannot be wrapped; call its start"):
        strategy.configure_train(1, draw_start(federation), ConfigRecord(), make_grid(federation))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"momentum": 1.0}, "momentum is 1.0; give at least 0 and below 1"),
        ({"clients_per_round": 0}, "clients_per_round is 0; give 1 or more"),
        (
            {"clients_per_round": 2, "min_replies": 3},
            "min_replies is 3, but only 2 clients are asked each round",
        ),
        ({"min_clients": 0}, "min_clients is 0; give 1 or more"),
        ({"evaluate_every": -1}, "evaluate_every is -1; give 0 or more"),
    ],
)
def test_wrong_settings_are_refused_when_a_strategy_is_made(settings, words):
    with pytest.raises(ConfigError, match=words):
        flower.FedUHB("bee", **settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"min_replies": 0}, "min_replies is 0; give 1 or more"),
        ({"timeout": 0.0}, "timeout is 0.0; give a positive number of seconds"),
        ({"max_norm": -1.0}, "max_norm is -1.0; give a positive number"),
        ({"max_examples": 0.0}, "max_examples is 0.0; give a positive number"),
    ],
)
def test_wrong_limits_are_refused_at_the_start(federation, settings, words):
    strategy = flower.FedUHB("bee", **{**make_settings(federation), **settings})
    with pytest.raises(ConfigError, match=words):
        strategy.start(make_grid(federation), draw_start(federation), 1)
