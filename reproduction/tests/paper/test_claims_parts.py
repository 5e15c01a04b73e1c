"""How verdicts are summed up, and evidence is read."""

from __future__ import annotations

import pytest

from feduhb.errors import RunFolderError
from feduhb_reproduction.report.claims_parts import (
    CONDITIONS,
    FAILS,
    HOLDS,
    NUMBER,
    UNKNOWN,
    Seen,
    clear,
    concluded,
    everywhere,
    grouped,
    named,
    quantile,
    ranged,
    read_evidence,
    several,
)
from feduhb_reproduction.report.federations import federations
from feduhb_reproduction.report.measures import Spread
from paper.judging import federation


def test_clearly_is_students_quantile():
    """Five seeds whose mean is 2.5 standard errors from 0: more than 2, and not enough."""
    close = Spread((2.5 - 5**0.5, 2.5 + 5**0.5, 2.5 - 5**0.5, 2.5 + 5**0.5, 2.5))
    assert close.mean == pytest.approx(2.5 * (close.sd or 0.0) / 5**0.5)
    assert not clear(close)
    assert clear(Spread(tuple(value + 0.3 for value in close.values)))
    assert [quantile(n) for n in (1, 2, 3, 5, 11, 99)] == [12.706, 12.706, 4.303, 2.776, 2.228, 2.228]


def test_clearly_above_zero():
    assert clear(Spread((0.01,)))
    assert not clear(Spread(()))
    assert not clear(Spread((-0.01,)))
    assert clear(Spread((1.0, 1.2, 0.8)))
    assert not clear(Spread((1.0, -0.8, 0.3)))


def test_conclusions():
    yes, no, partly = Seen(True, ""), Seen(False, ""), Seen(None, "", "a little")
    assert concluded({"a": yes, "b": yes}) == (HOLDS, "")
    assert concluded({"a": no}) == (FAILS, "")
    assert concluded({"a": yes, "b": partly, "c": no}) == (CONDITIONS, "for a; for b: a little; not for c")
    assert concluded({"a": partly, "b": partly}) == (CONDITIONS, "a little")
    assert several({"x": True, "y": False}, "1 / 2") == Seen(None, "1 / 2", "against x only")
    assert everywhere({}, lambda _: yes, "Nothing", ("",)).verdict == UNKNOWN


def test_briefs_are_ranges_over_federations():
    brief = ("{} rounds, {}", ".1f", ".0%")
    seen = [Seen(True, "", values=values) for values in ((3.0, 0.5), (1.0, None), (2.0, 0.5))]
    assert ranged(brief, seen) == "1.0 to 3.0 rounds, 50%"
    assert ranged(brief, [Seen(True, "", values=(2.0, None))]) == "2.0 rounds, nothing"
    assert ranged(brief, [Seen(False, "broke off")] * 2) == "broke off"
    assert (
        ranged(("{} s", NUMBER), [Seen(True, "", values=(1234.5,)), Seen(True, "", values=(2.0,))])
        == "2.00 to 1,234 s"
    )


def test_sizes_of_a_partition_are_listed_together():
    names = ["iid (525)", "Dirichlet 0.1 (525)", "iid (3000)", "CIFAR-10 iid"]
    assert grouped(names) == "iid (525 and 3000), Dirichlet 0.1 (525) and CIFAR-10 iid"


def test_federations_are_named_as_shortly_as_can_be():
    cells = [*federation({}), *federation({}, partition="dirichlet:0.1")]
    assert list(named(federations(cells))) == ["iid", "Dirichlet 0.1"]
    assert list(named(federations(cells), "cifar10")) == ["CIFAR-10 iid", "CIFAR-10 Dirichlet 0.1"]
    sizes = federations([*cells, *federation({}, per_client=None, partition="shards:2")])
    assert list(named(sizes)) == ["iid (525)", "Dirichlet 0.1 (525)", "2 classes a client (all)"]
    planted = federations(federation({}, backdoor=True), backdoor=True)
    assert list(named([*federations(cells), *planted]))[-1] == "iid (backdoor)"


def test_no_results_are_refused_in_words(tmp_path):
    with pytest.raises(RunFolderError, match="holds no cells; make some with feduhb reproduce mnist --out"):
        read_evidence(tmp_path)


def test_evidence_is_read_from_results(tmp_path):
    for one in federation({}):
        one.write(tmp_path / "paper" / "mnist" / "cells")
    found = read_evidence(tmp_path)
    assert {data: len(cells) for data, cells in found.cells.items()} == {"mnist": 3, "cifar10": 0}
    assert found.theorem is None
    assert not found.audits
