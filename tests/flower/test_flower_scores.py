"""Scores of clients are checked before they are averaged, logged or written."""

import json

from flwr.app import Message, MetricRecord, RecordDict

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
    words = (
        "cat is left out of the scores: it answered with a weight of 9e+17 examples, above the limit 100000"
    )
    assert words in caplog.text


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
