from __future__ import annotations

from pathlib import Path

import pytest

from feduhb.errors import RunFolderError
from feduhb.report.runs import read_runs, retrain_of
from feduhb.runs.folder import RunFolder
from report.folders import CONFIG, series, write


def test_a_view_tells_the_folder(views):
    original, uhb, retrain = views
    assert [view.label for view in views] == ["original", "FedUHB", "Retrain"]
    assert [view.role for view in views] == ["original", "feduhb", "retrain"]
    assert not original.unlearned
    assert original.forget is None
    assert uhb.forget == "c00,c01"
    assert uhb.fired == len(uhb.rounds) < 12
    assert retrain.fired is None
    assert uhb.judged
    assert not retrain.judged


def test_a_view_has_the_series(views):
    retrain = views[2]
    assert retrain.accuracy == [r.scores["test_accuracy"] for r in retrain.rounds]
    assert retrain.scored("test_loss") == [r.scores["test_loss"] for r in retrain.rounds]
    assert retrain.scored("backdoor") == [0.01] * 8
    assert retrain.moved == [4 * 0.5 ** (t + 1) for t in range(8)]
    assert retrain.threshold == [None] * 8
    assert views[1].threshold[:2] == [None, None]
    assert views[1].threshold[2] is not None


def test_seconds_leave_evaluation_out(views):
    assert views[2].seconds == pytest.approx(8 * 2.0)
    assert views[2].megabytes == pytest.approx(8 * 3.0)


def test_runs_of_one_method_are_told_apart_by_the_settings_that_differ(tmp_path: Path):
    paths = [
        write(tmp_path / f"run{i}", "feduhb", series(4), scale=scale) for i, scale in enumerate((0.3, 0.6))
    ]
    assert [view.label for view in read_runs(paths)] == ["FedUHB (scale 0.3)", "FedUHB (scale 0.6)"]


def test_runs_with_the_same_settings_are_told_apart_by_folder(tmp_path: Path):
    paths = [write(tmp_path / name / "feduhb", "feduhb", series(4)) for name in ("monday", "tuesday")]
    assert [view.label for view in read_runs(paths)] == ["FedUHB (monday)", "FedUHB (tuesday)"]


def test_settings_too_long_for_a_label_give_way_to_the_folder(tmp_path: Path):
    long = [",".join(f"c{i:02}" for i in range(n)) for n in (12, 13)]
    paths = [write(tmp_path / f"r{i}", "feduhb", series(4), forget=f) for i, f in enumerate(long)]
    assert [view.label for view in read_runs(paths)] == ["FedUHB (r0)", "FedUHB (r1)"]


def test_labels_are_unique_even_where_folders_print_alike(tmp_path: Path):
    paths = [write(tmp_path / name, "feduhb", series(4)) for name in ("a\tb", "a\nb")]
    assert [view.label for view in read_runs(paths)] == ["FedUHB #1", "FedUHB #2"]


def test_a_folder_given_twice_is_read_once(folders):
    assert len(read_runs([folders[0], folders[0], folders[0] / ".." / "train"])) == 1


def test_retrain_is_the_one_of_the_same_data_seed_and_request(tmp_path: Path):
    uhb, other, same = read_runs(
        [
            write(tmp_path / "u", "feduhb", series(4)),
            write(tmp_path / "r2", "retrain", series(4), seed=2),
            write(tmp_path / "r1", "retrain", series(4)),
        ]
    )
    assert retrain_of(uhb, [uhb, other, same]) is same
    assert retrain_of(uhb, [uhb, other]) is None


def test_no_folder_is_refused():
    with pytest.raises(RunFolderError, match="there is no run to report on"):
        read_runs([])


def test_what_is_no_run_folder_is_refused(tmp_path: Path):
    with pytest.raises(RunFolderError, match="not a run folder: there is no such folder; check the path"):
        read_runs([tmp_path / "nowhere"])


def test_a_file_is_refused_in_words(tmp_path: Path):
    (tmp_path / "file").write_text("hello")
    with pytest.raises(RunFolderError, match="file"):
        read_runs([tmp_path / "file"])


def test_an_unfinished_run_is_refused(tmp_path: Path):
    folder = RunFolder(tmp_path / "run")
    folder.create(CONFIG.format(seed=1))
    folder.append(series(1)[0])
    with pytest.raises(RunFolderError, match="has not finished; continue it with --resume"):
        read_runs([folder.path])


def test_a_folder_from_before_histories_has_none(views):
    assert [view.history_megabytes for view in views] == [0, 0, 0]
    assert [view.saved for view in views] == [0, 0, 0]


def test_a_history_that_is_no_number_is_refused(tmp_path: Path):
    path = write(tmp_path / "run", "federaser", series(3), changes={"history_bytes_read": "much"})
    with pytest.raises(RunFolderError, match=r"use --resume \(history_bytes_read is .much.\)"):
        read_runs([path])


@pytest.mark.parametrize("key", ["method", "exact", "client_seconds", "scores", "weights_sha256"])
def test_a_result_that_does_not_tell_all_is_refused(tmp_path: Path, key: str):
    path = write(tmp_path / "run", "feduhb", series(3), changes={key: None})
    with pytest.raises(RunFolderError, match=rf"use --resume \({key} is None\)"):
        read_runs([path])


def test_a_result_that_is_no_table_is_refused(tmp_path: Path):
    path = write(tmp_path / "run", "feduhb", series(3))
    (path / "result.json").write_text("[]")
    with pytest.raises(RunFolderError, match=r"result\.json is damaged"):
        read_runs([path])


def test_a_result_of_other_rounds_is_refused(tmp_path: Path):
    path = write(tmp_path / "run", "feduhb", series(3), changes={"rounds": 4})
    with pytest.raises(RunFolderError, match=r"holds 3 rounds, but result\.json counts 4"):
        read_runs([path])


def test_an_unlearn_setting_that_is_no_table_is_refused(tmp_path: Path):
    path = write(tmp_path / "run", None, series(3))
    (path / "config.toml").write_text("unlearn = 3\n[train]\n")
    with pytest.raises(RunFolderError, match=r"config\.toml is damaged; restore a backup \(unlearn is 3\)"):
        read_runs([path])
