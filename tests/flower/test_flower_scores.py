"""Scores that clients give are judged before they are averaged, logged or written."""

import json

from flwr.app import Message, MetricRecord, RecordDict

import feduhb
from federations import ragged
from feduhb import flower
from flower.gridding import app_of, staged

LOCAL = feduhb.Local(batch_size=8, lr=0.05)
NAMES = ("ant", "bee", "cat", "dog", "elk")
FEDERATION = ragged()


def start():
    return flower.fresh_arrays(FEDERATION.model, 7)


def strategy(folder, **more):
    settings = {"epochs": 1, "seed": 7, "local": LOCAL, "partitions": NAMES, "timeout": 5, **more}
    return flower.Train(checkpoint=folder, **settings)


def scored(said):
    """A client whose scores are these."""

    def handle(message, context):
        if message.metadata.message_type != "evaluate":
            return app_of(FEDERATION)(message, context)
        return Message(RecordDict({"metrics": MetricRecord(said)}), reply_to=message)

    return handle


def scores_with(said, folder, **more):
    grid = staged(FEDERATION, apps={"cat": scored(said)})
    return strategy(folder, evaluate_every=1, **more).start(grid, start(), 1)


def test_one_client_does_not_decide_the_scores_of_all(tmp_path, caplog):
    evil = {"num-examples": 9e17, "accuracy": 1e6, **{f"x{i}": 1.0 for i in range(20_000)}}
    outcome = scores_with(evil, tmp_path)
    honest = strategy(None, evaluate_every=1, forget="cat").start(staged(FEDERATION), start(), 1)
    assert (
        set(outcome.rounds[0].scores) == set(honest.rounds[0].scores) == {"clients_loss", "clients_accuracy"}
    )
    assert outcome.rounds[0].scores["clients_accuracy"] <= 1.0
    assert (tmp_path / "rounds.jsonl").stat().st_size < 2000
    words = (
        "cat gave no scores that count: it answered with a weight of 9e+17 examples, above the limit 100000"
    )
    assert words in caplog.text


def test_a_limit_of_ones_own_holds_for_scores_too(tmp_path, caplog):
    outcome = scores_with({"num-examples": 21, "own": 1.0}, tmp_path, max_examples=24)
    assert outcome.rounds[0].scores["clients_own"] == 1.0
    outcome = scores_with({"num-examples": 25, "own": 1.0}, None, max_examples=24)
    assert "clients_own" not in outcome.rounds[0].scores
    assert "above the limit 24" in caplog.text


def test_scores_of_any_name_reach_no_log_and_no_file(tmp_path, caplog):
    forged = "a\nWARNING: round 1: ant is left out\x1b[2J"
    with caplog.at_level("INFO", logger="flwr.feduhb"):
        outcome = scores_with({"num-examples": 7, forged: 1.0, "x" * 10**6: 1.0}, tmp_path)
    assert set(outcome.rounds[0].scores) == {"clients_loss", "clients_accuracy"}
    (line,) = (tmp_path / "rounds.jsonl").read_text().splitlines()
    assert set(json.loads(line)["scores"]) == {"clients_loss", "clients_accuracy"}
    assert all(record.getMessage().isprintable() for record in caplog.records)
