"""The client's side: its data, its own keys, its cache, and what it says to servers of other kinds."""

import itertools
import json
import re

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from safetensors.torch import load_file
from torch import nn

import feduhb
from feduhb import flower
from feduhb.core.types import Work
from feduhb.errors import DataError
from feduhb.flower import client_cache
from feduhb.flower.client_cache import ClientCache
from feduhb.flower.wire import Layout

X = torch.arange(12.0).reshape(6, 2)
Y = torch.tensor([0, 1, 2, 0, 1, 2])
KEYS = [10, 20, 30, 40, 50, 60]
MODEL = nn.Linear(2, 3)
NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def somebody():
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


def context(**config):
    return Context(run_id=1, node_id=5, node_config=config, state=RecordDict(), run_config={})


def message(kind="train", **config):
    content = RecordDict({"arrays": flower.fresh_arrays(MODEL, 3)})
    if config:
        content["config"] = ConfigRecord(config)
    made = Message(content, 5, kind)
    made.metadata.__dict__["_message_id"] = f"m{next(NUMBERS)}"
    return made


def asked(**more):
    return message(
        **{
            "client": "me",
            "round": 2,
            "seed": 3,
            "epochs": 2,
            "batch-size": 2,
            "lr": 0.1,
            "l2": 0.01,
            "answer": "update",
            **more,
        }
    )


def app(data=(X, Y), **options):
    return flower.client_app(model=MODEL, data=lambda _: data, **options)


def said(reply) -> str:
    return str(reply.content["refusal"]["why"])


def update_of(reply):
    return Layout.of(flower.fresh_arrays(MODEL, 3)).flatten(reply.content["update"])


def wanted(x, y, epochs=2):
    examples = feduhb.Federation({"me": (x, y)}, (x, y), MODEL, seed=3)
    params = torch.cat([p.detach().flatten() for p in examples.fresh_model().parameters()])
    local = feduhb.Local(batch_size=2, lr=0.1, l2=0.01)
    (block,) = feduhb.Loop(examples, local).train(Work(params, epochs), ["me"], 2)
    return block.values[0]


@pytest.mark.parametrize("epochs", [0, 1, 2])
def test_it_trains_as_the_reference_engine_does(epochs):
    reply = app()(asked(epochs=epochs), context())
    assert torch.equal(update_of(reply), wanted(X, Y, epochs=epochs))
    assert reply.content["metrics"]["num-examples"] == 6


def test_it_trains_with_the_threads_it_is_given():
    reply = app(threads=2)(asked(), context())
    torch.testing.assert_close(update_of(reply), wanted(X, Y))
    assert "the loop needs 1 thread" in said(app(threads=0)(asked(), context()))


def test_rows_go_by_their_positions():
    reply = app()(asked(**{"forget-rows": [0, 4]}), context())
    keep = [1, 2, 3, 5]
    assert torch.equal(update_of(reply), wanted(X[keep], Y[keep]))
    assert reply.content["metrics"]["num-examples"] == 4


def test_rows_go_by_the_clients_own_keys_where_it_has_some():
    reply = app((X, Y, KEYS))(asked(**{"forget-rows": [10, 50]}), context())
    keep = [1, 2, 3, 5]
    assert torch.equal(update_of(reply), wanted(X[keep], Y[keep]))


def test_a_class_goes_whole():
    reply = app()(asked(**{"forget-classes": [1]}), context())
    keep = [0, 2, 3, 5]
    assert torch.equal(update_of(reply), wanted(X[keep], Y[keep]))


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"forget-rows": [99]}, "this client has no row 99 to forget; its 6 rows have other keys"),
        ({"forget-rows": list(range(6))}, "nothing is left of this client's data"),
        ({"batch-size": 0}, "batch_size is 0; give 1 or more"),
    ],
)
def test_a_refusal_reaches_the_server_in_words(told, words):
    reply = app()(asked(**told), context())
    assert set(reply.content) == {"refusal"}
    assert words in said(reply)


def test_another_model_is_refused():
    sent = asked()
    sent.content["arrays"] = flower.fresh_arrays(nn.Linear(2, 4), 0)
    assert "array weight of shape [4, 2] instead of [3, 2]" in said(app()(sent, context()))
    del sent.content["arrays"]
    assert "brings no model" in said(app()(sent, context()))


def test_flowers_own_strategies_get_what_they_expect():
    """A model and a count, nothing else; and errors as errors."""
    reply = app()(message(**{"server-round": 3, "epochs": 1, "lr": 0.1, "batch-size": 2}), context())
    assert {key: type(value).__name__ for key, value in reply.content.items()} == {
        "arrays": "ArrayRecord",
        "metrics": "MetricRecord",
    }
    assert set(reply.content["arrays"]) == {"weight", "bias"}
    layout = Layout.of(flower.fresh_arrays(MODEL, 3))
    moved = layout.flatten(flower.fresh_arrays(MODEL, 3)) - layout.flatten(
        reply.content.array_records["arrays"]
    )
    assert moved.abs().max() > 0
    with pytest.raises(DataError):
        app((X[:0], Y[:0]))(message(), context())


def test_it_says_which_partition_it_holds():
    reply = app()(message("query.feduhb_who"), context(**{"partition-id": 2, "num-partitions": 7}))
    assert dict(reply.content["metrics"]) == {"partition-id": 2, "num-partitions": 7}


def test_it_scores_a_model_on_what_it_holds_out():
    own = flower.client_app(model=MODEL, data=lambda _: (X, Y), held_out=lambda _: (X[:2], Y[:2]))
    found = own(message("evaluate"), context()).content["metrics"]
    assert found["num-examples"] == 2
    module = nn.Linear(2, 3)
    weights = flower.fresh_arrays(MODEL, 3)
    module.load_state_dict({name: torch.from_numpy(a.numpy().copy()) for name, a in weights.items()})
    assert found["loss"] == pytest.approx(nn.functional.cross_entropy(module(X[:2]), Y[:2]).item())
    assert found["accuracy"] == pytest.approx((module(X[:2]).argmax(1) == Y[:2]).double().mean().item())
    assert app()(message("evaluate"), context()).content["metrics"]["num-examples"] == 6


def test_targets_that_are_no_labels_have_no_accuracy():
    own = flower.client_app(model=MODEL, data=lambda _: (X, torch.zeros(6, 3)), loss=nn.functional.mse_loss)
    assert set(own(message("evaluate"), context()).content["metrics"]) == {"num-examples", "loss"}


def test_data_is_loaded_once_where_there_is_a_cache(tmp_path):
    loaded = []

    def data(_):
        loaded.append(1)
        return X, Y, KEYS

    for _ in range(2):  # a process of its own for every message
        own = flower.client_app(model=MODEL, data=data, cache=tmp_path)
        assert torch.equal(update_of(own(asked(), context(**{"partition-id": 1}))), wanted(X, Y))
    assert len(loaded) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["partition-1"]


def test_rows_go_out_of_the_cache_and_stay_out(tmp_path):
    own = app((X, Y, KEYS), cache=tmp_path)
    own(asked(), context())
    own(asked(**{"forget-rows": [20, 30]}), context())
    assert load_file(tmp_path / "examples.safetensors")["keys"].tolist() == [10, 40, 50, 60]
    assert json.loads((tmp_path / "forgotten.json").read_text()) == [20, 30]
    keep = [0, 3, 4, 5]
    assert torch.equal(update_of(own(asked(), context())), wanted(X[keep], Y[keep]))
    again = own(asked(**{"forget-rows": [20, 30]}), context())  # every round of the unlearning says it
    assert torch.equal(update_of(again), wanted(X[keep], Y[keep]))


def test_rows_stay_forgotten_when_only_the_tensors_are_lost(tmp_path):
    own = app((X, Y, KEYS), cache=tmp_path)
    own(asked(**{"forget-rows": [20]}), context())
    (tmp_path / "examples.safetensors").unlink()
    keep = [0, 2, 3, 4, 5]
    assert torch.equal(update_of(own(asked(), context())), wanted(X[keep], Y[keep]))
    assert 20 not in load_file(tmp_path / "examples.safetensors")["keys"].tolist()


def test_forgotten_rows_never_reach_the_disk_again(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(
        client_cache, "_write_examples", lambda _, examples: written.append(examples.keys.tolist())
    )
    (tmp_path / "forgotten.json").write_text("[20]")
    app((X, Y, KEYS), cache=tmp_path)(asked(**{"forget-rows": [30]}), context())
    assert written == [[10, 40, 50, 60]]


def test_the_cache_is_for_its_owner_alone(tmp_path):
    place = tmp_path / "a" / "cache"
    app(cache=place)(asked(), context())
    assert place.stat().st_mode & 0o777 == 0o700


def test_leaving_deletes_what_a_crash_left_of_writing(tmp_path):
    place = tmp_path / "cache"
    own = app((X, Y, KEYS), cache=place)
    own(asked(), context())
    for name in ("examples.safetensors", "forgotten.json"):
        (place / f".{name}.tmp").write_bytes(b"patients")
    reply = own(message("query.feduhb_leave"), context())
    assert reply.content["metrics"]["deleted-files"] == 3
    assert not place.exists()


def test_told_to_leave_it_deletes_its_cache_and_what_the_user_adds(tmp_path):
    place, left = tmp_path / "cache", []
    own = app((X, Y, KEYS), cache=lambda _: place, on_leave=left.append)
    own(asked(**{"forget-rows": [20]}), context())
    assert {path.name for path in place.iterdir()} == {"examples.safetensors", "forgotten.json"}
    here = context()
    here.state["anything"] = ConfigRecord({"a": 1})
    reply = own(message("query.feduhb_leave"), here)
    assert reply.content["metrics"]["deleted-files"] == 2
    assert not place.exists()
    assert left == [here]
    assert not here.state
    assert own(message("query.feduhb_leave"), here).content["metrics"]["deleted-files"] == 0


def test_leaving_touches_no_file_of_others(tmp_path):
    (tmp_path / "patients.csv").write_text("mine")
    own = app(cache=tmp_path)
    own(asked(), context())
    own(message("query.feduhb_leave"), context())
    assert [path.name for path in tmp_path.iterdir()] == ["patients.csv"]


@pytest.mark.parametrize("name", ["examples.safetensors", "forgotten.json"])
def test_a_damaged_cache_is_told(name, tmp_path):
    own = app((X, Y, KEYS), cache=tmp_path)
    own(asked(**{"forget-rows": [20]}), context())
    (tmp_path / name).write_bytes(b"{")
    assert f"{name} is damaged" in said(own(asked(), context()))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (X, "a client's data function gives (x, y), or (x, y, keys)"),
        ((X,), "a client's data function gives (x, y), or (x, y, keys)"),
        ((X, Y, [1, 2]), "6 rows need as many keys, whole numbers, no two alike"),
        ((X, Y, [1, 1, 2, 3, 4, 5]), "6 rows need as many keys"),
        ((X, Y, [0.5] * 6), "6 rows need as many keys"),
        ((X, Y[:3]), "inputs do not match"),
    ],
)
def test_data_of_another_kind_is_refused(data, words):
    assert re.search(re.escape(words), said(app(data)(asked(), context())))


def test_examples_may_come_as_they_are():
    federation = feduhb.Federation({"me": (X, Y)}, (X, Y), MODEL, seed=3)
    held = ClientCache(lambda _: federation.without({"me": [0]}).clients["me"]).load(context())
    assert held.keys.tolist() == [1, 2, 3, 4, 5]


def test_a_model_that_cannot_be_held_to_a_seed_is_refused_by_its_layer():
    own = flower.client_app(model=nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5)), data=lambda _: (X, Y))
    assert "layer 1 (Dropout)" in said(own(asked(), context()))


def test_no_arrays_at_all():
    sent = asked()
    sent.content["arrays"] = ArrayRecord()
    assert "no array bias" in said(app()(sent, context()))
