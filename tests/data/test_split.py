"""Splits of rows: by a hash of each row alone."""

from __future__ import annotations

import torch

from feduhb.data.split import Shared, number_rows, split_rows


def split(owners: list[int], seed: int = 1, keys: list[int] | None = None) -> list[dict[str, list[int]]]:
    """Return the keys of each client in each part."""
    who = torch.tensor(owners)
    names = [f"c{place}" for place in range(max(owners) + 1)]
    own = number_rows(who, len(names)) if keys is None else torch.tensor(keys)
    rows = Shared(
        "the data", torch.zeros(len(who), 1), torch.zeros(len(who)), who, names, own, has_names=True
    )
    found = split_rows(rows, seed=seed, test=0.2, held_out=0.25)
    return [{client: examples.keys.tolist() for client, examples in part.items()} for part in found]


def test_rows_are_counted_by_client():
    assert number_rows(torch.tensor([1, 0, 1, 1, 0]), 3).tolist() == [0, 0, 1, 2, 1]


def test_a_row_keeps_its_part_when_rows_are_added():
    short, long = split([0] * 40), split([0] * 90)
    for one, other in zip(short, long, strict=True):
        assert one["c0"] == [key for key in other["c0"] if key < 40]
    assert sorted(key for part in long for key in part["c0"]) == list(range(90))
    assert split([0] * 40, seed=2) != short


def test_another_client_changes_nothing():
    alone, beside = split([0] * 40), split([0, 1, 1] * 40)
    assert [part["c0"] for part in alone] == [part["c0"] for part in beside]
    assert beside[0]["c1"] != beside[0]["c0"]


def test_shares_are_about_as_asked():
    trained, held, tested = (len(part["c0"]) for part in split([0] * 4000))
    assert abs(tested - 800) < 4 * (4000 * 0.2 * 0.8) ** 0.5
    assert abs(held - 800) < 4 * (4000 * 0.2 * 0.8) ** 0.5
    assert trained + held + tested == 4000


def test_a_client_without_training_rows_is_named(capsys):
    chosen = next(key for key in range(100) if "c1" not in split([0] * 30 + [1], keys=[*range(30), key])[0])
    capsys.readouterr()
    found = split([0] * 30 + [1], keys=[*range(30), chosen])
    assert "client c1 takes no part in training" in capsys.readouterr().err
    assert "c1" not in found[1]
