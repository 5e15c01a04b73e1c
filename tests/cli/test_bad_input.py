"""Bad input: one line with what is wrong and what to do; exit code 2; nothing lost."""

import importlib
import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from typer.testing import CliRunner

import feduhb
from federations import SIZES, ragged, tensors
from feduhb.cli import app
from feduhb.core.seeds import sample_clients
from feduhb.engines.batches import Batches
from feduhb.engines.stacked.setup import Setup
from feduhb.errors import AnswerError, ConfigError, RunFolderError
from feduhb.runs.checkpoint import load_params

CONFIG = """
seed = 2
[federation]
data = "digits"
clients = 4
[train]
rounds = 2
epochs = 1
lr = 0.05
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished training run of four clients."""
    folder = tmp_path_factory.mktemp("bad-input")
    (folder / "config.toml").write_text(CONFIG)
    done = CliRunner().invoke(app, ["train", str(folder / "config.toml"), "--out", str(folder / "run")])
    assert done.exit_code == 0, done.output
    return folder / "run"


def rounds_done(folder):
    """Return the number of rounds before a checkpoint."""
    with safe_open(folder / "state.safetensors", "pt") as file:
        return json.loads(file.metadata()["state"].partition(" ")[2])["rounds_done"]


def refused(*arguments):
    """Run a command that must be refused; return its one line."""
    ended = CliRunner().invoke(app, [str(a) for a in arguments])
    assert ended.exit_code == 2, ended.output
    line = ended.stderr.strip()
    assert line.startswith("feduhb: ")
    assert "\n" not in line
    return line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--forget", "c09"], "there is no client 'c09'; the clients are c00, c01, c02, c03"),
        (["--forget", "c00,c01,c02,c03"], "no client would remain to train on; keep at least one client"),
        (["--forget", ""], "the request names nothing to forget; name clients (c00,c01)"),
        (["--forget", "c00:9999"], "client c00 has no row 9999, or it was forgotten"),
        (["--forget", "c00:5-1"], "counts down; write the smaller number first"),
        (["--forget", "class:77"], "no client holds class 77; the classes are 0, 1"),
        (["--forget", "c00", "--momentum", "-0.1"], "momentum is -0.1; give at least 0 and below 1"),
        (["--forget", "c00", "--momentum", "1.0"], "momentum is 1.0; give at least 0 and below 1"),
        (["--forget", "c00", "--step-size", "0"], "step_size is 0.0; give a positive number"),
        (
            ["--forget", "c00", "--method", "magic"],
            "there is no method 'magic'; choose one of feduhb, retrain, federaser, fedrecover, nesterov, fedadam, fedyogi, fednadam, fedexp, rollback, rapidretrain, finetune, not, pga, fedaf, fedrecovery, crab, wu",
        ),
        (
            ["--forget", "c00", "--method", "retrain", "--momentum", "0.5"],
            "retrain has no setting momentum; it knows",
        ),
        (["--forget", "c00", "--rounds", "0"], "rounds is 0; give 1 or more"),
        (["--forget", "c00", "--stop", "soon"], "--stop 'soon' is not a stop rule; write auto, never"),
        (
            ["--forget", "c00", "--stop", "0.6", "--window", "1"],
            "the stop rule's window is 1; give a whole number, 2 or more",
        ),
    ],
)
def test_an_impossible_request_is_refused(run, tmp_path, arguments, words):
    assert words in refused("unlearn", run, *arguments, "--out", tmp_path / "new")
    assert not (tmp_path / "new" / "config.toml").exists()


def test_a_comparison_of_no_rounds_is_refused_before_its_first_run(run, tmp_path):
    given = ("--forget", "c00", "--methods", "finetune", "--rounds", "0", "--out", tmp_path / "new")
    assert "rounds is 0, and a report cannot show a run of no rounds; give 1 or more" in refused("compare", run, *given)  # fmt: skip
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("rounds", "ruonds"), "there is no setting train.ruonds; did you mean rounds?"),
        (("rounds = 2", "rounds = 'two'"), "train.rounds = 'two' is invalid"),
        (("lr = 0.05", "lr = -1"), "lr is -1"),
        (
            ('data = "digits"', 'data = "letters"'),
            "there is no data set 'letters'; choose one of mnist-5k, digits, breast-cancer, mnist",
        ),
        (
            ("clients = 4", 'clients = 4\npartition = "dirichlet"'),
            "partition 'dirichlet' needs a positive number",
        ),
        (("[train]", "[train"), "is not TOML"),
        (
            ("rounds = 2", "rounds = 2\nclients_per_round = 9"),
            "clients_per_round is 9; give 1 to 4, the number of clients",
        ),
        (
            ("rounds = 2", "rounds = 2\naggregate = 'mode'"),
            "there is no aggregation rule 'mode'; choose one of",
        ),
        (
            ("rounds = 2", "rounds = 2\nengine = 'warp'"),
            "there is no engine 'warp'; choose one of auto, loop, pool",
        ),
    ],
)
def test_a_wrong_config_is_refused(tmp_path, change, words):
    (tmp_path / "config.toml").write_text(CONFIG.replace(*change))
    assert words in refused("train", tmp_path / "config.toml", "--out", tmp_path / "run")
    assert not (tmp_path / "run" / "config.toml").exists()


def test_wrong_folders_are_refused(run, tmp_path):
    assert "is not a run folder: it has no config.toml" in refused("unlearn", tmp_path, "--forget", "c00")
    assert "already holds a run; continue it with --resume" in refused(
        "train", run.parent / "config.toml", "--out", run
    )
    assert "there is no config file" in refused("train", tmp_path / "none.toml", "--out", tmp_path / "run")
    changed = tmp_path / "changed.toml"
    changed.write_text(CONFIG.replace("0.05", "0.06"))
    line = refused("train", changed, "--out", run, "--resume")
    assert "was started with train.lr = 0.05, not 0.06; resume it with the same settings" in line


def test_an_unfinished_run_is_not_unlearned(run, tmp_path):
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    (unfinished / "config.toml").write_bytes((run / "config.toml").read_bytes())
    assert "has not finished; continue it with --resume" in refused("unlearn", unfinished, "--forget", "c00")


@pytest.mark.parametrize(
    "damage",
    [lambda raw: raw[:-7], lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]), lambda _: b"not a checkpoint" * 9],
)
def test_a_corrupt_checkpoint(run, tmp_path, damage):
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in run.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    (copy / "result.json").unlink()
    (copy / "state.safetensors").write_bytes(damage((run / "state.safetensors").read_bytes()))
    before = {path.name: path.read_bytes() for path in copy.iterdir()}
    line = refused("train", run.parent / "config.toml", "--out", copy, "--resume")
    assert "state.safetensors is damaged; restore a backup, or delete its run folder" in line
    assert before == {path.name: path.read_bytes() for path in copy.iterdir()}


def test_two_processes_do_not_write_one_folder(run, tmp_path):
    import fcntl

    with (tmp_path / ".lock").open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert "another process is writing" in refused("train", run.parent / "config.toml", "--out", tmp_path)


def test_a_full_disk_keeps_the_last_good_checkpoint_and_the_run_can_continue(commands, tmp_path):
    """The operating system refuses files beyond 3,500 bytes, as a full disk would: the rounds outgrow that, not the checkpoint."""
    config = tmp_path / "config.toml"
    config.write_text(
        CONFIG.replace("rounds = 2", "rounds = 9").replace("clients = 4", 'clients = 4\nmodel = "softmax"')
    )
    train = ("train", config, "--out")
    assert commands.feduhb(*train, tmp_path / "whole").returncode == 0
    out = tmp_path / "run"
    ended = commands.feduhb(*train, out, largest_file=3_500)
    assert ended.returncode == 2
    line = ended.stderr.strip().splitlines()[-1]
    assert line.startswith("feduhb: cannot write ")
    assert line.endswith("the disk is full; free some space and resume: what was finished is kept")
    assert 2 <= rounds_done(out) < 9
    assert not list(out.glob("*.tmp"))
    assert commands.feduhb(*train, out, "--resume").returncode == 0
    assert torch.equal(
        *(load_file(folder / "state.safetensors")["params"] for folder in (out, tmp_path / "whole"))
    )


def test_nan_in_a_clients_data_is_named_with_its_round_and_never_averaged_in(tmp_path):
    """elk holds NaN and is first sampled in some later round: everything up to there is kept."""
    x, y = tensors("elk", 8)
    federation = ragged(elk=(x * torch.nan, y))
    first = next(t for t in range(99) if "elk" in sample_clients(7, t, list(federation.clients), 1))
    assert first > 0
    with pytest.raises(
        AnswerError,
        match=f"client elk answered round {first} with NaN; that round was discarded.*The last checkpoint is kept: .*state",
    ):
        feduhb.train(federation, first + 3, epochs=1, clients_per_round=1, out=tmp_path / "run")
    assert rounds_done(tmp_path / "run") == first
    assert torch.isfinite(load_params(tmp_path / "run" / "state.safetensors")).all()
    with pytest.raises(
        RunFolderError, match="was started with different data of client elk; resume it with the same data"
    ):
        feduhb.train(ragged(), first + 3, epochs=1, clients_per_round=1, out=tmp_path / "run", resume=True)


@pytest.mark.parametrize("has_folder", [False, True])
def test_no_checkpoint_is_spoken_of_where_there_is_none(has_folder, tmp_path):
    x, y = tensors("elk", 8)
    with pytest.raises(AnswerError) as error:
        feduhb.train(
            ragged(elk=(x * torch.nan, y)), 2, epochs=1, out=tmp_path / "run" if has_folder else None
        )
    assert "client elk answered round 0 with NaN" in str(error.value)
    assert "checkpoint" not in str(error.value)


def test_a_run_is_not_resumed_without_one_of_its_clients(tmp_path):
    """Otherwise a checkpoint that the leaver helped to train would count as one of the others."""

    def interrupt(record):
        if record.round == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        feduhb.train(ragged(), 4, epochs=1, out=tmp_path / "run", show=interrupt)
    without = ragged({client: size for client, size in SIZES.items() if client != "bee"})
    with pytest.raises(RunFolderError, match="was started with different data of client bee"):
        feduhb.train(without, 4, epochs=1, out=tmp_path / "run", resume=True)


@pytest.mark.slow
def test_a_run_is_not_resumed_by_another_engine(tmp_path):
    def interrupt(record):  # noqa: ARG001
        raise KeyboardInterrupt

    trained = feduhb.train(ragged(), 1, epochs=1)
    with pytest.raises(KeyboardInterrupt):
        feduhb.unlearn(trained, ["bee"], engine="loop", out=tmp_path / "run", show=interrupt)
    with pytest.raises(RunFolderError, match=r"was started with made_by = 'loop, cpu, float64, torch "):
        feduhb.unlearn(trained, ["bee"], out=tmp_path / "run", resume=True)


def test_labels_that_the_model_does_not_have_are_named_with_their_client(tmp_path):
    x, y = tensors("cat", 13)
    with pytest.raises(
        AnswerError, match=r"client cat could not train in round 0 .*look at its inputs and labels"
    ):
        feduhb.train(ragged(cat=(x, y + 99)), 1, epochs=1, out=tmp_path / "run")


@pytest.mark.parametrize("engine", ["loop", "pool", "stacked"])
def test_memory_of_a_gpu_that_runs_out_is_not_the_clients_fault(engine, monkeypatch):
    def fail(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ...")

    monkeypatch.setattr(Batches, "draw", fail)
    monkeypatch.setattr(Setup, "of", fail)  # of the stacked engine
    with pytest.raises(ConfigError) as error:
        feduhb.train(ragged(), 1, epochs=1, engine=engine)
    assert str(error.value) == (
        "the GPU's memory ran out (CUDA out of memory); stop other programs that use it, give a smaller batch_size, or use engine 'pool'"
    )


def test_with_json_the_error_is_json_too(run):
    ended = CliRunner().invoke(app, ["unlearn", str(run), "--forget", "c09", "--json"])
    assert ended.exit_code == 2
    assert json.loads(ended.stdout)["error"]["kind"] == "RequestError"


def test_an_interrupted_run_prints_how_to_continue(run, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("feduhb.runs.prepare.execute", interrupted)
    ended = CliRunner().invoke(
        app, ["train", str(run.parent / "config.toml"), "--out", str(tmp_path / "run")]
    )
    assert ended.exit_code == 130
    assert ended.stderr.endswith("feduhb: interrupted; finished rounds are kept; continue with --resume\n")


@pytest.mark.parametrize(
    ("module", "name", "command", "says"),
    [
        ("feduhb.demo", "run_demo", ["demo"], "start again; the demo starts over"),
        ("feduhb_reproduction.theorem", "run_theorem", ["theorem"], "start again"),
        ("feduhb.audit.audit", "audit_all", ["audit"], "audit-work, whose models know the forgotten data"),
        ("feduhb_reproduction.grids", "read_grid", ["reproduce", "mnist"], "FOLDER/work, whose models know the forgotten data"),
    ],
)  # fmt: skip
def test_an_interrupted_command_prints_what_it_keeps(tmp_path, monkeypatch, module, name, command, says):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib.import_module(module), name, interrupted)
    monkeypatch.setattr("feduhb.runs.run.open_run", lambda *_, **__: None)
    more = [str(tmp_path)] if command == ["audit"] else ["--out", str(tmp_path)]
    ended = CliRunner().invoke(app, [*command, *more])
    assert ended.exit_code == 130
    assert ended.stderr.strip().endswith(says)
