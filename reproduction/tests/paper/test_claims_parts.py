"""How verdicts are summed up, and evidence is read."""

from __future__ import annotations

import pytest

from feduhb.errors import RunFolderError
from feduhb_reproduction.claims.parts import (
    CONDITIONS,
    FAILS,
    HOLDS,
    NUMBER,
    UNKNOWN,
    Seen,
    conclude,
    find_quantile,
    format_brief,
    group_names,
    is_clear,
    judge_federations,
    name_federations,
    read_evidence,
    weigh_all,
)
from feduhb_reproduction.federations import group_cells
from feduhb_reproduction.measures import Spread
from paper.judging import federation


def test_clearly_is_students_quantile():
    """Five seeds whose mean is 2.5 standard errors from 0: more than 2, and not enough."""
    close = Spread((2.5 - 5**0.5, 2.5 + 5**0.5, 2.5 - 5**0.5, 2.5 + 5**0.5, 2.5))
    assert close.mean == pytest.approx(2.5 * (close.sd or 0.0) / 5**0.5)
    assert not is_clear(close)
    assert is_clear(Spread(tuple(value + 0.3 for value in close.values)))
    assert [find_quantile(n) for n in (1, 2, 3, 5, 11, 99)] == [12.706, 12.706, 4.303, 2.776, 2.228, 2.228]


def test_clearly_above_zero():
    assert is_clear(Spread((0.01,)))
    assert not is_clear(Spread(()))
    assert not is_clear(Spread((-0.01,)))
    assert is_clear(Spread((1.0, 1.2, 0.8)))
    assert not is_clear(Spread((1.0, -0.8, 0.3)))


def test_conclusions():
    yes, no, partly = Seen(True, ""), Seen(False, ""), Seen(None, "", "a little")
    assert conclude({"a": yes, "b": yes}) == (HOLDS, "")
    assert conclude({"a": no}) == (FAILS, "")
    assert conclude({"a": yes, "b": partly, "c": no}) == (CONDITIONS, "for a; for b: a little; not for c")
    assert conclude({"a": partly, "b": partly}) == (CONDITIONS, "a little")
    assert weigh_all({"x": True, "y": False}, "1 / 2") == Seen(None, "1 / 2", "against x only")
    assert judge_federations({}, lambda _: yes, "Nothing", ("",)).verdict == UNKNOWN


def test_briefs_are_ranges_over_federations():
    brief = ("{} rounds, {}", ".1f", ".0%")
    seen = [Seen(True, "", values=values) for values in ((3.0, 0.5), (1.0, None), (2.0, 0.5))]
    assert format_brief(brief, seen) == "1.0 to 3.0 rounds, 50%"
    assert format_brief(brief, [Seen(True, "", values=(2.0, None))]) == "2.0 rounds, nothing"
    assert format_brief(brief, [Seen(False, "broke off")] * 2) == "broke off"
    assert (
        format_brief(("{} s", NUMBER), [Seen(True, "", values=(1234.5,)), Seen(True, "", values=(2.0,))])
        == "2.00 to 1,234 s"
    )


def test_sizes_of_a_partition_are_listed_together():
    names = ["iid (525)", "Dirichlet 0.1 (525)", "iid (3000)", "CIFAR-10 iid"]
    assert group_names(names) == "iid (525 and 3000), Dirichlet 0.1 (525) and CIFAR-10 iid"


def test_federations_are_named_as_shortly_as_can_be():
    cells = [*federation({}), *federation({}, partition="dirichlet:0.1")]
    assert list(name_federations(group_cells(cells))) == ["iid", "Dirichlet 0.1"]
    assert list(name_federations(group_cells(cells), "cifar10")) == ["CIFAR-10 iid", "CIFAR-10 Dirichlet 0.1"]
    sizes = group_cells([*cells, *federation({}, per_client=None, partition="shards:2")])
    assert list(name_federations(sizes)) == ["iid (525)", "Dirichlet 0.1 (525)", "2 classes a client (all)"]
    planted = group_cells(federation({}, backdoor=True), backdoor=True)
    assert list(name_federations([*group_cells(cells), *planted]))[-1] == "iid (backdoor)"


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
