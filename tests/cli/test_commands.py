"""Every command once, as a person and as a program would use it."""

import json
import shutil

import pytest
from typer.testing import CliRunner

import feduhb
from feduhb import demo
from feduhb.cli import app
from feduhb.cli.options import join_lines
from feduhb.runs.folder import RunFolder
from golden import slow
from golden.masking import mask

CONFIG = """
seed = 4
[federation]
data = "digits"
clients = 5
partition = "shards:4"
[federation.backdoor]
clients = ["c00"]
[train]
rounds = 3
epochs = 1
lr = 0.05
"""


def invoke(*arguments):
    ended = CliRunner().invoke(app, [str(a) for a in arguments])
    assert ended.exit_code == 0, ended.output
    return ended


def write_nothing(runs, out):  # noqa: ARG001
    """Stand in for the report where the same runs have been reported already."""
    return []


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("commands")
    (folder / "config.toml").write_text(CONFIG)
    said = invoke("train", folder / "config.toml", "--out", folder / "run")
    assert said.stdout.startswith("train: 3 rounds, test loss ")
    picked, first, *_ = said.stderr.splitlines()
    assert picked.startswith("engine: ")
    assert first.startswith("train 1/3  loss ")
    return folder / "run"


@pytest.fixture
def run(trained, tmp_path_factory):
    """A copy of the training, without any request so far."""
    folder = tmp_path_factory.mktemp("commands")
    return shutil.copytree(trained.parent, folder / "all") / "run"


def test_train_answers_a_program(run, tmp_path):
    answer = json.loads(
        invoke("train", run.parent / "config.toml", "--out", tmp_path / "run", "--json").stdout
    )
    assert answer["rounds"] == 3
    assert answer["weights_sha256"] == RunFolder(run).result()["weights_sha256"]
    assert set(answer["scores"]) == {"test_loss", "test_accuracy", "backdoor"}


def test_train_with_another_engine(run, tmp_path):
    args = ("train", run.parent / "config.toml", "--out", tmp_path / "run", "--engine", "loop", "--json")
    assert json.loads(invoke(*args).stdout)["engine"]["name"] == "loop"


def test_unlearn_names_its_folder_after_method_and_run(run):
    said = invoke("unlearn", run, "--forget", "c00,c01:0-4", "--rounds", 4)
    folder = run.with_name("run-feduhb")
    assert said.stdout.splitlines()[-1] == str(folder)
    config = RunFolder(folder).config()["unlearn"]
    assert config["forget"] == "c00,c01:0-4"
    assert config["settings"] == {
        "step_size": 1.0,
        "momentum": 0.9,
        "epochs": 1,
        "aggregate": "weighted_mean",
    }
    assert config["stop"]["scale"] == 0.6
    assert "c00" not in RunFolder(folder).result()["clients"]


def test_unlearn_with_settings_of_its_own(run, tmp_path):
    args = (
        "--momentum",
        0.5,
        "--step-size",
        0.8,
        "--stop",
        40,
        "--window",
        3,
        "--out",
        tmp_path / "new",
        "--json",
    )
    answer = json.loads(invoke("unlearn", run, "--forget", "class:3", *args).stdout)
    assert answer["settings"]["momentum"] == 0.5
    assert answer["settings"]["step_size"] == 0.8
    assert answer["rounds"] == 3
    assert "fell below 40 x its standard deviation" in answer["stopped"]


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ("--method nesterov --momentum 0.5 --step-size 0.8", {"momentum": 0.5, "step_size": 0.8}),
        (
            "--method fedadam --set lr=0.02 --set b1=0.8 --set b2=0.999 --set tau=0.01",
            {"lr": 0.02, "b1": 0.8, "b2": 0.999, "tau": 0.01},
        ),
        ("--method fedyogi --set lr=0.02", {"lr": 0.02}),
        ("--method fednadam --set b1=0", {"b1": 0}),
        ("--method fedexp --set eps=0.1", {"eps": 0.1}),
        ("--method retrain --step-size 1.5", {"step_size": 1.5}),
        ("--method feduhb --set step_size=1.5 --set momentum=0.8", {"step_size": 1.5, "momentum": 0.8}),
    ],
)
def test_every_server_rule_takes_its_settings(run, tmp_path, words, settings):
    args = (*words.split(), "--rounds", 1, "--out", tmp_path / "new", "--json")
    answer = json.loads(invoke("unlearn", run, "--forget", "c00", *args).stdout)
    assert answer["method"] == words.split()[1]
    assert settings.items() <= answer["settings"].items()
    assert answer["settings"]["epochs"] == 1, "those of the training"
    opened = feduhb.open_run(tmp_path / "new")
    assert settings.items() <= {key: getattr(opened.method, key) for key in settings}.items()


def test_a_setting_of_another_rule_is_refused(run):
    ended = CliRunner().invoke(
        app, ["unlearn", str(run), "--forget", "c00", "--method", "fedadam", "--momentum", "0.5"]
    )
    assert ended.exit_code == 2
    known = "lr, b1, b2, tau, epochs, aggregate"
    assert f"feduhb: fedadam has no setting momentum; it knows {known}\n" in ended.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("blank_figures")
def test_compare_takes_all_methods(run, tmp_path):
    """Of a run without a history and unlabelled data, those that need none."""
    args = ("--forget", "c00", "--methods", "all", "--rounds", 1, "--out", tmp_path / "all", "--json")
    exact = ["FedUHB", "Retrain", "Nesterov", "FedAdam", "FedYogi", "FedNadam", "FedExP", "RapidRetrain"]
    approximate = ["FineTune", "NoT", "PGA"]
    rows = json.loads(invoke("compare", run, *args).stdout)["runs"]
    assert [row["run"] for row in rows] == ["original", *exact, *approximate]


def test_unlearn_an_unlearned_run(run, tmp_path):
    invoke("unlearn", run, "--forget", "c01", "--rounds", 2, "--out", tmp_path / "first")
    invoke("unlearn", tmp_path / "first", "--forget", "c02", "--rounds", 2, "--out", tmp_path / "second")
    assert RunFolder(tmp_path / "second").result()["clients"] == ["c00", "c03", "c04"]
    assert str(feduhb.open_run(tmp_path / "second").forgot) == "c01,c02"


@pytest.mark.slow
@pytest.mark.usefixtures("blank_figures")
def test_compare_writes_both_runs_and_a_report(run, tmp_path, monkeypatch):
    said = invoke("compare", run, "--forget", "c00", "--rounds", 3, "--out", tmp_path / "both")
    assert "FedUHB" in said.stdout
    assert "Retrain" in said.stdout
    assert {"feduhb", "retrain", "report.html", "table.md", "curves.png"} <= {
        p.name for p in (tmp_path / "both").iterdir()
    }
    monkeypatch.setattr("feduhb.report.write_report", write_nothing)
    again = invoke(
        "compare", run, "--forget", "c00", "--rounds", 3, "--out", tmp_path / "both", "--resume", "--json"
    )
    assert [each["run"] for each in json.loads(again.stdout)["runs"]] == ["original", "FedUHB", "Retrain"]


@pytest.mark.slow
@pytest.mark.usefixtures("blank_figures")
def test_report(run, tmp_path):
    answer = json.loads(invoke("report", run, "--out", tmp_path / "report", "--json").stdout)
    assert str(tmp_path / "report" / "report.html") in answer["written"]


def test_version_and_help():
    assert invoke("--version").stdout == f"feduhb {feduhb.__version__}\n"
    for command in ("demo", "train", "unlearn", "compare", "report"):
        assert "Usage: " in invoke(command, "--help").stdout


def test_help_breaks_lines_where_the_terminal_does():
    folded = """One.

    Two and
    three.

    \b
    a = 1
    b = 2
    """
    assert join_lines(folded) == "One.\n\nTwo and three.\n\n\b\na = 1\nb = 2"


@pytest.mark.slow
@pytest.mark.usefixtures("blank_figures")
def test_the_demo_trains_unlearns_audits_and_reports(tmp_path, monkeypatch):
    """The demo runs with smaller settings, and its answer is unchanged."""
    out = tmp_path / "demo"
    with slow.small_demo():
        answer = json.loads(invoke("demo", "--out", out, "--json").stdout)
        monkeypatch.setattr("feduhb.report.write_report", write_nothing)
        said = invoke(
            "report", *(out / name for name in ("original", *demo.METHODS)), "--out", tmp_path / "again"
        )
        assert "dirichlet:0.2, seed 1" in demo.format_introduction()
    for name in ("original", "FedUHB", "Retrain", "FedEraser", "FedRecover"):
        assert name in said.stdout
    assert {"report.html", "curves.png", "movement.png", "backdoor.png"} <= {p.name for p in out.iterdir()}
    assert [each["rounds"] for each in answer["runs"]] == [3, 4, 4, 2, 3]
    slow.compare("demo", mask(answer))


def test_the_demo_does_not_clear_a_folder_that_is_not_its_own(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    RunFolder(tmp_path / "original").create("seed = 1")
    ended = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)])
    assert ended.exit_code == 2
    assert "is not empty and not from a demo; choose another folder with --out" in ended.stderr
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_history_is_kept_replayed_and_erased(run, tmp_path):
    """Training keeps it, a method with a setting of its own replays it, and the request erases it."""
    kept = tmp_path / "kept"
    invoke("train", run.parent / "config.toml", "--out", kept, "--keep-history")
    history = feduhb.open_run(kept).history
    assert history is not None
    assert len(history.rounds) == 3
    args = ("--method", "fedrecover", "--set", "warmup=3", "--set", "correction=0", "--json")
    answer = json.loads(invoke("unlearn", kept, "--forget", "c00", *args).stdout)
    assert (answer["exact"], answer["needs"], answer["settings"]["warmup"]) == (False, "each", 3)
    assert answer["history_bytes_read"] > 0
    assert feduhb.open_run(kept).history is None
    ended = CliRunner().invoke(app, ["unlearn", str(kept), "--forget", "c00", "--set", "speed"])
    assert "--set 'speed' is not NAME=NUMBER; write for example --set correction=0" in ended.stderr


def test_keep_history_keeps_the_precision_of_the_config(tmp_path):
    config = tmp_path / "config.toml"
    config.write_text(CONFIG + 'keep_history = "float16"\n')
    invoke("train", config, "--out", tmp_path / "run", "--keep-history")
    assert RunFolder(tmp_path / "run").config()["train"]["keep_history"] == "float16"


@pytest.mark.slow
def test_the_demos_settings_show_a_backdoor_that_is_forgotten():
    """On its real data the backdoor works, leaves with the leavers, and the rule stops before the last round."""
    from feduhb import demo

    how = demo.SETTINGS.train
    assert demo.SETTINGS.federation is not None
    federation = feduhb.load(
        "mnist-5k",
        partition=demo.SETTINGS.federation.partition,
        model="mlp",
        backdoor=demo.LEAVERS,
        seed=demo.SETTINGS.seed,
    )
    trained = feduhb.train(federation, how.rounds, epochs=how.epochs, batch_size=how.batch_size, lr=how.lr)
    unlearned = feduhb.unlearn(trained, demo.LEAVERS, rounds=demo.ROUNDS)
    assert trained.rounds[-1].scores["backdoor"] > 0.9
    assert unlearned.rounds[-1].scores["backdoor"] < 0.05
    assert unlearned.rounds[-1].scores["test_accuracy"] > 0.85
    assert len(unlearned.rounds) < demo.ROUNDS
