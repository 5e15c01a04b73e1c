"""Held-out values over a grid ride on the answers to train messages, and equal those of an in-process run."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, MetricRecord, RecordDict

import feduhb
from federations import ragged, tensors
from feduhb import flower
from feduhb.errors import AnswerError, ConfigError, RunFolderError
from feduhb.runs.folder import HISTORY, RunFolder
from feduhb.runs.history import DiskHistory
from flower.gridding import Killed, change_answers, make_app, make_grid

NAMES = ("ant", "bee", "cat", "dog", "elk")
HELD = {name: tensors(f"held {name}", 5 + i) for i, name in enumerate(NAMES) if name != "ant"}
HELD["cat"][1][:3] = -100  # labels that the loss leaves out
FEDERATION = ragged().replace(held_out=HELD)
SETTINGS: dict[str, Any] = {"epochs": 1, "batch_size": 8, "lr": 0.05, "show": None}
LOCAL = feduhb.Local(batch_size=8, lr=0.05)
PATIENCE = feduhb.patience("held_out_accuracy", rounds=2, gain=0.0, smooth=2, first=2)
RULES = {
    "score": PATIENCE,
    "loss": feduhb.patience("held_out_loss", rounds=2, gain=0.5, smooth=1, first=1),
    "distance": feduhb.distance_stop(0.5, window=2, first=3),
}
EMPTY = (torch.zeros(0, 1, 12, 12, dtype=torch.float64), torch.zeros(0, dtype=torch.int64))


def load_held(context: Any) -> Any:
    return HELD.get(NAMES[int(context.node_config["partition-id"])], EMPTY)


def make_stage(**more: Any) -> Any:
    return make_grid(FEDERATION, held_out=load_held, **more)


def connect(grid: Any) -> Any:
    return flower.connected(
        grid, FEDERATION.test, FEDERATION.model, seed=7, partitions=NAMES, timeout=5, max_share=1.0
    )


def make_strategy(kind: Any = flower.FedUHB, forget: Any = "bee", **more: Any) -> Any:
    settings = {"epochs": 1, "seed": 7, "local": LOCAL, "partitions": NAMES, "timeout": 5, "max_share": 1.0}
    return kind(forget=forget, **settings, model=FEDERATION.model, **more)


def list_series(rounds: Any) -> list[Any]:
    return [(r.moved, r.distance, dict(r.held_out), r.stopped) for r in rounds]


@pytest.mark.slow
@pytest.mark.parametrize("forget", ["bee", "dog:0+3", "class:2"])
@pytest.mark.parametrize("rule", [*RULES.values()], ids=[*RULES])
def test_an_unlearning_equals_the_in_process_run(rule, forget):
    how = {"stop": rule, "keep": "best", "record": ("held_out", "distance"), "rounds": 8, "show": None}
    here = feduhb.unlearn(feduhb.train(FEDERATION, 1, engine="loop", **SETTINGS), forget, **how)
    far = connect(make_stage())
    there = feduhb.unlearn(feduhb.train(far, 1, engine=far.engine, **SETTINGS), forget, **how)
    assert torch.equal(there.params, here.params)
    assert list_series(there.rounds) == list_series(here.rounds)
    assert there.kept_round == here.kept_round


@pytest.mark.slow
def test_a_strategy_equals_the_in_process_run_and_is_opened_again(tmp_path):
    how: dict[str, Any] = {"stop": PATIENCE, "keep": "best", "record": ("distance",)}
    outcome = make_strategy(checkpoint=tmp_path, **how).start(make_stage(), num_rounds=8)
    trained = feduhb.train(FEDERATION, 1, engine="loop", **SETTINGS)
    here = feduhb.unlearn(trained, "bee", method=feduhb.FedUHB(epochs=1), rounds=8, **how, show=None)
    assert torch.equal(outcome.params, here.params)
    assert list_series(outcome.rounds) == list_series(here.rounds)
    unlearn = RunFolder(tmp_path).config()["unlearn"]
    assert (unlearn["keep"], unlearn["record"], unlearn["stop"]["watch"]) == (
        "best",
        ["distance"],
        "held_out_score",
    )
    opened = feduhb.open_run(tmp_path, FEDERATION)
    assert (opened.stop, opened.keep, opened.kept_round) == (PATIENCE, "best", here.kept_round)


@pytest.mark.slow
def test_no_message_is_added_to_a_round():
    """The values ride on train messages, which ask for them only if the run needs them. Before, each client is asked for a count."""
    counts = []
    for how in ({}, {"stop": feduhb.patience(), "keep": "best"}):
        grid = make_stage()
        make_strategy(**{"stop": feduhb.never, **how}).start(grid, num_rounds=2)
        assert {"held-out" in told for _, kind, told in grid.sent if kind == "train"} == {bool(how)}
        counts.append(Counter((node, kind) for node, kind, _ in grid.sent))
    assert counts[1] - counts[0] == Counter(
        (node, "query.feduhb_who") for node, kind in counts[0] if kind == "train"
    )


@pytest.mark.slow
@pytest.mark.parametrize("last", [1, 2, 4])
def test_a_server_killed_in_a_round_resumes_with_the_same_choice(last, tmp_path):
    how: dict[str, Any] = {"stop": feduhb.never, "keep": "best"}
    whole = make_strategy(**how).start(make_stage(), num_rounds=6)
    grid = make_stage()

    def before(message: Any) -> None:
        if message.metadata.message_type == "train" and message.content["config"]["round"] == last:
            raise Killed

    grid.before = before
    with pytest.raises(Killed):
        make_strategy(**how, checkpoint=tmp_path).start(grid, num_rounds=6)
    resumed = make_strategy(**how, checkpoint=tmp_path).start(make_stage(), num_rounds=6)
    assert torch.equal(resumed.params, whole.params)
    assert list_series(resumed.rounds) == list_series(whole.rounds)


def test_forgotten_rows_are_not_scored_if_held_out_data_has_the_numbering_of_the_training_data():
    x, y = HELD["dog"]
    sent = {}
    for keys in ([100, 3, 101, 102, 103, 104, 105, 106], None):
        loaded = (x, y) if keys is None else (x, y, torch.tensor(keys))

        def record(content: Any, keys: Any = keys) -> Any:
            sent[keys is None] = content["held-out"]["num-examples"]
            return content

        app = change_answers(make_app(FEDERATION, held_out=lambda _, loaded=loaded: loaded), record)
        make_strategy(forget="dog:3", stop=feduhb.never, record=("held_out",)).start(
            make_stage(apps={"dog": app}), num_rounds=1
        )
    assert sent == {False: 7, True: 8}


def spoil(said: dict[str, Any]) -> Any:
    def change(content: RecordDict) -> RecordDict:
        content["held-out"] = MetricRecord(said)
        return content

    return change_answers(make_app(FEDERATION, held_out=load_held), change)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"num-examples": 9e17, "loss": 1.0}, "a weight of 9e+17 examples, above the limit 100000"),
        ({"num-examples": 0, "loss": 1.0}, "a weight of 0 examples"),
        ({"num-examples": 7, "loss": 1.0, "accuracy": 1.5}, "it answered with accuracy 1.5"),
        ({"num-examples": 7, "loss": -1e9, "accuracy": 0.5}, "it answered with loss -1e+09"),
    ],
)
def test_values_that_cannot_be_true_are_left_out_by_name(said, words, caplog):
    how: dict[str, Any] = {"stop": feduhb.never, "record": ("held_out",)}
    outcome = make_strategy(**how).start(make_stage(apps={"cat": spoil(said)}), num_rounds=1)
    honest = make_strategy(**how).start(make_stage(), num_rounds=1)
    assert torch.equal(outcome.params, honest.params), "the update itself was sound"
    for name in ("loss", "accuracy"):
        assert outcome.rounds[0].held_out[name] == pytest.approx(honest.rounds[0].held_out[name], abs=0.3)
    assert "round 1: cat is left out of the held-out values, or bounded: " in caplog.text
    assert words in caplog.text


def test_a_loss_that_overflows_at_one_client_is_not_recorded_as_in_process(caplog):
    draw = torch.Generator().manual_seed(1)
    parts = {name: (torch.randn(4, 3, generator=draw), torch.randn(4, 1, generator=draw)) for name in NAMES}
    held = {name: (x * 1e20 if name == "cat" else x, y) for name, (x, y) in parts.items()}
    federation = feduhb.Federation(
        parts, parts["ant"], torch.nn.Linear(3, 1), held_out=held, loss="mse", seed=7
    )
    grid = make_grid(
        federation, held_out=lambda context: held[NAMES[int(context.node_config["partition-id"])]]
    )
    far = flower.connected(
        grid,
        federation.test,
        federation.model,
        seed=7,
        partitions=NAMES,
        timeout=5,
        max_share=1.0,
        loss="mse",
    )
    how: dict[str, Any] = {**SETTINGS, "stop": feduhb.patience("held_out_loss", rounds=1, smooth=1, first=1)}
    here = feduhb.train(federation, 3, engine="loop", **how)
    there = feduhb.train(far, 3, engine=far.engine, **how)
    assert [record.held_out for record in (*here.rounds, *there.rounds)] == [{}] * 6
    assert torch.equal(here.params, there.params)
    assert "round 1: the held-out loss is not recorded, because that of cat is not finite" in caplog.text


@pytest.mark.parametrize("name", ["loss", "accuracy"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_only_the_value_that_is_not_finite_is_not_recorded(name, value, caplog):
    said = {"num-examples": 7, "loss": 1.0, "accuracy": 0.5, name: value}
    strategy = make_strategy(stop=feduhb.never, record=("held_out",))
    outcome = strategy.start(make_stage(apps={"cat": spoil(said)}), num_rounds=1)
    assert [*outcome.rounds[0].held_out] == [one for one in ("loss", "accuracy") if one != name]
    assert f"the held-out {name} is not recorded, because that of cat is not finite" in caplog.text


def test_a_client_cannot_take_the_weight_or_add_scores(caplog):
    said = {"num-examples": 90_000, "loss": 1.0, "accuracy": 0.0, "other": 1.0}
    strategy = make_strategy(stop=feduhb.never, record=("held_out",))
    strategy.max_share = 0.4
    outcome = strategy.start(make_stage(apps={"cat": spoil(said)}), num_rounds=1)
    assert set(outcome.rounds[0].held_out) == {"loss", "accuracy"}
    assert outcome.rounds[0].held_out["accuracy"] > 0
    assert "it claims 90000 of " in caplog.text


def test_a_held_out_record_that_nobody_asked_for_or_of_another_kind_is_malformed(caplog):
    app = spoil({"num-examples": 7, "loss": 1.0})
    make_strategy(stop=feduhb.never).start(make_stage(apps={"cat": app}), num_rounds=1)
    assert "cat is left out: it answered with an unexpected record 'held-out'" in caplog.text
    caplog.clear()

    def change(content: RecordDict) -> RecordDict:
        content["held-out"] = ConfigRecord({"loss": 1.0})
        return content

    odd = change_answers(make_app(FEDERATION, held_out=load_held), change)
    how: dict[str, Any] = {"stop": feduhb.never, "record": ("held_out",)}
    make_strategy(**how).start(make_stage(apps={"cat": odd}), num_rounds=1)
    assert "cat is left out: it answered with no num-examples among its metrics" in caplog.text


ONLY_TWOS = (torch.zeros(3, 1, 12, 12, dtype=torch.float64), torch.full((3,), 2))


@pytest.mark.parametrize(
    ("forget", "held_out"), [("bee", None), ("bee", lambda _: EMPTY), ("class:2", lambda _: ONLY_TWOS)]
)
def test_missing_held_out_data_is_noticed_before_anything_is_erased(forget, held_out, tmp_path):
    trained, unlearned = tmp_path / "first", tmp_path / "second"
    grid = make_grid(FEDERATION, held_out=held_out)
    make_strategy(flower.Train, None, checkpoint=trained, keep_history=True).start(grid, num_rounds=1)
    grid.sent.clear()
    words = r"^none of the [45] remaining clients that are connected has held-out data; give it to their apps, client_app\(held_out="
    for how in ({"stop": feduhb.patience()}, {"keep": "best"}, {"record": ("held_out",)}):
        strategy = make_strategy(forget=forget, trained=trained, checkpoint=unlearned, **how)
        with pytest.raises(ConfigError, match=words):
            strategy.start(grid, num_rounds=2)
    far = flower.connected(grid, FEDERATION.test, FEDERATION.model, partitions=NAMES, timeout=5)
    opened = feduhb.open_run(trained, far)
    with pytest.raises(ConfigError, match=words):
        feduhb.unlearn(opened, forget, engine=far.engine, stop=feduhb.patience(), out=unlearned, show=None)
    assert not grid.list_trained()
    assert RunFolder(trained).exists()
    assert DiskHistory(trained / HISTORY).rounds
    assert not unlearned.exists()


def test_clients_that_do_not_say_what_they_have_end_the_run_in_its_first_round():
    """Such are clients of an earlier version, which do not read what a query asks for."""
    own = make_app(FEDERATION)

    def forget_what_was_asked(message: Any, context: Any) -> Any:
        if message.metadata.message_type != "train":
            message.content.clear()
        return own(message, context)

    grid = make_grid(FEDERATION, apps=dict.fromkeys(NAMES, forget_what_was_asked))
    with pytest.raises(
        AnswerError, match=r"^no client sent held-out values in round 0; give client_app\(held_out="
    ):
        make_strategy(stop=feduhb.patience()).start(grid, num_rounds=2)
    done = make_strategy(stop=RULES["distance"]).start(grid, num_rounds=3)
    assert done.rounds[0].distance is not None


@pytest.mark.slow
def test_a_training_stops_by_a_rule_and_its_record_says_so(tmp_path):
    early = {"stop": RULES["distance"], "keep": "best"}
    grid = make_stage()
    outcome = make_strategy(flower.Train, None, checkpoint=tmp_path, **early).start(grid, num_rounds=8)
    here = feduhb.train(FEDERATION, 8, engine="loop", **early, **SETTINGS)
    assert 3 <= len(here.rounds) < 8
    assert torch.equal(outcome.params, here.params)
    assert list_series(outcome.rounds) == list_series(here.rounds)
    opened = feduhb.open_run(tmp_path, FEDERATION)
    assert (opened.stop, opened.settings.stop) == (RULES["distance"], RULES["distance"])
    with pytest.raises(RunFolderError, match=r"was started with a table \[train\.stop\], not none"):
        make_strategy(flower.Train, None, checkpoint=tmp_path, keep="best").start(grid, num_rounds=8)
    with pytest.raises(ConfigError, match=r"which config\.toml cannot record for a training"):
        make_strategy(flower.Train, None, stop=OwnRule())


class OwnRule:
    """A rule that config.toml cannot record."""

    def __call__(self, moved: Any) -> None: ...

    def threshold(self, moved: Any) -> None: ...


def test_words_that_are_not_known():
    with pytest.raises(ConfigError, match=r"^keep is 'first'; give 'last', or 'best'"):
        make_strategy(keep="first")
    with pytest.raises(ConfigError, match=r"^a run cannot record 'gradients'"):
        make_strategy(record=("gradients",))


@pytest.mark.slow
def test_a_score_of_each_client_is_averaged_by_its_examples():
    """AUROC is no mean over examples: over clients it is the mean of theirs, here and in one process alike."""
    here = feduhb.train(
        FEDERATION.replace(scores="auroc"), 2, engine="loop", record=("held_out",), **SETTINGS
    )
    far = connect(make_stage()).replace(scores="auroc")
    there = feduhb.train(far, 2, engine=far.engine, record=("held_out",), **SETTINGS)
    assert [dict(r.held_out) for r in there.rounds] == [dict(r.held_out) for r in here.rounds]
    assert list(here.rounds[0].held_out) == ["loss", "auroc"]
    own = connect(make_stage()).replace(scores={"mine": lambda outputs, _: outputs.mean()})
    with pytest.raises(
        ConfigError, match=r"^clients elsewhere cannot compute the score mine; give a built-in one first"
    ):
        feduhb.train(own, 1, engine=own.engine, record=("held_out",), **SETTINGS)
