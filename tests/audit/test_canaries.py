"""Canaries: wrong labels on the leavers' examples alone, drawn from an address and not from a history."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import feduhb
from audit.auditing import draw_federation
from feduhb.data.canaries import Canaries, plant_canaries
from feduhb.data.federation import Examples
from feduhb.errors import ConfigError, RequestError
from toys import quick

SIZES = {"ant": 1, "bee": 6, "cat": 40, "dog": 9}


def same(one: Examples, other: Examples) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.all(), other.all(), strict=True))


@quick
@given(share=st.floats(0.01, 1.0), seed=st.integers(0, 5))
def test_a_share_of_labels_is_wrong_and_marked_and_nothing_else_changes(share: float, seed: int):
    before = draw_federation(SIZES, held=8, seed=seed)
    after = plant_canaries(before, Canaries(("bee", "cat"), share))
    for part in ("clients", "held_out"):
        for client, old in getattr(before, part).items():
            new = getattr(after, part)[client]
            if client not in ("bee", "cat"):
                assert new is old
                continue
            assert torch.equal(new.all()[0], old.all()[0])
            assert torch.equal(new.keys, old.keys)
            assert torch.equal(new.targets != old.targets, new.marked)
            assert len(new.canaries) == int(share * len(old) + 0.5)
            assert set(new.targets.tolist()) <= {0, 1, 2}
    assert after.test is before.test


def test_wrong_labels_are_uniform_over_the_wrong_ones():
    """10,000 canaries of label 1 among 5: each wrong label 2,500 times, 5 standard deviations are 217."""
    x = torch.zeros(10_000, 2)
    labels = torch.arange(5)
    crowd = feduhb.Federation(
        {"one": (x, torch.ones(10_000).long()), "all": (x[:5], labels)},
        (x[:5], labels),
        torch.nn.Linear(2, 5),
    )
    wrong = plant_canaries(crowd, Canaries(("one",), 1.0)).clients["one"].targets
    counts = torch.bincount(wrong, minlength=5).tolist()
    assert counts[1] == 0
    assert all(abs(count - 2500) < 217 for count in counts[:1] + counts[2:])


def test_rows_are_drawn_evenly():
    """Each of 8 rows is one of the 2 canaries for a quarter of 400 seeds, 100 times, give or take 5 x 8.7."""
    federation = draw_federation({"ant": 8, "bee": 8})
    hits = torch.zeros(8)
    for seed in range(400):
        marked = plant_canaries(federation.replace(seed=seed), Canaries(("ant",), 0.25)).clients["ant"].marked
        assert marked is not None
        hits += marked
    assert float((hits - 100).abs().max()) < 44


def test_another_clients_presence_changes_no_draw():
    many = draw_federation(SIZES, held=8)
    few = many.replace(
        clients={c: e for c, e in many.clients.items() if c != "dog"},
        held_out={c: e for c, e in many.held_out.items() if c != "dog"},
    )
    alone, both = (
        plant_canaries(many, Canaries(("cat",), 0.5)),
        plant_canaries(few, Canaries(("bee", "cat"), 0.5)),
    )
    assert same(alone.clients["cat"], both.clients["cat"])
    assert same(alone.held_out["cat"], both.held_out["cat"])


def test_twins_are_drawn_apart():
    x, y = torch.zeros(40, 2), torch.arange(40) % 3
    twins = feduhb.Federation({"a": (x, y), "b": (x, y)}, (x, y), torch.nn.Linear(2, 3))
    planted = plant_canaries(twins, Canaries(("a", "b"), 0.5)).clients
    assert not torch.equal(planted["a"].canaries.keys, planted["b"].canaries.keys)


def test_training_and_held_out_parts_are_drawn_apart():
    x, y = torch.zeros(40, 2), torch.arange(40) % 3
    twin = feduhb.Federation({"a": (x, y)}, (x, y), torch.nn.Linear(2, 3), held_out={"a": (x, y)})
    planted = plant_canaries(twin, Canaries(("a",), 0.5))
    assert not torch.equal(planted.clients["a"].targets, planted.held_out["a"].targets)


def test_backdoored_rows_are_left_alone():
    federation = feduhb.load("digits", clients=4, per_client=80, backdoor=feduhb.Backdoor(("c00",), size=2))
    planted = plant_canaries(federation, Canaries(("c00",), 1.0))
    backdoor = federation.backdoor
    assert backdoor is not None
    for old, new in (
        (federation.clients["c00"], planted.clients["c00"]),
        (federation.held_out["c00"], planted.held_out["c00"]),
    ):
        carries = backdoor.detect(old.all()[0])
        assert 0 < int(carries.sum()) < len(old)
        assert torch.equal(new.targets[carries], old.targets[carries])
        assert new.marked is not None
        assert torch.equal(new.marked, ~carries)


def test_among_a_request_only_its_rows_get_canaries():
    federation = draw_federation(SIZES, held=8)
    rows = (3, 5, 20, 21, 22, 39)
    planted = plant_canaries(federation, Canaries(("cat",), 0.5), among={"cat": rows})
    found = planted.clients["cat"].canaries
    assert len(found) == 3
    assert set(found.keys.tolist()) <= set(rows)
    assert len(planted.held_out["cat"].canaries) == 4


def test_marks_and_keys_survive_forgetting_others():
    planted = plant_canaries(draw_federation(SIZES, held=8), Canaries(("cat",), 0.5))
    before = planted.clients["cat"]
    gone = before.canaries.keys[:2].tolist()
    after = planted.without({"cat": [*gone, 1], "bee": [0]}).clients["cat"]
    assert set(after.canaries.keys.tolist()) == set(before.canaries.keys.tolist()) - {*gone, 1}
    forgotten = planted.forgotten({"cat": gone})["cat"]
    assert forgotten.canaries.keys.tolist() == forgotten.keys.tolist() == sorted(gone)


def test_none_where_none_were_planted():
    examples = draw_federation(SIZES).clients["cat"]
    assert len(examples.canaries) == 0
    assert len(examples) == 40


def test_load_plants_and_the_config_records_it(tmp_path):
    federation = feduhb.load("digits", clients=4, per_client=40, canaries=["c01"], model="softmax")
    assert len(federation.clients["c01"].canaries) == 8  # a quarter of the 30 that are trained on
    run = feduhb.train(federation, 1, epochs=1, out=tmp_path / "run", show=None)
    opened = feduhb.open_run(tmp_path / "run")
    marks = [each.clients["c01"].canaries.keys.tolist() for each in (opened.federation, federation)]
    assert marks[0] == marks[1]
    assert opened.federation.fingerprints() == run.federation.fingerprints()


@pytest.mark.parametrize("method", ["feduhb", "retrain"])
@pytest.mark.parametrize("forget", [["cat"], {"cat": range(30)}])
def test_exact_methods_do_not_feel_canaries_in_what_they_forget(method, forget):
    federation = draw_federation(SIZES, held=8)
    planted = plant_canaries(federation, Canaries(("cat",), 0.5), among=forget)
    assert planted.fingerprints() != federation.fingerprints()
    params = [
        feduhb.unlearn(
            feduhb.train(each, 2, epochs=1, show=None), forget, method=method, rounds=3, show=None
        ).params
        for each in (federation, planted)
    ]
    assert torch.equal(*params)


@pytest.mark.parametrize(
    ("canaries", "words"),
    [
        (lambda: Canaries(()), "need clients that carry them"),
        (lambda: Canaries(("a",), 0.0), r"share is 0\.0; give a share"),
        (lambda: Canaries(("a",), 1.5), r"share is 1\.5; give a share"),
    ],
)
def test_refused_settings(canaries, words):
    with pytest.raises(ConfigError, match=words):
        canaries()


def test_a_stranger_is_refused():
    with pytest.raises(RequestError, match="'zoe', which is not in this federation of 4"):
        plant_canaries(draw_federation(SIZES), Canaries(("ant", "zoe")))


def test_targets_that_are_not_labels_are_refused():
    x = torch.zeros(4, 2)
    numbers = feduhb.Federation({"a": (x, x[:, 0])}, (x, x[:, 0]), torch.nn.Linear(2, 1))
    with pytest.raises(ConfigError, match="these targets are not labels; train without canaries"):
        plant_canaries(numbers, Canaries(("a",)))


def test_a_single_label_is_refused():
    x, y = torch.zeros(4, 2), torch.full((4,), 2)
    with pytest.raises(ConfigError, match="canaries need two labels, but all are 2"):
        plant_canaries(feduhb.Federation({"a": (x, y)}, (x, y), torch.nn.Linear(2, 3)), Canaries(("a",)))


def test_a_label_that_only_held_out_data_has_is_never_its_own_wrong_one():
    x = torch.zeros(30, 2)
    y = torch.arange(30) % 3
    odd = feduhb.Federation(
        {"a": (x, y)}, (x, y), torch.nn.Linear(2, 6), held_out={"a": (x, torch.full((30,), 5))}
    )
    assert set(plant_canaries(odd, Canaries(("a",), 1.0)).held_out["a"].targets.tolist()) == {0, 1, 2}
