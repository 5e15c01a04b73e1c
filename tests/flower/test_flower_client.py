"""The client's side: its data, its own keys, its cache, and its answers to other servers."""

import itertools
import json
import re

import pandas
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from safetensors.torch import load_file, save_file
from torch import nn

import feduhb
from feduhb import flower
from feduhb.core.types import Work
from feduhb.errors import DataError
from feduhb.flower import client
from feduhb.flower.client import ClientCache, to_examples
from feduhb.flower.wire import Layout

X = torch.arange(12.0).reshape(6, 2)
Y = torch.tensor([0, 1, 2, 0, 1, 2])
KEYS = [10, 20, 30, 40, 50, 60]
MODEL = nn.Linear(2, 3)
NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def somebody():
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


def make_context(**config):
    return Context(run_id=1, node_id=5, node_config=config, state=RecordDict(), run_config={})


def make_message(kind="train", **config):
    content = RecordDict({"arrays": flower.fresh_arrays(MODEL, 3)})
    if config:
        content["config"] = ConfigRecord(config)
    made = Message(content, 5, kind)
    made.metadata.__dict__["_message_id"] = f"m{next(NUMBERS)}"
    return made


def make_work(**more):
    return make_message(
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


def make_app(data=(X, Y), **options):
    return flower.client_app(model=MODEL, data=lambda _: data, **options)


def read_refusal(reply) -> str:
    return str(reply.content["refusal"]["why"])


def read_update(reply):
    return Layout.of(flower.fresh_arrays(MODEL, 3)).flatten(reply.content["update"])


def compute_update(x, y, epochs=2):
    examples = feduhb.Federation({"me": (x, y)}, (x, y), MODEL, seed=3)
    params = torch.cat([p.detach().flatten() for p in examples.fresh_model().parameters()])
    local = feduhb.Local(batch_size=2, lr=0.1, l2=0.01)
    (block,) = feduhb.Loop(examples, local).train(Work(params, epochs), ["me"], 2)
    return block.values[0]


@pytest.mark.parametrize("epochs", [0, 1, 2])
def test_it_trains_as_the_reference_engine_does(epochs):
    reply = make_app()(make_work(epochs=epochs), make_context())
    assert torch.equal(read_update(reply), compute_update(X, Y, epochs=epochs))
    assert reply.content["metrics"]["num-examples"] == 6


def test_it_trains_with_the_threads_it_is_given():
    reply = make_app(threads=2)(make_work(), make_context())
    torch.testing.assert_close(read_update(reply), compute_update(X, Y))
    assert "the loop has 0 threads" in read_refusal(make_app(threads=0)(make_work(), make_context()))


def test_rows_go_by_their_positions():
    reply = make_app()(make_work(**{"forget-rows": [0, 4]}), make_context())
    keep = [1, 2, 3, 5]
    assert torch.equal(read_update(reply), compute_update(X[keep], Y[keep]))
    assert reply.content["metrics"]["num-examples"] == 4


def test_rows_go_by_the_clients_own_keys_where_it_has_some():
    reply = make_app((X, Y, KEYS))(make_work(**{"forget-rows": [10, 50]}), make_context())
    keep = [1, 2, 3, 5]
    assert torch.equal(read_update(reply), compute_update(X[keep], Y[keep]))


def test_a_class_goes_whole():
    reply = make_app()(make_work(**{"forget-classes": [1]}), make_context())
    keep = [0, 2, 3, 5]
    assert torch.equal(read_update(reply), compute_update(X[keep], Y[keep]))


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"forget-rows": [99]}, "this client has no row 99 to forget; its 6 rows have other keys"),
        ({"forget-rows": list(range(6))}, "no example of this client remains"),
        ({"batch-size": 0}, "batch_size is 0; give 1 or more"),
    ],
)
def test_a_refusal_holds_the_reason(told, words):
    reply = make_app()(make_work(**told), make_context())
    assert set(reply.content) == {"refusal"}
    assert words in read_refusal(reply)


def test_another_model_is_refused():
    sent = make_work()
    sent.content["arrays"] = flower.fresh_arrays(nn.Linear(2, 4), 0)
    assert "array weight of shape [4, 2] instead of [3, 2]" in read_refusal(make_app()(sent, make_context()))
    del sent.content["arrays"]
    assert "holds no model" in read_refusal(make_app()(sent, make_context()))


def test_flowers_own_strategies_get_what_they_expect():
    """They get a model and a count, and errors as errors."""
    reply = make_app()(
        make_message(**{"server-round": 3, "epochs": 1, "lr": 0.1, "batch-size": 2}), make_context()
    )
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
        make_app((X[:0], Y[:0]))(make_message(), make_context())


def test_it_answers_which_partition_it_holds():
    reply = make_app()(
        make_message("query.feduhb_who"), make_context(**{"partition-id": 2, "num-partitions": 7})
    )
    assert dict(reply.content["metrics"]) == {"partition-id": 2, "num-partitions": 7}


def test_it_scores_a_model_on_what_it_holds_out():
    own = flower.client_app(model=MODEL, data=lambda _: (X, Y), held_out=lambda _: (X[:2], Y[:2]))
    found = own(make_message("evaluate"), make_context()).content["metrics"]
    assert found["num-examples"] == 2
    module = nn.Linear(2, 3)
    weights = flower.fresh_arrays(MODEL, 3)
    module.load_state_dict({name: torch.from_numpy(a.numpy().copy()) for name, a in weights.items()})
    assert found["loss"] == pytest.approx(nn.functional.cross_entropy(module(X[:2]), Y[:2]).item())
    assert found["accuracy"] == pytest.approx((module(X[:2]).argmax(1) == Y[:2]).double().mean().item())
    assert make_app()(make_message("evaluate"), make_context()).content["metrics"]["num-examples"] == 6


def test_targets_that_are_not_labels_have_no_accuracy():
    own = flower.client_app(model=MODEL, data=lambda _: (X, torch.zeros(6, 3)), loss=nn.functional.mse_loss)
    assert set(own(make_message("evaluate"), make_context()).content["metrics"]) == {"num-examples", "loss"}


def test_data_is_loaded_once_where_there_is_a_cache(tmp_path):
    loaded = []

    def data(_):
        loaded.append(1)
        return X, Y, KEYS

    for _ in range(2):  # a process of its own for every message
        own = flower.client_app(model=MODEL, data=data, cache=tmp_path)
        assert torch.equal(
            read_update(own(make_work(), make_context(**{"partition-id": 1}))), compute_update(X, Y)
        )
    assert len(loaded) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["partition-1"]


def test_rows_go_out_of_the_cache_and_stay_out(tmp_path):
    own = make_app((X, Y, KEYS), cache=tmp_path)
    own(make_work(), make_context())
    own(make_work(**{"forget-rows": [20, 30]}), make_context())
    assert load_file(tmp_path / "examples.safetensors")["keys"].tolist() == [10, 40, 50, 60]
    assert json.loads((tmp_path / "forgotten.json").read_text()) == [20, 30]
    keep = [0, 3, 4, 5]
    assert torch.equal(read_update(own(make_work(), make_context())), compute_update(X[keep], Y[keep]))
    again = own(
        make_work(**{"forget-rows": [20, 30]}), make_context()
    )  # every round of the unlearning names them
    assert torch.equal(read_update(again), compute_update(X[keep], Y[keep]))


class Two(nn.Module):
    """Adds the outputs for two inputs."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 3), nn.Linear(1, 3)

    def forward(self, a, b):
        """Return the sum."""
        return self.first(a) + self.second(b)


@pytest.mark.parametrize(
    "inputs", [(X, X[:, :1] + 1), {"b": X[:, :1] + 1, "a": X}], ids=["a tuple", "a dict in its own order"]
)
def test_several_inputs_come_out_of_the_cache_as_they_went_in(inputs, tmp_path):
    own = flower.client_app(model=Two(), data=lambda _: (inputs, Y, KEYS), cache=tmp_path)
    first = flower.client_app(model=Two(), data=lambda _: (inputs, Y, KEYS))
    sent = make_work(**{"forget-rows": [20]})
    sent.content["arrays"] = flower.fresh_arrays(Two(), 3)
    layout = Layout.of(sent.content.array_records["arrays"])
    found = [
        layout.flatten(app(sent, make_context()).content.array_records["update"]) for app in (first, own, own)
    ]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    kept = ClientCache(lambda _: None, tmp_path).load(make_context())
    assert type(kept.x) is type(inputs)
    assert kept.keys.tolist() == [10, 30, 40, 50, 60]
    if isinstance(inputs, dict):
        assert list(kept.x) == list(inputs)
        assert torch.equal(kept.x["a"], X[[0, 2, 3, 4, 5]])


def test_a_cache_of_an_earlier_version_is_read(tmp_path):
    held = {"x": X, "y": Y, "keys": torch.tensor(KEYS)}
    save_file(held, tmp_path / "examples.safetensors")
    assert torch.equal(
        read_update(make_app(None, cache=tmp_path)(make_work(), make_context())), compute_update(X, Y)
    )
    save_file({f"x.{name}": value for name, value in held.items()}, tmp_path / "examples.safetensors")
    assert "is damaged" in read_refusal(make_app(cache=tmp_path)(make_work(), make_context()))


def test_rows_stay_forgotten_when_only_the_tensors_are_lost(tmp_path):
    own = make_app((X, Y, KEYS), cache=tmp_path)
    own(make_work(**{"forget-rows": [20]}), make_context())
    (tmp_path / "examples.safetensors").unlink()
    keep = [0, 2, 3, 4, 5]
    assert torch.equal(read_update(own(make_work(), make_context())), compute_update(X[keep], Y[keep]))
    assert 20 not in load_file(tmp_path / "examples.safetensors")["keys"].tolist()


def test_forgotten_rows_never_reach_the_disk_again(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(client, "_write_examples", lambda _, examples: written.append(examples.keys.tolist()))
    (tmp_path / "forgotten.json").write_text("[20]")
    make_app((X, Y, KEYS), cache=tmp_path)(make_work(**{"forget-rows": [30]}), make_context())
    assert written == [[10, 40, 50, 60]]


def test_the_cache_is_for_its_owner_alone(tmp_path):
    place = tmp_path / "a" / "cache"
    make_app(cache=place)(make_work(), make_context())
    assert place.stat().st_mode & 0o777 == 0o700


def test_leaving_deletes_what_a_crash_left_of_writing(tmp_path):
    place = tmp_path / "cache"
    own = make_app((X, Y, KEYS), cache=place)
    own(make_work(), make_context())
    for name in ("examples.safetensors", "forgotten.json"):
        (place / f".{name}.tmp").write_bytes(b"patients")
    reply = own(make_message("query.feduhb_leave"), make_context())
    assert reply.content["metrics"]["deleted-files"] == 3
    assert not place.exists()


def test_leaving_deletes_the_cache_and_calls_on_leave(tmp_path):
    place, left = tmp_path / "cache", []
    own = make_app((X, Y, KEYS), cache=lambda _: place, on_leave=left.append)
    own(make_work(**{"forget-rows": [20]}), make_context())
    assert {path.name for path in place.iterdir()} == {"examples.safetensors", "forgotten.json"}
    here = make_context()
    here.state["anything"] = ConfigRecord({"a": 1})
    reply = own(make_message("query.feduhb_leave"), here)
    assert reply.content["metrics"]["deleted-files"] == 2
    assert not place.exists()
    assert left == [here]
    assert not here.state
    assert own(make_message("query.feduhb_leave"), here).content["metrics"]["deleted-files"] == 0


def test_leaving_touches_no_file_of_others(tmp_path):
    (tmp_path / "patients.csv").write_text("mine")
    own = make_app(cache=tmp_path)
    own(make_work(), make_context())
    own(make_message("query.feduhb_leave"), make_context())
    assert [path.name for path in tmp_path.iterdir()] == ["patients.csv"]


@pytest.mark.parametrize("name", ["examples.safetensors", "forgotten.json"])
def test_a_damaged_cache_is_refused(name, tmp_path):
    own = make_app((X, Y, KEYS), cache=tmp_path)
    own(make_work(**{"forget-rows": [20]}), make_context())
    (tmp_path / name).write_bytes(b"{")
    assert f"{name} is damaged" in read_refusal(own(make_work(), make_context()))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (X, "a client's data function must return (x, y), or (x, y, keys)"),
        ((X,), "a client's data function must return (x, y), or (x, y, keys)"),
        (
            (X, Y, [1, 2]),
            "the keys of 6 rows are [2] torch.int64; return a different whole number for each row",
        ),
        ((X, Y, [1, 1, 2, 3, 4, 5]), "the keys of 6 rows are"),
        ((X, Y, [0.5] * 6), "the keys of 6 rows are"),
        ((X, Y[:3]), "inputs do not match"),
    ],
)
def test_data_of_another_kind_is_refused(data, words):
    assert re.search(re.escape(words), read_refusal(make_app(data)(make_work(), make_context())))


def test_examples_may_come_as_they_are():
    federation = feduhb.Federation({"me": (X, Y)}, (X, Y), MODEL, seed=3)
    held = ClientCache(lambda _: federation.without({"me": [0]}).clients["me"]).load(make_context())
    assert held.keys.tolist() == [1, 2, 3, 4, 5]


def test_a_model_that_cannot_be_held_to_a_seed_is_refused_by_its_layer():
    own = flower.client_app(model=nn.Sequential(nn.Linear(2, 3), nn.RReLU()), data=lambda _: (X, Y))
    assert "layer 1 (RReLU)" in read_refusal(own(make_work(), make_context()))


def test_no_arrays_at_all():
    sent = make_work()
    sent.content["arrays"] = ArrayRecord()
    assert "no array bias" in read_refusal(make_app()(sent, make_context()))


def test_a_client_may_hold_pandas_objects():
    frame = pandas.DataFrame({"a": [0.5, 1.5], "b": [1.0, 2.0]})
    found = to_examples((frame, pandas.Series([0, 1])))
    assert found.x.dtype == torch.float32
    assert found.targets.tolist() == [0, 1]
