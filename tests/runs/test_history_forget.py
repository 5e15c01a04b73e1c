"""forget: from the leaver's first round on nothing is left, and what came before stays."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import feduhb
from federations import ragged
from feduhb.errors import HistoryError
from feduhb.runs.history import DiskHistory
from runs.remembering import drawn, files, written
from toys import quick

W = torch.zeros(4)


@quick
@given(
    cast=st.lists(st.sets(st.sampled_from("abcd"), min_size=1), min_size=1, max_size=5),
    leavers=st.sets(st.sampled_from("abcdx"), min_size=1),
)
def test_what_stays_is_what_came_before_the_first_leaver(tmp_path_factory, cast, leavers):
    folder = tmp_path_factory.mktemp("history")
    history = written(folder, {t: [drawn(sorted(there))] for t, there in enumerate(cast)}, W)
    first = next((t for t, there in enumerate(cast) if there & leavers), len(cast))
    kept = {
        name: content for name, content in files(folder).items() if name < f"{first:05d}" or "/" not in name
    }
    before = history.bytes
    freed = history.forget(sorted(leavers))
    assert history.rounds == list(range(first))
    assert files(folder) == kept
    assert freed == before - history.bytes
    assert (freed > 0) == (first < len(cast))
    assert history.forget(sorted(leavers)) == 0
    assert files(folder) == kept


def test_incomplete_rounds_go_too(tmp_path):
    """Even when the leaver had no part in any complete one: nobody can say who is in a broken one."""
    history = written(tmp_path, {0: [drawn("ab")], 1: [drawn("ab")]}, W)
    history.begin(2, W)
    history.append(2, 0, drawn("xy"))
    assert history.forget(["x"]) > 0
    assert history.rounds == [0, 1]
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == ["00000", "00001"]


def test_leftovers_of_a_killed_write_go_too(tmp_path):
    history = written(tmp_path, {0: [drawn("ab")], 1: [drawn("xb")]}, W)
    (tmp_path / "00001" / ".block-00001.safetensors.tmp").write_bytes(b"the leaver's")
    (tmp_path / "00002").mkdir()
    (tmp_path / "00002" / ".params.safetensors.tmp").write_bytes(b"a model")
    history.forget(["x"])
    assert set(files(tmp_path)) == {
        "run.json",
        "00000/round.json",
        "00000/params.safetensors",
        "00000/block-00000.safetensors",
    }


@pytest.mark.parametrize("gone", ["params.safetensors", "block-00000.safetensors"])
def test_a_damaged_round_is_deleted_all_the_same(tmp_path, gone):
    history = written(tmp_path, {0: [drawn("ab")], 1: [drawn("xb")], 2: [drawn("xb")]}, W)
    (tmp_path / "00001" / gone).unlink()
    history.forget(["x"])
    assert history.rounds == [0]


def test_a_round_whose_marker_is_damaged_is_deleted_with_all_that_follow(tmp_path):
    """Nobody can say any more that the leaver was not in it, so an erasure must not stumble over it."""
    history = written(tmp_path, {t: [drawn("ab")] for t in range(4)}, W)
    (tmp_path / "00002" / "round.json").write_text("{")
    history.forget(["x"])
    assert history.rounds == [0, 1]
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == ["00000", "00001"]


def test_a_hole_is_taken_for_a_round_with_the_leaver(tmp_path):
    """Who was in a round without a marker is not known; later models follow from it by subtraction."""
    history = written(tmp_path, {t: [drawn("ab")] for t in range(4)}, W)
    (tmp_path / "00001" / "round.json").unlink()
    history.forget(["x"])
    assert history.rounds == [0]


def test_afterwards_its_rounds_are_refused_by_name(tmp_path):
    history = written(tmp_path, {0: [drawn("xb")], 1: [drawn("ab")]}, W)
    history.forget(["x"])
    with pytest.raises(HistoryError, match="or it was erased"):
        history.check("own", 4)
    with pytest.raises(HistoryError, match="no round 1"):
        history.params(1)


def test_with_sampling_the_rounds_before_a_leavers_first_are_kept(tmp_path):
    run = feduhb.train(
        ragged(), 6, epochs=1, batch_size=8, clients_per_round=2, out=tmp_path / "run", keep_history=True
    )
    history = run.history
    assert history is not None
    firsts = {c: t for t in reversed(range(6)) for c in run.rounds[t].asked}
    late, first = max(firsts.items(), key=lambda found: found[1])
    assert 0 < first < 5
    history.forget([late])
    assert history.rounds == list(range(first))
    assert [set(history.clients(t)) for t in range(first)] == [set(r.asked) for r in run.rounds[:first]]
    assert DiskHistory(tmp_path / "run" / "history").rounds == list(range(first))
