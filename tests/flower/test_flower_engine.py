"""The engine below the strategies: which clients it asks, in which order, and how many answers it needs."""

import pytest
import torch

import feduhb
from federations import ragged
from feduhb import flower
from feduhb.core.types import Work
from feduhb.data.request import Request
from feduhb.errors import AnswerError, RequestError
from feduhb.flower.roster import Forgotten
from flower.gridding import make_grid, make_key

LOCAL = feduhb.Local(batch_size=8, lr=0.05)
NAMES = ("ant", "bee", "cat", "dog", "elk")
FEDERATION = ragged()


def draw_start():
    return flower.fresh_arrays(FEDERATION.model, FEDERATION.seed)


def test_the_engine_yields_blocks_in_the_order_asked_and_records_missing_clients():
    grid = make_grid(FEDERATION)
    engine = flower.FlowerEngine(grid, draw_start(), LOCAL, seed=7, partitions=NAMES, timeout=5)
    params = engine.layout.flatten(draw_start())
    grid.seats[101].online = False
    blocks = list(engine.train(Work(params, 1), ["dog", "bee", "ant"], 3))
    assert [block.clients for block in blocks] == [("dog",), ("ant",)]
    assert engine.left_out == {3: {"bee": "it is not connected"}}
    wanted = list(feduhb.Loop(FEDERATION, LOCAL).train(Work(params, 1), ["dog", "ant"], 3))
    assert all(torch.equal(a.values, b.values) for a, b in zip(blocks, wanted, strict=True))
    assert engine.about["name"] == "flower"
    assert engine.about["precision"] == "float64"


def test_the_engine_refuses_to_ask_a_leaver():
    grid = make_grid(FEDERATION)
    engine = flower.FlowerEngine(grid, draw_start(), LOCAL, forget="bee", partitions=NAMES, timeout=5)
    params = engine.layout.flatten(draw_start())
    with pytest.raises(AnswerError, match="bee is forgotten and must not be asked"):
        list(engine.train(Work(params, 1), ["ant", "bee"], 0))
    assert grid.list_trained() == set()


def make_engine(grid, **more):
    return flower.FlowerEngine(grid, draw_start(), LOCAL, seed=7, partitions=NAMES, timeout=5, **more)


def test_asking_fewer_clients_than_needed_is_an_error():
    engine = make_engine(make_grid(FEDERATION), min_replies=3)
    work = Work(engine.layout.flatten(draw_start()), 1)
    with pytest.raises(
        AnswerError,
        match="2 of 2 clients sent a valid update in round 0, but 3 are needed: no others were asked",
    ):
        list(engine.train(work, ["ant", "bee"], 0))


def test_a_method_that_asks_one_client_needs_no_more():
    engine = make_engine(make_grid(FEDERATION), min_replies=3)
    work = Work(engine.layout.flatten(draw_start()), 1, ("bee",))
    assert [block.clients for block in engine.train(work, ["bee"], 0)] == [("bee",)]


@pytest.mark.parametrize(
    ("forget", "total"),
    [
        (None, None),
        ("bee", Request(("bee",))),
        (["bee", "cat"], Request(("bee", "cat"))),
        ({"dog": [3, 1]}, Request(rows={"dog": (1, 3)})),
        (Request(classes=(2,)), Request(classes=(2,))),
        (Forgotten(request=Request(("bee",)), earlier=Request(("cat",))), Request(("bee", "cat"))),
    ],
)
def test_the_engine_takes_a_request_in_any_form_and_resolves_it_once(forget, total):
    engine = make_engine(make_grid(FEDERATION), forget=forget)
    assert engine.forgotten.total == total
    gone = () if total is None else total.clients
    assert set(engine.clients()) == {*NAMES} - {*gone}


def test_a_name_is_resolved_to_its_key_and_barred_when_the_engine_is_made():
    grid = make_grid(FEDERATION, keyed=True)
    bee = flower.key_id(grid.seats[101].key)
    engine = flower.FlowerEngine(grid, draw_start(), LOCAL, forget="bee", timeout=5)
    assert engine.forgotten == Forgotten("bee", Request((bee,)), names=("bee",))
    grid.seats[101].key = make_key()
    assert set(engine.clients()) == {flower.key_id(grid.seats[n].key) for n in (100, 102, 103, 104)}
    with pytest.raises(RequestError, match="there is no client 'bea' to forget"):
        flower.FlowerEngine(grid, draw_start(), LOCAL, forget="bea", timeout=5)
