"""Scores of clients are checked before they are averaged, logged or written."""

import json

import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

import feduhb
from federations import ragged
from feduhb import flower
from flower.gridding import make_app, make_grid

LOCAL = feduhb.Local(batch_size=8, lr=0.05)
NAMES = ("ant", "bee", "cat", "dog", "elk")
FEDERATION = ragged()


def draw_start():
    return flower.fresh_arrays(FEDERATION.model, 7)


def make_strategy(folder, **more):
    settings = {"epochs": 1, "seed": 7, "local": LOCAL, "partitions": NAMES, "timeout": 5, **more}
    return flower.Train(checkpoint=folder, **settings)


def answer_scores(said):
    """Return an app that answers with these scores."""

    def handle(message, context):
        if message.metadata.message_type != "evaluate":
            return make_app(FEDERATION)(message, context)
        return Message(RecordDict({"metrics": MetricRecord(said)}), reply_to=message)

    return handle


def run_with_scores(said, folder, **more):
    grid = make_grid(FEDERATION, apps={"cat": answer_scores(said)})
    return make_strategy(folder, evaluate_every=1, **more).start(grid, draw_start(), 1)


def test_one_client_cannot_decide_the_mean_scores(tmp_path, caplog):
    evil = {"num-examples": 9e17, "accuracy": 1e6, **{f"x{i}": 1.0 for i in range(20_000)}}
    outcome = run_with_scores(evil, tmp_path)
    honest = make_strategy(None, evaluate_every=1, forget="cat").start(make_grid(FEDERATION), draw_start(), 1)
    assert (
        set(outcome.rounds[0].scores) == set(honest.rounds[0].scores) == {"clients_loss", "clients_accuracy"}
    )
    assert outcome.rounds[0].scores["clients_accuracy"] <= 1.0
    assert (tmp_path / "rounds.jsonl").stat().st_size < 2000
    assert (
        "cat is left out of the scores, or bounded: it answered with 20002 metrics, above the limit 101"
        in caplog.text
    )


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"num-examples": 9e17}, "it answered with a weight of 9e+17 examples, above the limit 100000"),
        ({"num-examples": 7, "accuracy": 1.01}, "it answered with accuracy 1.01"),
        ({"num-examples": 7, "loss": -1e6}, "it answered with loss -1e+06"),
        ({"num-examples": 7, "loss": [1.0] * 102}, "it answered with a metric of 102 numbers, above the limit 101"),
        ({"num-examples": 7, "x" * 10_001: 1.0}, "it answered with names of metrics of 10013 letters, above the limit 10000"),
    ],
)  # fmt: skip
def test_false_scores_are_left_out_of_the_mean_by_name(said, words, tmp_path, caplog):
    outcome = run_with_scores(said, tmp_path)
    honest = make_strategy(None, evaluate_every=1).start(make_grid(FEDERATION), draw_start(), 1)
    for name in ("clients_loss", "clients_accuracy"):
        assert outcome.rounds[0].scores[name] == pytest.approx(honest.rounds[0].scores[name], abs=0.3)
    assert f"cat is left out of the scores, or bounded: {words}" in caplog.text


def test_a_client_cannot_take_the_weight_of_the_scores(tmp_path, caplog):
    """The other four have 53 examples, so 90,000 would decide the mean."""
    outcome = run_with_scores({"num-examples": 90_000, "accuracy": 0.0}, tmp_path)
    others = make_strategy(None, evaluate_every=1, forget="cat").start(make_grid(FEDERATION), draw_start(), 1)
    share = outcome.rounds[0].scores["clients_accuracy"] / others.rounds[0].scores["clients_accuracy"]
    assert 1 - share < 0.75  # it may have 67 %; the two models differ a little
    assert "cat is left out of the scores, or bounded: it claims 90000 of " in caplog.text


def test_an_evaluate_reply_with_another_record_is_left_out(tmp_path, caplog):
    def handle(message, context):
        reply = make_app(FEDERATION)(message, context)
        if message.metadata.message_type == "evaluate":
            reply.content["more"] = ConfigRecord({"a": b"x" * 1000})
        return reply

    grid = make_grid(FEDERATION, apps={"cat": handle})
    make_strategy(tmp_path, evaluate_every=1).start(grid, draw_start(), 1)
    assert (
        "cat is left out of the scores, or bounded: it answered with an unexpected record 'more'"
        in caplog.text
    )


def test_max_examples_holds_for_scores(tmp_path, caplog):
    outcome = run_with_scores({"num-examples": 21, "own": 1.0}, tmp_path, max_examples=24)
    assert outcome.rounds[0].scores["clients_own"] == 1.0
    outcome = run_with_scores({"num-examples": 25, "own": 1.0}, None, max_examples=24)
    assert "clients_own" not in outcome.rounds[0].scores
    assert "above the limit 24" in caplog.text


def test_scores_with_forged_names_reach_no_log_and_no_file(tmp_path, caplog):
    forged = "a\nWARNING: round 1: ant is left out\x1b[2J"
    with caplog.at_level("INFO", logger="flwr.feduhb"):
        outcome = run_with_scores({"num-examples": 7, forged: 1.0, "x" * 10**6: 1.0}, tmp_path)
    assert set(outcome.rounds[0].scores) == {"clients_loss", "clients_accuracy"}
    (line,) = (tmp_path / "rounds.jsonl").read_text().splitlines()
    assert set(json.loads(line)["scores"]) == {"clients_loss", "clients_accuracy"}
    assert all(record.getMessage().isprintable() for record in caplog.records)
