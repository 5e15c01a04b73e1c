"""What comes back is looked at: who sends nonsense, or nothing, is named and left out, and the model stays finite."""

import io
import re
from functools import cache

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

import feduhb
from federations import ragged
from feduhb import flower
from feduhb.data.request import Forget
from feduhb.errors import AnswerError
from flower.gridding import answering, app_of, staged

LOCAL = feduhb.Local(batch_size=8, lr=0.05)
NAMES = ("ant", "bee", "cat", "dog", "elk")
FEDERATION = ragged()
WIDE = np.dtype(np.longdouble).itemsize > 8  # it is not everywhere


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


def zipped():
    bytes_ = io.BytesIO()
    np.savez(bytes_, a=np.zeros(3))
    return bytes_.getvalue()


def headed(kind, shape):
    """The beginning of an .npy file, with none of the numbers that it promises."""
    words = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(words).to_bytes(2, "little") + words


def labelled(shape):
    def change(content):
        arrays = {name: Array(a.dtype, shape, a.stype, a.data) for name, a in content["update"].items()}
        return RecordDict({"update": ArrayRecord(arrays), "metrics": content["metrics"]})

    return change


def typed(kind):
    return replaced(0, lambda array: array.astype(kind))


def refused(why):
    return lambda _: RecordDict({"refusal": ConfigRecord(why)})


def also(name):
    return lambda c: RecordDict({**c, "update": ArrayRecord({**c["update"], name: Array(np.zeros(1))})})


FAULTS = [
    ("NaN", poked(np.nan), "it answered with NaN"),
    ("infinity", poked(np.inf), "it answered with infinity"),
    ("million-fold", scaled(1e6), r"it answered with an update of norm [0-9.e+]+, above the limit "),
    ("beyond floats", scaled(1e300), "it answered with (an update of norm|infinity)"),
    ("shape", replaced(0, lambda a: a[:1]), r"array 0.weight of shape \[1, 1, 3, 3\] instead of \[4, 1, 3, 3\]"),
    ("transposed", replaced(4, lambda a: a.T.copy()), r"array 6.weight of shape \[54, 3\] instead of \[3, 54\]"),
    ("whole numbers", typed(np.int64), "array 0.weight of int64 instead of floats of 2, 4 or 8 bytes"),
    *[("wide floats", typed(np.longdouble), r"array 0.weight of float\d+ instead of floats") for _ in range(WIDE)],
    ("complex numbers", typed(np.complex128), "array 0.weight of complex128 instead of floats"),
    ("records", typed([("a\n\x1b[2J", "f8")]), r"array 0.weight of \[\('a\\n\\x1b\[2J', '<f8'\)\] instead of floats"),
    ("texts", typed("U3"), "array 0.weight of <U3 instead of floats"),
    ("nothing in it", replaced(0, lambda a: a[:0]), r"array 0.weight of shape \[0, 1, 3, 3\] instead of"),
    ("no shape", replaced(0, lambda _: np.array(1.0)), r"array 0.weight of shape \[\] instead of"),
    ("a million dimensions", labelled((1,) * 1_000_000), r"array 0.weight of shape \[(1, ){11}1\] instead of"),
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
    ("no bytes", garbage(b""), "array 0.weight that cannot be read"),
    ("zip of arrays", garbage(zipped()), r"array 0.weight that cannot be read \(NpzFile\)"),
    ("terabytes promised", garbage(headed("<f8", (10**12,))), "array 0.weight that cannot be read"),
    ("terabytes of nothing", garbage(headed("|S0", (10**15,))), r"array 0.weight of \|S0 instead of floats"),
    ("rows of gigabytes", garbage(headed(("<f8", (10**9,)), (4, 1, 3, 3))), "array 0.weight that cannot be read"),
    ("too long", garbage(b"x" * 100_000), "array 0.weight of 100000 bytes, too many for its shape"),
    ("count beyond all floats", counted(10**400), "it answered with a weight of inf examples"),
    ("count of a part", counted(5e-324), "it answered with a weight of 4.94066e-324 examples"),
    ("counts", counted([7, 8]), "it answered with no num-examples among its metrics"),
    ("metrics that are none", lambda c: RecordDict({**c, "metrics": ConfigRecord({"num-examples": "7"})}), "no num-examples"),
    ("one array more", also("b"), "it answered with an unknown array 'b'"),
    ("update that is none", lambda c: RecordDict({**c, "update": ConfigRecord({"a": 1})}), "it answered with no arrays"),
    ("no records", lambda _: RecordDict({}), "it answered with no arrays"),
    ("refusal", refused({"why": "not\ntoday"}), "it answered with a refusal: not today"),
    ("refusal in bytes", refused({"why": b"not today"}), "it answered with a refusal: without a reason"),
    ("nothing", lambda _: None, "no answer within 0.6 s"),
]  # fmt: skip


@cache
def without_cat():
    return strategy(["elk", "cat"]).start(staged(FEDERATION), start(), 1).params


@pytest.mark.parametrize(("change", "words"), [case[1:] for case in FAULTS], ids=[case[0] for case in FAULTS])
def test_it_is_named_and_left_out(change, words):
    outcome = strategy().start(with_one(change), start(), 1)
    assert set(outcome.left_out) == {0}
    assert set(outcome.left_out[0]) == {"cat"}
    assert re.search(words, outcome.left_out[0]["cat"])
    assert outcome.rounds[0].answered == ("ant", "bee", "dog")
    assert torch.equal(outcome.params, without_cat())
    assert outcome.params.isfinite().all()


@pytest.mark.parametrize("kind", [">f8", ">f4", "<f4", "<f2"])
def test_floats_in_another_order_or_precision_are_floats(kind):
    outcome = strategy().start(with_one(typed(kind)), start(), 1)
    wanted = strategy().start(staged(FEDERATION), start(), 1)
    assert outcome.left_out == {}
    torch.testing.assert_close(outcome.params, wanted.params, rtol=0, atol=0 if kind == ">f8" else 1e-3)


def test_parts_of_an_example_are_no_count():
    """A weight of 1e-300 is nothing in float32, and a mean by nothing would end everybody's run."""
    apps = {name: answering(app_of(FEDERATION), counted(1e-300)) for name in ("ant", "bee", "cat")}
    outcome = strategy(min_replies=1).start(staged(FEDERATION, apps=apps), start(), 1)
    assert outcome.rounds[0].answered == ("dog",)
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
