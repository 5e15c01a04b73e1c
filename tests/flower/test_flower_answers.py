"""What comes back is looked at: who sends nonsense, or nothing, is named and left out, and the model stays finite."""

import io
import re

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

import feduhb
from federations import ragged
from feduhb import flower
from feduhb.core.types import Work
from feduhb.data.request import Forget
from feduhb.errors import AnswerError
from flower.gridding import answering, app_of, staged

LOCAL = feduhb.Local(batch_size=8, lr=0.05)
NAMES = ("ant", "bee", "cat", "dog", "elk")
FEDERATION = ragged()


def start():
    return flower.fresh_arrays(FEDERATION.model, FEDERATION.seed)


def strategy(forget: Forget = "elk", **more):
    settings = {
        "epochs": 1,
        "stop": feduhb.never,
        "seed": 7,
        "local": LOCAL,
        "partitions": NAMES,
        "timeout": 0.6,
        **more,
    }
    return flower.FedUHB(forget, **settings)


def with_one(change, client="cat"):
    return staged(FEDERATION, apps={client: answering(app_of(FEDERATION), change)})


def scaled(factor):
    def change(content):
        values = {name: array.numpy() * factor for name, array in content["update"].items()}
        return RecordDict({"update": named(values), "metrics": content["metrics"]})

    return change


def named(values):
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in values.items()})


def replaced(position, value):
    """Change one array of the answer."""

    def change(content):
        values = {name: array.numpy().copy() for name, array in content["update"].items()}
        name = list(values)[position]
        values[name] = value(values[name])
        return RecordDict({"update": named(values), "metrics": content["metrics"]})

    return change


def poked(number):
    def value(array):
        array.flat[0] = number
        return array

    return replaced(0, value)


def counted(count):
    return lambda content: RecordDict({**content, "metrics": MetricRecord({"num-examples": count})})


def without(key):
    return lambda content: RecordDict({k: v for k, v in content.items() if k != key})


def false_label(content):
    """An array whose label is right and whose bytes hold another shape."""
    arrays = dict(content["update"].items())
    name, array = next(iter(arrays.items()))
    bytes_ = io.BytesIO()
    np.save(bytes_, np.zeros(3))
    arrays[name] = Array(dtype=array.dtype, shape=array.shape, stype=array.stype, data=bytes_.getvalue())
    return RecordDict({"update": ArrayRecord(arrays), "metrics": content["metrics"]})


def garbage(data):
    def change(content):
        arrays = dict(content["update"].items())
        name, array = next(iter(arrays.items()))
        arrays[name] = Array(dtype=array.dtype, shape=array.shape, stype=array.stype, data=data)
        return RecordDict({"update": ArrayRecord(arrays), "metrics": content["metrics"]})

    return change


def pickled():
    bytes_ = io.BytesIO()
    np.save(bytes_, np.array([{"never": "unpickled"}], dtype=object), allow_pickle=True)
    return bytes_.getvalue()


FAULTS = [
    ("NaN", poked(np.nan), "it answered with NaN"),
    ("infinity", poked(np.inf), "it answered with infinity"),
    ("million-fold", scaled(1e6), r"it answered with an update of norm [0-9.e+]+, above the limit "),
    ("beyond floats", scaled(1e300), "it answered with (an update of norm|infinity)"),
    ("shape", replaced(0, lambda a: a[:1]), r"array 0.weight of shape \[1, 1, 3, 3\] instead of \[4, 1, 3, 3\]"),
    ("transposed", replaced(4, lambda a: a.T.copy()), r"array 6.weight of shape \[54, 3\] instead of \[3, 54\]"),
    ("whole numbers", replaced(0, lambda a: a.astype(np.int64)), "array 0.weight of int64"),
    ("missing array", lambda c: RecordDict({**c, "update": named({})}), "it answered with no array 0.bias"),
    ("unknown array", lambda c: RecordDict({**c, "update": named({"x": np.zeros(1)})}), "no array 0.bias"),
    ("no update", without("update"), "it answered with no arrays"),
    ("no count", without("metrics"), "it answered with no num-examples among its metrics"),
    ("count zero", counted(0), "it answered with a weight of 0 examples"),
    ("count negative", counted(-5), "it answered with a weight of -5 examples"),
    ("count NaN", counted(float("nan")), "it answered with a weight of nan examples"),
    ("count infinite", counted(float("inf")), "it answered with a weight of inf examples"),
    ("count of billions", counted(10**9), r"it answered with a weight of 1e\+09 examples, above the limit 100000"),
    ("count beyond floats", counted(1.7e308), r"it answered with a weight of 1.7e\+308 examples, above the limit 100000"),
    ("false label", false_label, r"array 0.weight of float64 \[3\] under a false label"),
    ("garbage", garbage(b"garbage"), "array 0.weight that cannot be read"),
    ("pickle", garbage(pickled()), "array 0.weight that cannot be read"),
    ("too long", garbage(b"x" * 100_000), "array 0.weight of 100000 bytes, too many for its shape"),
    ("refusal", lambda _: RecordDict({"refusal": ConfigRecord({"why": "not\ntoday"})}), "it answered with a refusal: not today"),
    ("nothing", lambda _: None, "no answer within 0.6 s"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "words"), [case[1:] for case in FAULTS], ids=[case[0] for case in FAULTS])
def test_it_is_named_and_left_out(change, words):
    outcome = strategy().start(with_one(change), start(), 1)
    assert set(outcome.left_out) == {0}
    assert set(outcome.left_out[0]) == {"cat"}
    assert re.search(words, outcome.left_out[0]["cat"])
    assert outcome.rounds[0].answered == ("ant", "bee", "dog")
    others = strategy(["elk", "cat"]).start(staged(FEDERATION), start(), 1)
    assert torch.equal(outcome.params, others.params)
    assert outcome.params.isfinite().all()


def test_an_error_is_laid_to_whom_was_asked_though_the_link_signs_it():
    def broken(_):
        raise RuntimeError("my disk is on fire")

    outcome = strategy().start(with_one(broken), start(), 1)
    assert outcome.left_out == {0: {"cat": "it failed: RuntimeError('my disk is on fire')"}}


def test_a_model_instead_of_an_update_is_an_answer_too():
    """What other people's apps send, as Flower's own strategies want it."""
    base = {name: array.numpy() for name, array in start().items()}

    def model(content):
        arrived = {name: base[name] - array.numpy() for name, array in content["update"].items()}
        return RecordDict({"arrays": named(arrived), "metrics": content["metrics"]})

    outcome = strategy().start(with_one(model), start(), 1)
    wanted = strategy().start(staged(FEDERATION), start(), 1)
    assert outcome.left_out == {}
    torch.testing.assert_close(outcome.params, wanted.params, rtol=0, atol=1e-15)


def test_a_model_is_no_gradient():
    def model(content):
        return RecordDict({"arrays": content["update"], "metrics": content["metrics"]})

    outcome = strategy(epochs=0).start(with_one(model), start(), 1)
    assert outcome.left_out[0] == {
        "cat": "it answered with no update, though full-batch gradients were asked for"
    }


def test_two_bad_ones_of_three_leave_the_third():
    app = app_of(FEDERATION)
    apps = {"cat": answering(app, poked(np.nan)), "dog": answering(app, scaled(1e6))}
    outcome = strategy(min_replies=1).start(staged(FEDERATION, apps=apps), start(), 2)
    assert [set(outcome.left_out[t]) for t in (0, 1)] == [{"cat", "dog"}] * 2
    assert outcome.params.isfinite().all()


def test_one_alone_is_held_against_the_model():
    gone = ["bee", "dog", "elk", "ant"]
    fine = strategy(gone).start(staged(FEDERATION), start(), 1)
    assert fine.left_out == {}
    with pytest.raises(AnswerError, match="cat: it answered with an update of norm"):
        strategy(gone).start(with_one(scaled(1e9)), start(), 1)


def test_honest_updates_of_very_different_size_are_all_taken():
    outcome = strategy().start(with_one(scaled(300.0)), start(), 1)
    assert outcome.left_out == {}


def two(**changes):
    """Only cat and dog remain, and answer otherwise."""
    app = app_of(FEDERATION)
    apps = {name: answering(app, change) for name, change in changes.items()}
    settings = {"min_replies": 1}
    return strategy(["ant", "bee", "elk"], **settings).start(staged(FEDERATION, apps=apps), start(), 1)


@pytest.mark.parametrize("factor", [0.0, 1e-12])
def test_of_two_none_can_shut_out_the_other_by_a_tiny_update(factor):
    outcome = two(cat=scaled(factor))
    assert outcome.left_out == {}
    assert outcome.rounds[0].answered == ("cat", "dog")


def test_of_two_the_one_a_million_times_longer_is_left_out():
    outcome = two(cat=scaled(1e6))
    assert set(outcome.left_out[0]) == {"cat"}


def test_of_two_none_can_shut_out_the_other_by_a_tiny_number_of_examples():
    assert two(cat=counted(1), dog=counted(90_000)).left_out == {}
    assert set(two(cat=counted(1), dog=counted(200_000)).left_out[0]) == {"dog"}


def test_large_hospitals_are_believed_among_large_ones():
    apps = {name: answering(app_of(FEDERATION), counted(10**7)) for name in ("ant", "bee", "cat")}
    assert strategy().start(staged(FEDERATION, apps=apps), start(), 1).left_out == {}
    with pytest.raises(AnswerError, match=r"a weight of 1e\+13 examples, above the limit 1e\+12"):
        two(cat=counted(10**13), dog=counted(10**13))


def test_a_number_of_examples_of_ones_own():
    grid = with_one(counted(10**9))
    assert strategy(max_examples=1e9).start(grid, start(), 1).left_out == {}
    outcome = strategy(max_examples=20, min_replies=1).start(staged(FEDERATION), start(), 1)
    assert outcome.left_out == {0: {"dog": "it answered with a weight of 24 examples, above the limit 20"}}


def test_an_answer_that_cannot_be_read_costs_nobody_elses(monkeypatch):
    """The link forgets what it hands out, so that a pull that fails has taken its answers along."""
    grid = staged(FEDERATION)
    pull = grid.pull_messages

    def pulled(ids):
        replies = list(pull(ids))
        if any(r.metadata.message_type == "train" and r.metadata.src_node_id == 102 for r in replies):
            raise ValueError("cannot\ninflate")
        return replies

    monkeypatch.setattr(grid, "pull_messages", pulled)
    outcome = strategy().start(grid, start(), 1)
    assert outcome.left_out == {0: {"cat": "its answer cannot be read (cannot inflate)"}}
    assert outcome.rounds[0].answered == ("ant", "bee", "dog")


def test_a_limit_of_ones_own():
    outcome = strategy(max_norm=1e9).start(with_one(scaled(1e6)), start(), 1)
    assert outcome.left_out == {}
    with pytest.raises(AnswerError, match=r"above the limit 1e-12"):
        strategy(max_norm=1e-12).start(staged(FEDERATION), start(), 1)


def test_updates_of_nothing_at_all_are_taken():
    apps = {name: answering(app_of(FEDERATION), scaled(0.0)) for name in NAMES}
    outcome = strategy().start(staged(FEDERATION, apps=apps), start(), 2)
    assert outcome.left_out == {}
    assert outcome.rounds[-1].moved == 0.0


def test_too_few_are_asked_once_more_and_then_it_is_an_error_that_names_them():
    grid = with_one(lambda _: None)
    with pytest.raises(
        AnswerError,
        match=r"3 of 4 clients gave a sound answer in round 0, but 4 are needed: cat: no answer within 0.6 s",
    ):
        strategy(min_replies=4).start(grid, start(), 1)
    asked = [node for node, kind, _ in grid.sent if kind == "train"]
    assert sorted(asked) == [100, 101, 102, 102, 103]


def test_whoever_answers_the_second_time_counts():
    times = []

    def late(content):
        times.append(1)
        return content if len(times) > 1 else None

    outcome = strategy(min_replies=4).start(with_one(late), start(), 1)
    assert outcome.left_out == {}
    assert torch.equal(outcome.params, strategy().start(staged(FEDERATION), start(), 1).params)


def test_half_of_those_asked_must_answer_unless_told_otherwise():
    app = app_of(FEDERATION)
    apps = {name: answering(app, lambda _: None) for name in ("ant", "bee", "cat")}
    with pytest.raises(AnswerError, match="1 of 4 clients gave a sound answer in round 0, but 2 are needed"):
        strategy().start(staged(FEDERATION, apps=apps), start(), 1)
    assert strategy(min_replies=1).start(staged(FEDERATION, apps=apps), start(), 1).rounds[0].answered == (
        "dog",
    )


def test_the_engine_gives_blocks_in_the_order_asked_and_notes_who_is_away():
    grid = staged(FEDERATION)
    engine = flower.FlowerEngine(grid, start(), LOCAL, seed=7, partitions=NAMES, timeout=5)
    params = engine.layout.flat(start())
    grid.seats[101].online = False
    blocks = list(engine.train(Work(params, 1), ["dog", "bee", "ant"], 3))
    assert [block.clients for block in blocks] == [("dog",), ("ant",)]
    assert engine.left_out == {3: {"bee": "it is not connected"}}
    wanted = list(feduhb.Loop(FEDERATION, LOCAL).train(Work(params, 1), ["dog", "ant"], 3))
    assert all(torch.equal(a.values, b.values) for a, b in zip(blocks, wanted, strict=True))
    assert engine.about["name"] == "flower"
    assert engine.about["precision"] == "float64"


def test_the_engine_never_asks_a_leaver_whatever_it_is_told():
    grid = staged(FEDERATION)
    engine = flower.FlowerEngine(grid, start(), LOCAL, forget="bee", partitions=NAMES, timeout=5)
    params = engine.layout.flat(start())
    with pytest.raises(AnswerError, match="bee is forgotten and must not be asked"):
        list(engine.train(Work(params, 1), ["ant", "bee"], 0))
    assert grid.trained() == set()


def engine_of(grid, **more):
    return flower.FlowerEngine(grid, start(), LOCAL, seed=7, partitions=NAMES, timeout=5, **more)


def test_fewer_asked_than_are_needed_is_an_error_in_words():
    engine = engine_of(staged(FEDERATION), min_replies=3)
    work = Work(engine.layout.flat(start()), 1)
    with pytest.raises(
        AnswerError,
        match="2 of 2 clients gave a sound answer in round 0, but 3 are needed: no others were asked",
    ):
        list(engine.train(work, ["ant", "bee"], 0))


def test_a_method_that_asks_one_client_needs_no_more():
    engine = engine_of(staged(FEDERATION), min_replies=3)
    work = Work(engine.layout.flat(start()), 1, ("bee",))
    assert [block.clients for block in engine.train(work, ["bee"], 0)] == [("bee",)]
