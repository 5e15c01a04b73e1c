"""Answers are checked: clients that send bad answers or none are left out by name, and the model stays finite."""

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
from flower.gridding import change_answers, make_app, make_grid

LOCAL = feduhb.Local(batch_size=8, lr=0.05)
NAMES = ("ant", "bee", "cat", "dog", "elk")
FEDERATION = ragged()
WIDE = np.dtype(np.longdouble).itemsize > 8  # it is not everywhere


def draw_start():
    return flower.fresh_arrays(FEDERATION.model, FEDERATION.seed)


def make_strategy(forget: Forget = "elk", **more):
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


def make_grid_with(change, client="cat"):
    return make_grid(FEDERATION, apps={client: change_answers(make_app(FEDERATION), change)})


def scale(factor):
    def change(content):
        values = {name: array.numpy() * factor for name, array in content["update"].items()}
        return RecordDict({"update": to_record(values), "metrics": content["metrics"]})

    return change


def to_record(values):
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in values.items()})


def replace_array(position, value):
    """Change one array of the answer."""

    def change(content):
        values = {name: array.numpy().copy() for name, array in content["update"].items()}
        name = list(values)[position]
        values[name] = value(values[name])
        return RecordDict({"update": to_record(values), "metrics": content["metrics"]})

    return change


def set_number(number):
    def value(array):
        array.flat[0] = number
        return array

    return replace_array(0, value)


def set_count(count):
    return lambda content: RecordDict({**content, "metrics": MetricRecord({"num-examples": count})})


def drop_record(key):
    return lambda content: RecordDict({k: v for k, v in content.items() if k != key})


def mislabel(content):
    """Send an array whose bytes hold another shape than its label."""
    arrays = dict(content["update"].items())
    name, array = next(iter(arrays.items()))
    bytes_ = io.BytesIO()
    np.save(bytes_, np.zeros(3))
    arrays[name] = Array(dtype=array.dtype, shape=array.shape, stype=array.stype, data=bytes_.getvalue())
    return RecordDict({"update": ArrayRecord(arrays), "metrics": content["metrics"]})


def put_bytes(data):
    def change(content):
        arrays = dict(content["update"].items())
        name, array = next(iter(arrays.items()))
        arrays[name] = Array(dtype=array.dtype, shape=array.shape, stype=array.stype, data=data)
        return RecordDict({"update": ArrayRecord(arrays), "metrics": content["metrics"]})

    return change


def make_pickle():
    bytes_ = io.BytesIO()
    np.save(bytes_, np.array([{"never": "unpickled"}], dtype=object), allow_pickle=True)
    return bytes_.getvalue()


def make_zip():
    bytes_ = io.BytesIO()
    np.savez(bytes_, a=np.zeros(3))
    return bytes_.getvalue()


def make_header(kind, shape):
    """Return the header of an .npy file without its numbers."""
    words = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(words).to_bytes(2, "little") + words


def set_shape(shape):
    def change(content):
        arrays = {name: Array(a.dtype, shape, a.stype, a.data) for name, a in content["update"].items()}
        return RecordDict({"update": ArrayRecord(arrays), "metrics": content["metrics"]})

    return change


def set_type(kind):
    return replace_array(0, lambda array: array.astype(kind))


def refuse(why):
    return lambda _: RecordDict({"refusal": ConfigRecord(why)})


def add_array(name):
    return lambda c: RecordDict({**c, "update": ArrayRecord({**c["update"], name: Array(np.zeros(1))})})


def add_record(name, record):
    return lambda content: RecordDict({**content, name: record})


def add_metrics(more):
    return lambda c: RecordDict({**c, "metrics": MetricRecord({**c["metrics"], **more})})


FAULTS = [
    ("NaN", set_number(np.nan), "it answered with NaN"),
    ("infinity", set_number(np.inf), "it answered with infinity"),
    ("million-fold", scale(1e6), r"it answered with an update of norm [0-9.e+]+, above the limit "),
    ("beyond floats", scale(1e300), "it answered with (an update of norm|infinity)"),
    ("shape", replace_array(0, lambda a: a[:1]), r"array 0.weight of shape \[1, 1, 3, 3\] instead of \[4, 1, 3, 3\]"),
    ("transposed", replace_array(4, lambda a: a.T.copy()), r"array 6.weight of shape \[54, 3\] instead of \[3, 54\]"),
    ("whole numbers", set_type(np.int64), "array 0.weight of int64 instead of floats of 2, 4 or 8 bytes"),
    *[("wide floats", set_type(np.longdouble), r"array 0.weight of float\d+ instead of floats") for _ in range(WIDE)],
    ("complex numbers", set_type(np.complex128), "array 0.weight of complex128 instead of floats"),
    ("records", set_type([("a\n\x1b[2J", "f8")]), r"array 0.weight of \[\('a\\n\\x1b\[2J', '<f8'\)\] instead of floats"),
    ("texts", set_type("U3"), "array 0.weight of <U3 instead of floats"),
    ("nothing in it", replace_array(0, lambda a: a[:0]), r"array 0.weight of shape \[0, 1, 3, 3\] instead of"),
    ("no shape", replace_array(0, lambda _: np.array(1.0)), r"array 0.weight of shape \[\] instead of"),
    ("a million dimensions", set_shape((1,) * 1_000_000), r"array 0.weight of shape \[(1, ){11}1\] instead of"),
    ("missing array", lambda c: RecordDict({**c, "update": to_record({})}), "it answered with no array 0.bias"),
    ("unknown array", lambda c: RecordDict({**c, "update": to_record({"x": np.zeros(1)})}), "no array 0.bias"),
    ("no update", drop_record("update"), "it answered with no arrays"),
    ("no count", drop_record("metrics"), "it answered with no num-examples among its metrics"),
    ("count zero", set_count(0), "it answered with a weight of 0 examples"),
    ("count negative", set_count(-5), "it answered with a weight of -5 examples"),
    ("count NaN", set_count(float("nan")), "it answered with a weight of nan examples"),
    ("count infinite", set_count(float("inf")), "it answered with a weight of inf examples"),
    ("count of billions", set_count(10**9), r"it answered with a weight of 1e\+09 examples, above the limit 100000"),
    ("count beyond floats", set_count(1.7e308), r"it answered with a weight of 1.7e\+308 examples, above the limit 100000"),
    ("false label", mislabel, r"array 0.weight of float64 \[3\] under a false label"),
    ("garbage", put_bytes(b"garbage"), "array 0.weight that cannot be read"),
    ("pickle", put_bytes(make_pickle()), "array 0.weight that cannot be read"),
    ("no bytes", put_bytes(b""), "array 0.weight that cannot be read"),
    ("zip of arrays", put_bytes(make_zip()), r"array 0.weight that cannot be read \(NpzFile\)"),
    ("terabytes promised", put_bytes(make_header("<f8", (10**12,))), "array 0.weight that cannot be read"),
    ("terabytes of nothing", put_bytes(make_header("|S0", (10**15,))), r"array 0.weight of \|S0 instead of floats"),
    ("rows of gigabytes", put_bytes(make_header(("<f8", (10**9,)), (4, 1, 3, 3))), "array 0.weight that cannot be read"),
    ("too long", put_bytes(b"x" * 100_000), "array 0.weight of 100000 bytes, too many for its shape"),
    ("count beyond all floats", set_count(10**400), "it answered with a weight of inf examples"),
    ("count of a part", set_count(5e-324), "it answered with a weight of 4.94066e-324 examples"),
    ("counts", set_count([7, 8]), "it answered with no num-examples among its metrics"),
    ("metrics that are none", lambda c: RecordDict({**c, "metrics": ConfigRecord({"num-examples": "7"})}), "no num-examples"),
    ("one array more", add_array("b"), "it answered with an unknown array 'b'"),
    ("update that is none", lambda c: RecordDict({**c, "update": ConfigRecord({"a": 1})}), "it answered with no arrays"),
    ("no records", lambda _: RecordDict({}), "it answered with no arrays"),
    ("another record", add_record("more", ConfigRecord({"a": b"x"})), "it answered with an unexpected record 'more'"),
    ("a second model", add_record("arrays", ArrayRecord({"a": Array(np.zeros(1))})), "an unexpected record 'arrays'"),
    ("another config", add_record("config", ConfigRecord({"a": 1})), "it answered with an unexpected record 'config'"),
    ("forged record", add_record("a\n\x1b[2J", ConfigRecord({"a": 1})), r"an unexpected record 'a\\n\\x1b\[2J'"),
    ("many metrics", add_metrics({f"x{i}": 1.0 for i in range(101)}), "it answered with 102 metrics, above the limit 101"),
    ("a long metric", add_metrics({"loss": [1.0] * 102}), "it answered with a metric of 102 numbers, above the limit 101"),
    ("long names", add_metrics({"x" * 10_000: 1.0}), "names of metrics of 10012 letters, above the limit 10000"),
    ("refusal", refuse({"why": "not\ntoday"}), "it answered with a refusal: not today"),
    ("refusal in bytes", refuse({"why": b"not today"}), "it answered with a refusal: without a reason"),
    ("nothing", lambda _: None, "no answer within 0.6 s"),
]  # fmt: skip


@cache
def train_without_cat():
    return make_strategy(["elk", "cat"]).start(make_grid(FEDERATION), draw_start(), 1).params


@pytest.mark.parametrize(("change", "words"), [case[1:] for case in FAULTS], ids=[case[0] for case in FAULTS])
def test_a_bad_answer_is_left_out_with_a_reason(change, words):
    outcome = make_strategy().start(make_grid_with(change), draw_start(), 1)
    assert set(outcome.left_out) == {0}
    assert set(outcome.left_out[0]) == {"cat"}
    assert re.search(words, outcome.left_out[0]["cat"])
    assert outcome.rounds[0].answered == ("ant", "bee", "dog")
    assert torch.equal(outcome.params, train_without_cat())
    assert outcome.params.isfinite().all()


@pytest.mark.parametrize("kind", [">f8", ">f4", "<f4", "<f2"])
def test_floats_in_another_order_or_precision_are_floats(kind):
    outcome = make_strategy().start(make_grid_with(set_type(kind)), draw_start(), 1)
    wanted = make_strategy().start(make_grid(FEDERATION), draw_start(), 1)
    assert outcome.left_out == {}
    torch.testing.assert_close(outcome.params, wanted.params, rtol=0, atol=0 if kind == ">f8" else 1e-3)


def test_a_fraction_of_an_example_is_not_a_count():
    """A weight of 1e-300 is zero in float32, and a mean with zero weight would end the run."""
    apps = {name: change_answers(make_app(FEDERATION), set_count(1e-300)) for name in ("ant", "bee", "cat")}
    outcome = make_strategy(min_replies=1).start(make_grid(FEDERATION, apps=apps), draw_start(), 1)
    assert outcome.rounds[0].answered == ("dog",)
    assert outcome.params.isfinite().all()


def test_an_error_reply_is_assigned_to_the_client_that_was_asked():
    def fail(_):
        raise RuntimeError("my disk is on fire")

    outcome = make_strategy().start(make_grid_with(fail), draw_start(), 1)
    assert outcome.left_out == {0: {"cat": "it failed: RuntimeError('my disk is on fire')"}}


def test_a_model_instead_of_an_update_is_an_answer_too():
    """Other apps send a model, as Flower's own strategies expect."""
    base = {name: array.numpy() for name, array in draw_start().items()}

    def to_model(content):
        arrived = {name: base[name] - array.numpy() for name, array in content["update"].items()}
        return RecordDict({"arrays": to_record(arrived), "metrics": content["metrics"]})

    outcome = make_strategy().start(make_grid_with(to_model), draw_start(), 1)
    wanted = make_strategy().start(make_grid(FEDERATION), draw_start(), 1)
    assert outcome.left_out == {}
    torch.testing.assert_close(outcome.params, wanted.params, rtol=0, atol=1e-15)


def test_a_model_is_not_accepted_as_a_gradient():
    def to_model(content):
        return RecordDict({"arrays": content["update"], "metrics": content["metrics"]})

    outcome = make_strategy(epochs=0).start(make_grid_with(to_model), draw_start(), 1)
    assert outcome.left_out[0] == {
        "cat": "it answered with no update, though full-batch gradients were asked for"
    }


def test_two_bad_answers_leave_the_other_ones():
    app = make_app(FEDERATION)
    apps = {"cat": change_answers(app, set_number(np.nan)), "dog": change_answers(app, scale(1e6))}
    outcome = make_strategy(min_replies=1).start(make_grid(FEDERATION, apps=apps), draw_start(), 2)
    assert [set(outcome.left_out[t]) for t in (0, 1)] == [{"cat", "dog"}] * 2
    assert outcome.params.isfinite().all()


def test_a_single_update_is_compared_with_the_model():
    gone = ["bee", "dog", "elk", "ant"]
    fine = make_strategy(gone).start(make_grid(FEDERATION), draw_start(), 1)
    assert fine.left_out == {}
    with pytest.raises(AnswerError, match="cat: it answered with an update of norm"):
        make_strategy(gone).start(make_grid_with(scale(1e9)), draw_start(), 1)


def test_honest_updates_of_different_size_are_all_taken():
    for factor in (1e-6, 2.5):
        outcome = make_strategy().start(make_grid_with(scale(factor)), draw_start(), 1)
        assert outcome.left_out == {}


def run_two(**changes):
    """Run a round with cat and dog alone, whose answers are changed."""
    app = make_app(FEDERATION)
    apps = {name: change_answers(app, change) for name, change in changes.items()}
    settings = {"min_replies": 1}
    return make_strategy(["ant", "bee", "elk"], **settings).start(
        make_grid(FEDERATION, apps=apps), draw_start(), 1
    )


@pytest.mark.parametrize("factor", [0.0, 1e-12])
def test_one_of_two_clients_cannot_exclude_the_other_by_a_tiny_update(factor):
    outcome = run_two(cat=scale(factor))
    assert outcome.left_out == {}
    assert outcome.rounds[0].answered == ("cat", "dog")


def test_of_two_updates_a_million_fold_one_is_left_out():
    outcome = run_two(cat=scale(1e6))
    assert set(outcome.left_out[0]) == {"cat"}


def test_one_of_two_clients_cannot_exclude_the_other_by_a_tiny_count():
    assert run_two(cat=set_count(1), dog=set_count(90_000)).left_out == {}
    assert set(run_two(cat=set_count(1), dog=set_count(200_000)).left_out[0]) == {"dog"}


def test_large_counts_are_accepted_among_large_counts():
    apps = {name: change_answers(make_app(FEDERATION), set_count(10**7)) for name in ("ant", "bee", "cat")}
    assert make_strategy().start(make_grid(FEDERATION, apps=apps), draw_start(), 1).left_out == {}
    with pytest.raises(AnswerError, match=r"a weight of 1e\+13 examples, above the limit 1e\+12"):
        run_two(cat=set_count(10**13), dog=set_count(10**13))


def test_metrics_of_other_apps_are_taken():
    outcome = make_strategy().start(make_grid_with(add_metrics({"train_loss": 0.3})), draw_start(), 1)
    assert outcome.left_out == {}


def test_max_examples_replaces_the_limit():
    grid = make_grid_with(set_count(10**9))
    assert make_strategy(max_examples=1e9).start(grid, draw_start(), 1).left_out == {}
    outcome = make_strategy(max_examples=20, min_replies=1).start(make_grid(FEDERATION), draw_start(), 1)
    assert outcome.left_out == {0: {"dog": "it answered with a weight of 24 examples, above the limit 20"}}


def test_an_answer_that_cannot_be_read_does_not_cost_the_others(monkeypatch):
    """The SuperLink deletes what it hands out, so a failed pull loses its answers."""
    grid = make_grid(FEDERATION)
    pull = grid.pull_messages

    def pull_and_fail(ids):
        replies = list(pull(ids))
        if any(r.metadata.message_type == "train" and r.metadata.src_node_id == 102 for r in replies):
            raise ValueError("cannot\ninflate")
        return replies

    monkeypatch.setattr(grid, "pull_messages", pull_and_fail)
    outcome = make_strategy().start(grid, draw_start(), 1)
    assert outcome.left_out == {0: {"cat": "its answer cannot be read (cannot inflate)"}}
    assert outcome.rounds[0].answered == ("ant", "bee", "dog")


def test_max_norm_replaces_the_limit():
    outcome = make_strategy(max_norm=1e9).start(make_grid_with(scale(1e6)), draw_start(), 1)
    assert outcome.left_out == {}
    with pytest.raises(AnswerError, match=r"above the limit 1e-12"):
        make_strategy(max_norm=1e-12).start(make_grid(FEDERATION), draw_start(), 1)


def test_updates_of_nothing_at_all_are_taken():
    apps = {name: change_answers(make_app(FEDERATION), scale(0.0)) for name in NAMES}
    outcome = make_strategy().start(make_grid(FEDERATION, apps=apps), draw_start(), 2)
    assert outcome.left_out == {}
    assert outcome.rounds[-1].moved == 0.0


def test_missing_clients_are_asked_once_more_and_then_named_in_an_error():
    grid = make_grid_with(lambda _: None)
    with pytest.raises(
        AnswerError,
        match=r"3 of 4 clients sent a valid update in round 0, but 4 are needed: cat: no answer within 0.6 s",
    ):
        make_strategy(min_replies=4).start(grid, draw_start(), 1)
    asked = [node for node, kind, _ in grid.sent if kind == "train"]
    assert sorted(asked) == [100, 101, 102, 102, 103]


def test_an_answer_to_the_second_request_counts():
    times = []

    def answer_late(content):
        times.append(1)
        return content if len(times) > 1 else None

    outcome = make_strategy(min_replies=4).start(make_grid_with(answer_late), draw_start(), 1)
    assert outcome.left_out == {}
    assert torch.equal(outcome.params, make_strategy().start(make_grid(FEDERATION), draw_start(), 1).params)


def test_half_of_the_clients_asked_must_answer_by_default():
    app = make_app(FEDERATION)
    apps = {name: change_answers(app, lambda _: None) for name in ("ant", "bee", "cat")}
    with pytest.raises(AnswerError, match="1 of 4 clients sent a valid update in round 0, but 2 are needed"):
        make_strategy().start(make_grid(FEDERATION, apps=apps), draw_start(), 1)
    assert make_strategy(min_replies=1).start(make_grid(FEDERATION, apps=apps), draw_start(), 1).rounds[
        0
    ].answered == ("dog",)
