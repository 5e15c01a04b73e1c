"""Text of clients reaches the operator's log and files as short printable lines; their scores are checked."""

import json
import math

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

import feduhb
from federations import ragged
from feduhb import flower
from feduhb.flower.validation import Limits, average_scores
from feduhb.flower.wire import MalformedError, read_scores
from flower.gridding import make_app, make_grid

LOCAL = feduhb.Local(batch_size=8, lr=0.05)
NAMES = ("ant", "bee", "cat", "dog", "elk")
FEDERATION = ragged()
FORGED = "a\nWARNING: round 1: ant is left out: it answered with NaN\x1b[2J\u202e" + "x" * 1_000_000


def add_array(message, context):
    reply = make_app(FEDERATION)(message, context)
    arrays = {**reply.content.array_records["update"], FORGED: Array(np.zeros(1))}
    return Message(
        RecordDict({"update": ArrayRecord(arrays), "metrics": reply.content["metrics"]}), reply_to=message
    )


def refuse(message, _):
    return Message(RecordDict({"refusal": ConfigRecord({"why": FORGED})}), reply_to=message)


def fail(message, _):
    return Message(Error(2, FORGED), reply_to=message)


@pytest.mark.parametrize("bad", [add_array, refuse, fail])
def test_a_client_cannot_write_lines_into_the_log(bad, tmp_path, caplog):
    def handle(message, context):
        handler = bad if message.metadata.message_type == "train" else make_app(FEDERATION)
        return handler(message, context)

    grid = make_grid(FEDERATION, apps={"cat": handle})
    strategy = flower.Train(epochs=1, seed=7, local=LOCAL, partitions=NAMES, timeout=5, checkpoint=tmp_path)
    with caplog.at_level("INFO", logger="flwr.feduhb"):
        outcome = strategy.start(grid, flower.fresh_arrays(FEDERATION.model, 7), 1)
    (why,) = outcome.left_out[0].values()
    assert why.isprintable()
    assert len(why) < 600
    assert json.loads((tmp_path / "left_out.json").read_text()) == {"0": {"cat": why}}
    told = [record.getMessage() for record in caplog.records]
    assert f"round 1: cat is left out: {why}; look at its SuperNode's log" in told
    assert all(line.isprintable() and len(line) < 700 for line in told)


def make_answers(**answers):
    return {client: RecordDict({"metrics": MetricRecord(said)}) for client, said in answers.items()}


def average(contents, most=None):
    """Read and average scores as the engine does."""
    answers, malformed = {}, {}
    for client, content in contents.items():
        try:
            answers[client] = read_scores(content)
        except MalformedError as error:
            malformed[client] = f"it answered with {error}"
    scores, faulty = average_scores(answers, Limits(max_examples=most))
    return scores, {**malformed, **faulty}


def test_each_score_is_averaged_by_examples_over_the_clients_that_have_it():
    answers = make_answers(
        ant={"num-examples": 1, "loss": 4.0, "accuracy": 1.0},
        bee={"num-examples": 3, "loss": 0.0},
        cat={"num-examples": 5, "loss": math.nan},
        dog={"num-examples": 5, "loss": math.inf, "accuracy": [1.0]},
    )
    assert average(answers) == ({"accuracy": 1.0, "loss": 1.0}, {})


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"num-examples": -2}, "it answered with a weight of -2 examples"),
        ({"num-examples": 0}, "it answered with a weight of 0 examples"),
        ({"num-examples": 1e-300}, "it answered with a weight of 1e-300 examples"),
        ({"num-examples": math.nan}, "it answered with a weight of nan examples"),
        ({"num-examples": 10**400}, "it answered with a weight of inf examples"),
        ({"num-examples": 9e17}, "it answered with a weight of 9e+17 examples, above the limit 100000"),
        ({"num-examples": [5]}, "it answered with no num-examples among its metrics"),
        ({}, "it answered with no num-examples among its metrics"),
        (
            {"num-examples": 5, **{f"x{i}": 1.0 for i in range(100)}},
            "it answered with 102 metrics, above the limit 101",
        ),
    ],
)
def test_scores_with_an_absurd_count_or_too_many_scores_are_left_out(said, words):
    answers = make_answers(ant={"num-examples": 20, "accuracy": 0.5}, cat={**said, "accuracy": 1e6})
    assert average(answers) == ({"accuracy": 0.5}, {"cat": words})


def test_an_answer_without_metrics_is_left_out():
    answers = {**make_answers(ant={"num-examples": 20, "accuracy": 0.5}), "cat": RecordDict({})}
    assert average(answers) == (
        {"accuracy": 0.5},
        {"cat": "it answered with no num-examples among its metrics"},
    )
    assert average({}) == ({}, {})


def test_max_examples_holds_for_scores():
    answers = make_answers(ant={"num-examples": 20, "loss": 1.0}, bee={"num-examples": 21, "loss": 5.0})
    assert average(answers, 20)[0] == {"loss": 1.0}
    assert average(make_answers(ant={"num-examples": 10**9, "loss": 1.0}), 1e9) == ({"loss": 1.0}, {})


def test_score_names_that_a_log_cannot_show_are_ignored():
    said = {
        "num-examples": 5,
        FORGED[:2000]: 1.0,
        FORGED[:90]: 1.0,
        "": 1.0,
        "x" * 101: 1.0,
        "x" * 100: 1.0,
        "Höhe": 2.0,
    }
    assert average(make_answers(ant=said)) == ({"x" * 100: 1.0, "Höhe": 2.0}, {})


@pytest.mark.parametrize("huge", [1.7e308, -1.7e308])
def test_huge_scores_do_not_overflow_or_exclude_other_scores(huge):
    answers = make_answers(
        ant={"num-examples": 9, "loss": huge}, bee={"num-examples": 9, "loss": huge, "accuracy": 1.0}
    )
    scores, left_out = average(answers)
    assert scores == {"loss": huge, "accuracy": 1.0}
    assert left_out == {}
    assert average(make_answers(ant={"num-examples": 1, "loss": 10**400})) == ({}, {})
