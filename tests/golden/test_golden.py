"""Everything that the matrix pins is as it was at the commit of ``golden.json``.

After a change of behaviour that is meant, make the file again and look at its difference, one line a case:

    PYTHONPATH=src:tests python -m golden.matrix tests/golden/golden.json
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from golden.masking import list_differences, mask
from golden.matrix import compute_matrix, describe_bits, digest_cases, list_changed_bits, make_place

GOLDEN = json.loads(Path(__file__).with_name("golden.json").read_text())
ELSEWHERE = json.loads(
    Path(__file__).with_name("bits.json").read_text()
)  # on other processors than that of GOLDEN
SHOWN = 8  # differences that a failure lists


@pytest.fixture(scope="module")
def found():
    """The matrix of the code as it is."""
    with make_place() as place:
        return compute_matrix(place)


@pytest.mark.slow
@pytest.mark.parametrize("name", GOLDEN["cases"])
def test_a_case_is_as_it_was(name, found):
    assert name in found["cases"], "the matrix has no such case any more"
    changed = list_changed_bits(GOLDEN["header"], found["header"])
    lines = list_differences(GOLDEN["cases"][name], found["cases"][name], exact=not changed)
    assert not lines, f"{len(lines)} differences:\n" + "\n".join(lines[:SHOWN])
    if not changed:
        return
    bits = digest_cases(GOLDEN["cases"], {name: found["cases"][name]})[name]
    known = ELSEWHERE.get(describe_bits(found["header"]), {}).get(name, "")
    if known.split()[:1] == bits.split()[:1]:
        assert bits == known, "other weights or floats than before on such a processor"
    else:
        pytest.skip(f"all but weights and floats is the same; those were not compared: {'; '.join(changed)}")


def test_a_difference_names_its_key():
    old = {"weights": "a" * 64, "rounds": [{"moved": 0.5, "asked": "c00"}], "exact": True, "gone": 1}
    new = {"weights": "b" * 64, "rounds": [{"moved": 0.6, "asked": "c01", "more": 1}], "exact": 1}
    inexact = ["rounds[0].asked: 'c00' became 'c01'", "exact: True became 1", "gone: 1 is missing"]
    assert list_differences(old, new, exact=False) == inexact
    assert [line.partition(":")[0] for line in list_differences(old, new)] == [
        "weights",
        "rounds[0].moved",
        "rounds[0].asked",
        "exact",
        "gone",
    ]
    assert list_differences([1, 2], [1]) == [": [1, 2] became [1]"]


def test_prose_clocks_machines_and_paths_are_masked_and_the_rest_is_kept(tmp_path):
    answer = {
        "run": str(tmp_path / "first"),
        "written": [str(tmp_path / "table.md")],
        "stopped": "all 3 scheduled rounds were run",
        "failed": 2,
        "client_seconds": 0.25,
        "made_by": "loop, cpu, float32, torch 2.13.0",
        "versions": {"torch": "2.13.0"},
        "config": "0" * 64,
        "weights_sha256": "0" * 64,
        "test_loss": 1.00000000049,
        "on": "canaries, in a rehearsal",
        "label": "a sentence of five words",
    }
    assert mask(answer) == {
        "run": "first",
        "written": {"table.md": True},
        "stopped": "(text)",
        "failed": 2,
        "client_seconds": "(time)",
        "made_by": "loop, cpu, float32",
        "versions": {"torch": "(machine)"},
        "config": "(digest of a config)",
        "weights_sha256": "0" * 64,
        "test_loss": 1.0,
        "on": "canaries, in a rehearsal",
        "label": "(text)",
    }
