"""One hostile client: the default limits keep its part of a round small, name it, and leave honest rounds as they are."""

import json
import math

import pytest
import torch
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

import feduhb
from federations import ragged
from feduhb import flower
from feduhb.errors import ConfigError, RunFolderError
from feduhb.flower.validation import Limits, bound_weights, find_usual_norm, split_answers
from flower.gridding import Killed, change_answers, make_app, make_grid
from toys import quick

LOCAL = feduhb.Local(batch_size=8, lr=0.05)
NAMES = ("ant", "bee", "cat", "dog", "elk")
SIZES = {"ant": 9, "bee": 9, "cat": 9, "dog": 9, "elk": 9}
FEDERATION = ragged(SIZES)


def draw_start():
    return flower.fresh_arrays(FEDERATION.model, 7)


def train(grid, rounds=1, **more):
    settings = {"epochs": 1, "seed": 7, "local": LOCAL, "partitions": NAMES, "timeout": 5, **more}
    return flower.Train(**settings).start(grid, draw_start(), rounds)


def make_hostile_grid(change, client="cat"):
    return make_grid(FEDERATION, apps={client: change_answers(make_app(FEDERATION), change)})


def scale(factor):
    def change(content):
        arrays = {name: Array(array.numpy() * factor) for name, array in content["update"].items()}
        return RecordDict({"update": ArrayRecord(arrays), "metrics": content["metrics"]})

    return change


def claim(*counts):
    """Claim these numbers of examples, one after the other, and the last one from then on."""
    left = list(counts)

    def change(content):
        count = left.pop(0) if len(left) > 1 else left[0]
        return RecordDict({**content, "metrics": MetricRecord({"num-examples": count})})

    return change


def measure_weights(grid, rounds=1, **more):
    """Return the weights that the aggregation rule received in each round, and the outcome."""
    seen = []

    def spy(answers):
        blocks = list(answers)
        seen.append({client: float(b.weights[0]) for b in blocks for client in b.clients})
        return feduhb.weighted_mean(iter(blocks))

    return seen, train(grid, rounds, aggregate=spy, **more)


@pytest.mark.parametrize("factor", [500.0, 50.0, 20.0, -20.0])
def test_an_update_of_many_times_the_usual_length_is_left_out(factor, caplog):
    outcome = train(make_hostile_grid(scale(factor)))
    assert set(outcome.left_out[0]) == {"cat"}
    assert "round 1: cat is left out: it answered with an update of norm" in caplog.text
    assert torch.equal(outcome.params, train(make_grid(FEDERATION), forget="cat").params)


def test_an_update_is_compared_with_the_longest_median_so_far():
    """Clients that have learned send short updates; one that still learns must not be left out for it."""
    usual = find_usual_norm([torch.full((4,), 1.0)] * 3, None, is_first=True)
    assert usual == 2.0
    short = {client: (torch.full((4,), 0.01), 9.0) for client in "abcd"}
    late = {**short, "e": (torch.full((4,), 1.5), 9.0)}
    later = find_usual_norm([update for update, _ in late.values()], usual, is_first=False)
    assert later == 2.0
    assert split_answers(late, torch.zeros(4), Limits(), later)[1] == {}
    assert set(split_answers(late, torch.zeros(4), Limits())[1]) == {"e"}
    longer = {**short, "e": (torch.full((4,), 10.1), 9.0)}
    assert split_answers(longer, torch.zeros(4), Limits(), later)[1] == {
        "e": "it answered with an update of norm 20.2, above the limit 20"
    }


def test_without_the_first_round_the_usual_length_is_guessed_generously():
    norms = [torch.tensor([1.0])] * 3
    assert find_usual_norm(norms, None, is_first=False) == 4.0
    assert find_usual_norm(norms[:2], None, is_first=True) is None
    assert find_usual_norm([torch.zeros(1)] * 3, None, is_first=True) is None


@pytest.mark.parametrize(("clients", "limit"), [(3, 10.0), (16, 10.0), (100, 15.0)])
def test_of_more_clients_each_may_be_longer(clients, limit):
    def find_left_out(length):
        answers = {f"c{i}": (torch.tensor([1.0]), 1.0) for i in range(clients - 1)}
        return split_answers({**answers, "x": (torch.tensor([length]), 1.0)}, torch.zeros(1), Limits())[1]

    assert find_left_out(limit * 0.99) == {}
    assert set(find_left_out(limit * 1.01)) == {"x"}


def test_a_claim_of_100000_examples_is_bounded_and_named(tmp_path, caplog):
    (weights,), outcome = measure_weights(make_hostile_grid(claim(99_999)), checkpoint=tmp_path)
    share = weights["cat"] / sum(weights.values())
    assert share == pytest.approx(1.5 / math.sqrt(5))
    assert {client: weights[client] for client in ("ant", "bee", "dog", "elk")} == dict.fromkeys(
        ("ant", "bee", "dog", "elk"), 9.0
    )
    (why,) = outcome.bounded[0].values()
    assert why.startswith(
        "it claims 99999 of 100035 examples, and one of 5 clients may have 67% of the weight; if the number is right, "
    )
    assert f"round 1: cat: {why}" in caplog.text
    assert json.loads((tmp_path / "limits.json").read_text())["bounded"] == {"0": {"cat": why}}


def test_a_claim_that_grows_counts_for_the_first_one(caplog):
    weights, outcome = measure_weights(make_hostile_grid(claim(9, 40, 5)), 3)
    assert [found["cat"] for found in weights] == [9.0, 9.0, 5.0]
    assert set(outcome.bounded) == {1, 2}
    assert "round 2: cat: it claims 40 examples, but 9 in its first answer; it counts for 9" in caplog.text
    assert "round 3: cat: it claims 5 examples, but 9 in its first answer; it counts for 5" in caplog.text


def test_a_declared_number_is_the_limit_and_is_not_bounded_further():
    seen, outcome = measure_weights(make_hostile_grid(claim(5000)), examples={"cat": 9})
    assert seen[0]["cat"] == 9.0
    assert outcome.bounded[0] == {"cat": "it claims 5000 examples, but 9 declared; it counts for 9"}
    seen, outcome = measure_weights(make_hostile_grid(claim(5000)), examples={"cat": 5000})
    assert seen[0]["cat"] == 5000.0
    assert outcome.bounded == {}


def test_a_declared_number_that_is_nobodys_is_named(caplog):
    measure_weights(make_hostile_grid(claim(9)), examples={"catt": 9})
    assert "examples names catt, but no client that takes part has that id or name" in caplog.text


def test_a_number_may_be_declared_by_registered_name():
    grid = make_grid(FEDERATION, keyed=True, apps={"cat": change_answers(make_app(FEDERATION), claim(5000))})
    seen, _ = measure_weights(grid, examples={"CAT": 9}, partitions=None)
    assert seen[0][flower.key_id(grid.seats[102].key)] == 9.0


def test_the_first_claim_and_the_usual_length_are_kept_when_a_run_is_resumed(tmp_path):
    grid = make_hostile_grid(claim(9))

    def kill(message):
        if message.metadata.message_type == "train" and message.content["config"]["round"] == 1:
            raise Killed

    grid.before = kill
    with pytest.raises(Killed):
        train(grid, 2, checkpoint=tmp_path)
    kept = json.loads((tmp_path / "limits.json").read_text())
    assert kept["examples"]["cat"] == 9.0
    outcome = train(make_hostile_grid(claim(400)), 2, checkpoint=tmp_path)
    assert outcome.bounded == {
        1: {"cat": "it claims 400 examples, but 9 in its first answer; it counts for 9"}
    }
    assert json.loads((tmp_path / "limits.json").read_text())["lengths"]["1"] >= kept["lengths"]["1"] > 0
    (tmp_path / "limits.json").write_text('{"examples": {"cat": "many"}}')
    with pytest.raises(RunFolderError, match=r"limits.json is damaged; delete it"):
        train(make_hostile_grid(claim(400)), 2, checkpoint=tmp_path)


def test_honest_rounds_of_uneven_clients_are_not_changed():
    uneven = ragged()  # 1 to 24 examples
    settings = {"epochs": 1, "seed": 7, "local": LOCAL, "partitions": NAMES, "timeout": 5}
    grid = make_grid(uneven)
    outcome = flower.Train(**settings).start(grid, flower.fresh_arrays(uneven.model, 7), 3)
    assert (outcome.left_out, outcome.bounded) == ({}, {})
    there = feduhb.train(uneven, 3, epochs=1, batch_size=8, lr=0.05, engine="loop", show=None)
    assert torch.equal(outcome.params, there.params)


@quick
@given(
    st.lists(st.integers(1, 10**6), min_size=1, max_size=12),
    st.floats(0.05, 1.0),
    st.integers(0, 3),
)
def test_no_client_has_more_than_its_share(counts, share, known):
    claims = {f"c{i}": float(count) for i, count in enumerate(counts)}
    declared = {client: claims[client] for client in list(claims)[:known]}
    weights, why = bound_weights(claims, declared.get, {}, share)
    total = sum(weights.values())
    others = [client for client in claims if client not in declared]
    assert all(weights[client] == claims[client] for client in declared)
    assert all(0 < weights[client] <= claims[client] for client in claims)
    heaviest = max((weights[client] for client in others), default=0.0)
    if len(others) * share > 1 or declared:
        equal = {weights[client] for client in others} == {min((claims[c] for c in others), default=0.0)}
        assert heaviest <= share * total * (1 + 1e-9) or equal
    assert {client for client in others if weights[client] < claims[client]} == {*why}


def test_two_clients_may_have_any_share():
    claims = {"a": 1.0, "b": 90_000.0}
    assert bound_weights(claims, lambda _: None, {}, None) == (claims, {})


@pytest.mark.parametrize("rule", [feduhb.median, feduhb.trimmed_mean, feduhb.krum, feduhb.geometric_median])
def test_robust_rules_withstand_an_update_within_the_limits(rule):
    """A sign flip of 3.5 times the usual length passes the limit; a robust rule gives it little."""
    clean = train(make_grid(FEDERATION), aggregate=rule, forget="cat").params
    start = flower.fresh_arrays(FEDERATION.model, 7)
    start = torch.cat([torch.from_numpy(a.numpy().copy()).reshape(-1) for a in start.values()])

    def distance(rule):
        outcome = train(make_hostile_grid(scale(-3.5)), aggregate=rule)
        assert outcome.left_out == {}
        return float((outcome.params - clean).norm() / (clean - start).norm())

    assert distance(rule) < distance(feduhb.weighted_mean)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"max_share": 0}, "max_share is 0; give a share above 0 and at most 1"),
        ({"max_share": 1.5}, "max_share is 1.5; give a share"),
        ({"max_norm": -1}, "max_norm is -1; give a positive number"),
        ({"examples": {"cat": 0}}, "examples of cat is 0; give the number of its examples"),
        ({"examples": {"cat": "many"}}, "examples of cat is 'many'"),
        ({"examples": 9}, "examples is 9; give numbers by client"),
    ],
)
def test_limits_that_are_not_numbers_are_refused(setting, words):
    grid = make_grid(FEDERATION)
    with pytest.raises(ConfigError, match=words):
        train(grid, **setting)
    with pytest.raises(ConfigError, match=words):
        flower.connected(grid, FEDERATION.test, FEDERATION.model, partitions=NAMES, timeout=5, **setting)
    assert grid.sent == []
