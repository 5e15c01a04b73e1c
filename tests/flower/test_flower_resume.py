"""Checkpoints: a run that is killed and submitted again ends with the same weights."""

import json
import shutil
import subprocess
import sys

import pytest
import torch
from flwr.app import MetricRecord

import feduhb
from federations import ragged
from feduhb import flower
from feduhb.errors import CheckpointError, ConfigError, HistoryError, RequestError, RunFolderError
from feduhb.flower import engine
from feduhb.report import write_report
from feduhb.runs.checkpoint import digest_weights
from feduhb.runs.folder import RunFolder
from feduhb.runs.history import DiskHistory
from flower.gridding import change_answers, make_app, make_grid

pytestmark = pytest.mark.slow

LOCAL = feduhb.Local(batch_size=8, lr=0.05)
NAMES = ("ant", "bee", "cat", "dog", "elk")
FEDERATION = ragged()


class Killed(BaseException):
    """An exception that no handler catches."""


def draw_start(seed=7):
    return flower.fresh_arrays(FEDERATION.model, seed)


def make_settings(**more):
    return {"epochs": 1, "seed": 7, "local": LOCAL, "partitions": NAMES, "timeout": 5, **more}


def make_unlearning(folder, forget="bee", **more):
    return flower.FedUHB(forget, checkpoint=folder, stop=feduhb.never, **make_settings(**more))


def kill_in_round(number):
    """Return a grid whose server is killed in a round after it has sent one message."""
    grid, count = make_grid(FEDERATION), []

    def before(message):
        if message.metadata.message_type == "train" and message.content["config"]["round"] == number:
            count.append(1)
            if len(count) > 1:
                raise Killed

    grid.before = before
    return grid


def train_first(folder, rounds=6, **more):
    return flower.Train(checkpoint=folder, keep_history=True, **make_settings(**more)).start(
        make_grid(FEDERATION), draw_start(), rounds
    )


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_killed_run_continues_after_its_last_finished_round(number, tmp_path):
    calm = make_unlearning(None).start(make_grid(FEDERATION), draw_start(), 5)
    with pytest.raises(Killed):
        make_unlearning(tmp_path).start(kill_in_round(number), draw_start(), 5)
    grid = make_grid(FEDERATION)
    again = make_unlearning(tmp_path).start(grid, draw_start(), 5)
    assert torch.equal(again.params, calm.params)
    assert [r.moved for r in again.rounds] == [r.moved for r in calm.rounds]
    trained = [config["round"] for _, kind, config in grid.sent if kind == "train"]
    assert sorted(set(trained)) == list(range(number, 5))


def test_a_run_continues_without_its_leaver(tmp_path):
    """The first submission wrote its name down, so the request still resolves."""
    grid = make_grid(FEDERATION, keyed=True)
    more = {
        "epochs": 1,
        "seed": 7,
        "local": LOCAL,
        "timeout": 5,
        "checkpoint": tmp_path,
        "stop": feduhb.never,
    }

    def killed(message):
        if message.metadata.message_type == "train" and message.content["config"]["round"] == 1:
            raise Killed

    grid.before = killed
    with pytest.raises(Killed):
        flower.FedUHB("bee", **more).start(grid, draw_start(), 3)
    grid.before = lambda _: None
    del grid.seats[101]
    assert len(flower.FedUHB("bee", **more).start(grid, draw_start(), 3).rounds) == 3


def test_killed_between_record_and_checkpoint(tmp_path):
    calm = make_unlearning(None).start(make_grid(FEDERATION), draw_start(), 3)
    with pytest.raises(Killed):
        make_unlearning(tmp_path).start(kill_in_round(2), draw_start(), 3)
    folder = RunFolder(tmp_path)
    folder.append(calm.rounds[2])
    again = make_unlearning(tmp_path).start(make_grid(FEDERATION), draw_start(), 3)
    assert torch.equal(again.params, calm.params)
    assert len(folder.rounds()) == 3


def test_a_resumed_run_stops_by_the_same_rule(tmp_path):
    rule = feduhb.dynamic_stop(100.0)
    calm = flower.FedUHB("bee", stop=rule, **make_settings()).start(make_grid(FEDERATION), draw_start(), 9)
    with pytest.raises(Killed):
        flower.FedUHB("bee", stop=rule, checkpoint=tmp_path, **make_settings()).start(
            kill_in_round(2), draw_start(), 9
        )
    again = flower.FedUHB("bee", stop=rule, checkpoint=tmp_path, **make_settings()).start(
        make_grid(FEDERATION), draw_start(), 9
    )
    assert (again.stopped, len(again.rounds)) == (calm.stopped, len(calm.rounds))
    assert torch.equal(again.params, calm.params)


def test_a_finished_run_sends_no_train_message(tmp_path):
    first = make_unlearning(tmp_path).start(make_grid(FEDERATION), draw_start(), 3)
    grid = make_grid(FEDERATION)
    again = make_unlearning(tmp_path).start(grid, draw_start(), 3)
    assert torch.equal(again.params, first.params)
    assert again.rounds == first.rounds
    assert again.stopped == first.stopped
    assert {kind for _, kind, _ in grid.sent} == {"query.feduhb_who"}


@pytest.mark.parametrize(
    ("changes", "rounds", "words"),
    [
        ({"momentum": 0.5}, 4, "unlearn.settings.momentum = 0.9, not 0.5"),
        ({"forget": "cat"}, 4, "unlearn.forget = 'bee', not 'cat'"),
        ({"seed": 8}, 4, "seed = 7, not 8"),
        ({"local": feduhb.Local(lr=0.1, batch_size=8)}, 4, "train.lr = 0.05, not 0.1"),
        ({"clients_per_round": 2}, 4, "train.clients_per_round = None, not 2"),
        ({}, 5, "train.rounds = 4, not 5"),
    ],
)
def test_other_settings_are_refused(changes, rounds, words, tmp_path):
    with pytest.raises(Killed):
        make_unlearning(tmp_path).start(kill_in_round(1), draw_start(), 4)
    with pytest.raises(RunFolderError, match=f"was started with {words}; resubmit with the same settings"):
        make_unlearning(tmp_path, **changes).start(make_grid(FEDERATION), draw_start(), rounds)


def test_another_fresh_model_is_refused(tmp_path):
    with pytest.raises(Killed):
        make_unlearning(tmp_path).start(kill_in_round(1), draw_start(), 4)
    with pytest.raises(RunFolderError, match="the initial arrays are not the fresh model that seed 7 draws"):
        make_unlearning(tmp_path).start(make_grid(FEDERATION), draw_start(seed=8), 4)


def test_a_damaged_or_missing_checkpoint_is_an_error(tmp_path):
    with pytest.raises(Killed):
        make_unlearning(tmp_path).start(kill_in_round(3), draw_start(), 4)
    (tmp_path / "state.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="is damaged; restore a backup"):
        make_unlearning(tmp_path).start(make_grid(FEDERATION), draw_start(), 4)
    (tmp_path / "state.safetensors").unlink()
    with pytest.raises(CheckpointError, match="has rounds but no checkpoint"):
        make_unlearning(tmp_path).start(make_grid(FEDERATION), draw_start(), 4)


def test_two_servers_never_write_one_folder(tmp_path):
    code = f"import fcntl; f = open({str(tmp_path / '.lock')!r}, 'wb'); fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(RunFolderError, match="another ServerApp is writing"):
            make_unlearning(tmp_path).start(make_grid(FEDERATION), draw_start(), 2)
        other.communicate("\n")
    assert len(make_unlearning(tmp_path).start(make_grid(FEDERATION), draw_start(), 2).rounds) == 2


def test_nothing_is_erased_under_a_training_that_still_writes(tmp_path):
    train_first(tmp_path / "first", 1)
    words = r"another process is writing .*first; wait for it, or stop it"
    with RunFolder(tmp_path / "first").claim(), pytest.raises(RunFolderError, match=words):
        make_unlearning(None, trained=tmp_path / "first").start(make_grid(FEDERATION), draw_start(), 1)
    assert DiskHistory(tmp_path / "first" / "history").rounds == [0]


def test_a_training_is_not_its_own_checkpoint(tmp_path):
    with pytest.raises(ConfigError, match=r"trained and checkpoint are both .*; choose another checkpoint"):
        make_unlearning(tmp_path, trained=str(tmp_path))


def test_scores_of_earlier_rounds_are_there_after_a_resume(tmp_path):
    def evaluate(number, _):
        return MetricRecord({"number": float(number)})

    with pytest.raises(Killed):
        make_unlearning(tmp_path, evaluate_every=1).start(
            kill_in_round(2), draw_start(), 3, evaluate_fn=evaluate
        )
    again = make_unlearning(tmp_path, evaluate_every=1).start(
        make_grid(FEDERATION), draw_start(), 3, evaluate_fn=evaluate
    )
    assert {t: dict(found) for t, found in again.evaluate_metrics_serverapp.items()} == {
        t: {"number": float(t)} for t in (1, 2, 3)
    }
    assert set(again.rounds[0].scores) == {"number", "clients_loss", "clients_accuracy"}
    assert [set(again.evaluate_metrics_clientapp[t]) for t in (1, 2, 3)] == [{"loss", "accuracy"}] * 3
    assert again.evaluate_metrics_clientapp[1]["loss"] == again.rounds[0].scores["clients_loss"]


def test_left_out_clients_are_written_and_read_again(tmp_path):
    bad = change_answers(make_app(FEDERATION), lambda _: (_ for _ in ()).throw(RuntimeError("no")))
    grid = make_grid(FEDERATION, apps={"cat": bad})
    first = make_unlearning(tmp_path).start(grid, draw_start(), 2)
    assert first.left_out == {t: {"cat": "it failed: RuntimeError('no')"} for t in (0, 1)}
    assert json.loads((tmp_path / "left_out.json").read_text()) == {
        str(t): found for t, found in first.left_out.items()
    }
    assert make_unlearning(tmp_path).start(make_grid(FEDERATION), draw_start(), 2).left_out == first.left_out


def test_a_kill_before_a_checkpoint_loses_no_left_out_client(tmp_path, monkeypatch):
    bad = change_answers(make_app(FEDERATION), lambda _: (_ for _ in ()).throw(RuntimeError("no")))
    grid = make_grid(FEDERATION, apps={"cat": bad})
    write = engine.write_file

    def killed(path, values):
        write(path, values)
        if path.name == "left_out.json":
            raise Killed

    monkeypatch.setattr(engine, "write_file", killed)
    for _ in range(2):  # the checkpoint is written after left_out.json, so the round is repeated
        with pytest.raises(Killed):
            make_unlearning(tmp_path).start(grid, draw_start(), 2)
    assert RunFolder(tmp_path).rounds() == []
    monkeypatch.setattr(engine, "write_file", write)
    assert set(make_unlearning(tmp_path).start(grid, draw_start(), 2).left_out) == {0, 1}


def test_a_training_is_resumed_only_with_the_same_settings(tmp_path):
    with pytest.raises(Killed):
        flower.Train(checkpoint=tmp_path, **make_settings()).start(kill_in_round(1), draw_start(), 2)
    with pytest.raises(RunFolderError, match=r"was started with flower.settings.step_size = 1.0, not 0.1"):
        flower.Train(checkpoint=tmp_path, step_size=0.1, **make_settings()).start(
            make_grid(FEDERATION), draw_start(), 2
        )


def test_sampling_saves_no_rounds_but_a_replay_does(tmp_path):
    train_first(tmp_path / "first", 6)
    flower.Train(checkpoint=tmp_path / "sampled", clients_per_round=2, **make_settings()).start(
        make_grid(FEDERATION), draw_start(), 6
    )
    assert RunFolder(tmp_path / "sampled").result()["client_rounds_saved"] == 0.0
    place = {"trained": tmp_path / "first", "checkpoint": tmp_path / "run"}
    flower.FedRecover("bee", warmup=3, correction=3, final=1, **place, **make_settings()).start(
        make_grid(FEDERATION), draw_start()
    )
    assert RunFolder(tmp_path / "run").result()["client_rounds_saved"] > 0.0


def test_a_report_reads_the_folder(tmp_path):
    train_first(tmp_path / "first", 2)
    make_unlearning(tmp_path / "without").start(make_grid(FEDERATION), draw_start(), 2)
    write_report([tmp_path / "first", tmp_path / "without"], tmp_path / "report")
    assert "FedUHB" in (tmp_path / "report" / "report.html").read_text()


def test_trained_weights_are_refused_as_a_start(tmp_path):
    trained = train_first(tmp_path / "first", 2)
    words = r"the initial arrays are not the fresh model that seed 7 draws, .*; let the strategy draw the fresh model"
    for model in (FEDERATION.model, None):
        strategy = make_unlearning(None, trained=tmp_path / "first", model=model)
        kind, found = (RunFolderError, words) if model else (ConfigError, "were given without a model")
        with pytest.raises(kind, match=found):
            strategy.start(make_grid(FEDERATION), trained.arrays, 2)
    with pytest.raises(RunFolderError, match="is not a run folder"):
        make_unlearning(None, trained=tmp_path / "nowhere").start(make_grid(FEDERATION), draw_start(), 2)


def test_an_unlearning_erases_the_trainings_history_from_the_leavers_first_round_on(tmp_path, caplog):
    train_first(tmp_path / "first", 6, clients_per_round=2)
    history = DiskHistory(tmp_path / "first" / "history")
    first = {c: t for t in reversed(history.rounds) for c in history.clients(t)}
    leaver = max(first, key=lambda client: first[client])
    assert first[leaver] > 0
    before = history.bytes
    with caplog.at_level("INFO", logger="flwr.feduhb"):
        make_unlearning(None, leaver, trained=tmp_path / "first").start(
            make_grid(FEDERATION), draw_start(), 1
        )
    assert history.rounds == list(range(first[leaver]))
    assert caplog.text.count(f"erased {before - history.bytes:,} bytes of history in {history.folder}") == 1


def test_the_history_is_erased_before_any_train_message(tmp_path):
    train_first(tmp_path / "first", 2)
    with pytest.raises(Killed):
        make_unlearning(None, trained=tmp_path / "first").start(kill_in_round(0), draw_start(), 1)
    assert DiskHistory(tmp_path / "first" / "history").rounds == []


@pytest.mark.parametrize("forget", [{"bee": [0]}, "class:1"])
def test_rows_and_classes_erase_the_history_too(forget, tmp_path):
    train_first(tmp_path / "first", 2)
    make_unlearning(None, forget, trained=tmp_path / "first").start(make_grid(FEDERATION), draw_start(), 1)
    assert DiskHistory(tmp_path / "first" / "history").rounds == []


@pytest.mark.parametrize("strategy", [flower.FedEraser, flower.FedRecover])
def test_a_killed_replay_ends_with_the_same_weights_and_erases_its_history(strategy, tmp_path):
    train_first(tmp_path / "first", 8)
    shutil.copytree(tmp_path / "first", tmp_path / "copy")
    calm = strategy("bee", trained=tmp_path / "copy", **make_settings()).start(
        make_grid(FEDERATION), draw_start()
    )
    place = {"trained": tmp_path / "first", "checkpoint": tmp_path / "run"}
    with pytest.raises(Killed):
        strategy("bee", **place, **make_settings()).start(kill_in_round(2), draw_start())
    assert DiskHistory(tmp_path / "first" / "history").rounds == list(range(8))
    again = strategy("bee", **place, **make_settings()).start(make_grid(FEDERATION), draw_start())
    assert torch.equal(again.params, calm.params)
    assert DiskHistory(tmp_path / "first" / "history").rounds == []
    finished = strategy("bee", **place, **make_settings()).start(make_grid(FEDERATION), draw_start())
    assert torch.equal(finished.params, calm.params)
    assert finished.rounds == again.rounds
    with pytest.raises(RunFolderError, match="holds another request or other settings"):
        strategy("bee,cat", **place, **make_settings()).start(make_grid(FEDERATION), draw_start())


@pytest.mark.parametrize("name", [".result.json", "result.json"])
@pytest.mark.parametrize("is_link", [True, False])
def test_a_planted_result_does_not_end_a_replay(name, is_link, tmp_path):
    """Before, the history was erased, and the run ended with the planted file as its result."""
    train_first(tmp_path / "first", 3)
    place = {"trained": tmp_path / "first", "checkpoint": tmp_path / "run"}
    with pytest.raises(Killed):
        flower.FedEraser("bee", **place, **make_settings()).start(kill_in_round(1), draw_start())
    (tmp_path / "foreign").write_text("a letter")
    planted = tmp_path / "run" / name
    planted.symlink_to(tmp_path / "foreign") if is_link else planted.write_text("a letter")
    again = flower.FedEraser("bee", **place, **make_settings())
    if is_link and name == ".result.json":  # it is replaced
        again.start(make_grid(FEDERATION), draw_start())
        assert not (tmp_path / "run" / "result.json").is_symlink()
        RunFolder(tmp_path / "run").check_weights()
    else:
        with pytest.raises(RunFolderError, match=r"result.json is damaged; delete it and use --resume"):
            again.start(make_grid(FEDERATION), draw_start())
        assert DiskHistory(tmp_path / "first" / "history").rounds == [0, 1, 2]
    assert (tmp_path / "foreign").read_text() == "a letter"


def test_a_replay_killed_while_erasing_its_history_is_finished_without_training(tmp_path, monkeypatch):
    train_first(tmp_path / "first", 4)
    place = {"trained": tmp_path / "first", "checkpoint": tmp_path / "run"}
    forget = DiskHistory.forget

    def killed(history, clients):
        forget(history, clients)
        raise Killed

    monkeypatch.setattr(DiskHistory, "forget", killed)
    with pytest.raises(Killed):
        flower.FedEraser("bee", **place, **make_settings()).start(make_grid(FEDERATION), draw_start())
    monkeypatch.setattr(DiskHistory, "forget", forget)
    folder = RunFolder(tmp_path / "run")
    assert DiskHistory(tmp_path / "first" / "history").rounds == []
    assert not folder.is_finished()
    grid = make_grid(FEDERATION)
    done = flower.FedEraser("bee", **place, **make_settings()).start(grid, draw_start())
    assert grid.list_trained() == set()
    assert folder.is_finished()
    assert folder.result()["weights_sha256"] == digest_weights(done.params)
    assert len(done.rounds) == folder.result()["rounds"]


def test_a_replay_refuses_what_it_cannot_do(tmp_path):
    with pytest.raises(
        HistoryError,
        match="federaser replays stored updates; give the checkpoint folder of the training: trained=FOLDER",
    ):
        flower.FedEraser("bee", **make_settings()).start(make_grid(FEDERATION), draw_start())
    flower.Train(checkpoint=tmp_path / "bare", **make_settings()).start(
        make_grid(FEDERATION), draw_start(), 1
    )
    with pytest.raises(HistoryError, match="there is no history in"):
        flower.FedEraser("bee", trained=tmp_path / "bare", **make_settings()).start(
            make_grid(FEDERATION), draw_start()
        )
    train_first(tmp_path / "first", 2)
    with pytest.raises(
        RequestError, match="federaser replays the updates of whole clients and cannot remove rows"
    ):
        flower.FedEraser({"bee": [0]}, trained=tmp_path / "first", **make_settings()).start(
            make_grid(FEDERATION), draw_start()
        )
    with pytest.raises(ConfigError, match="federaser cannot keep a history"):
        flower.FedEraser("bee", trained=tmp_path / "first", keep_history=True, **make_settings()).start(
            make_grid(FEDERATION), draw_start()
        )


def test_a_history_needs_a_folder():
    with pytest.raises(ConfigError, match="a history is kept on disk; name a folder: checkpoint=FOLDER"):
        flower.Train(keep_history=True, **make_settings()).start(make_grid(FEDERATION), draw_start(), 1)


def test_a_history_holds_no_answer_that_was_left_out(tmp_path):
    def fail(_):
        raise RuntimeError

    grid = make_grid(FEDERATION, apps={"cat": change_answers(make_app(FEDERATION), fail)})
    flower.Train(checkpoint=tmp_path, keep_history=True, **make_settings()).start(grid, draw_start(), 1)
    assert DiskHistory(tmp_path / "history").clients(0) == ("ant", "bee", "dog", "elk")
