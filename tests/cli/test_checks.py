"""Audit, theorem and the sweep over momenta, as a person and as a program would use them."""

import json
import shutil

import pytest
from typer.testing import CliRunner

import feduhb
from feduhb.cli import app

CONFIG = """
seed = 4
[federation]
data = "digits"
clients = 5
[federation.canaries]
clients = ["c00", "c01"]
[train]
rounds = 3
epochs = 1
batch_size = 16
lr = 0.05
"""

pytestmark = pytest.mark.usefixtures("blank_figures")


def invoke(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def run_command(*arguments):
    ended = invoke(*arguments)
    assert ended.exit_code == 0, ended.output
    return ended


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checks")
    (folder / "config.toml").write_text(CONFIG)
    run_command("train", folder / "config.toml", "--out", folder / "run")
    run_command("unlearn", folder / "run", "--forget", "c00,c01", "--rounds", 4)
    run_command("unlearn", folder / "run", "--forget", "c00,c01", "--rounds", 3, "--method", "retrain")
    return folder / "run"


def find_beside(run, word):
    return run.with_name(f"run-{word}")


@pytest.mark.slow
def test_an_audit_for_a_person(run):
    ended = run_command(
        "audit", find_beside(run, "feduhb"), "--original", run, "--retrain", find_beside(run, "retrain")
    )
    lines = ended.stdout.splitlines()
    assert lines[0] == "feduhb without c00,c01: FORGOTTEN"
    assert lines[-1] == str(find_beside(run, "feduhb") / "audit.json")
    for part in (
        "Membership, loss on canaries",
        "MISR (as in the paper)",
        "Accuracy ",
        "Cost ",
        "Remaining clients",
    ):
        assert part in ended.stdout
    steps = [line for line in ended.stderr.splitlines() if line.startswith("audit ")]
    assert steps[0] == "audit 1/7  noise: training"
    assert steps[-1].startswith("audit 7/7  relearning: retrain")
    said = ended.stderr.splitlines()
    assert said[0].startswith("Forecast for all forgotten data: ")
    assert said[1].startswith("Forecast for canaries: ")
    assert said[2] == steps[0], "the forecast comes first"
    assert said[1] in " ".join(ended.stdout.split())
    assert not (find_beside(run, "feduhb") / "audit-work").exists()


@pytest.mark.slow
def test_an_audit_for_a_program_makes_its_controls_and_keeps_the_earlier_one(run):
    folder = find_beside(run, "feduhb")
    run_command("audit", folder, "--no-exactness", "--relearn", 0, "--json")
    answer = json.loads(run_command("audit", folder, "--no-exactness", "--relearn", 0, "--json").stdout)
    assert answer["audits"] == [json.loads((folder / "audit.json").read_text())]
    found = answer["audits"][0]
    assert found["verdict"]["word"] in {"inconclusive", "not caught"}
    assert found["exactness"] is None
    assert found["settings"]["relearn"] == 0
    earlier = [path for path in folder.glob("audit-*.json") if "T" in path.name]
    assert earlier
    assert json.loads(earlier[0].read_text())["verdict"]


@pytest.mark.slow
def test_several_runs_at_once_and_a_report_of_them(run, tmp_path):
    runs = [find_beside(run, word) for word in ("feduhb", "retrain")]
    run_command("audit", *runs, "--original", run, "--retrain", runs[1], "--relearn", 0)
    said = run_command("report", run, *runs, "--out", tmp_path / "report").stdout
    assert "forgotten" in said
    assert {"audit.md", "audit.tex", "audit.png", "clients.png"} <= {
        p.name for p in (tmp_path / "report").iterdir()
    }
    assert (tmp_path / "report" / "report.html").read_text().count('class="badge forgotten"') >= 2


@pytest.mark.slow
def test_two_seeds_on_the_same_data_are_combined(run, tmp_path):
    trained = feduhb.open_run(run)
    runs = [tmp_path / str(seed) for seed in (8, 9)]
    for folder in runs:
        feduhb.unlearn(
            trained.reseed(int(folder.name)), ["c00"], rounds=1, out=folder, erase_history=False, show=None
        )
    asked = ("audit", *runs, "--original", run, "--no-exactness", "--relearn", 0)
    answer = json.loads(run_command(*asked, "--json").stdout)
    combined = answer["over_seeds"]
    assert [one["attack"] for one in combined] == [one["attack"] for one in answer["audits"][0]["membership"]]
    parts = [one["membership"][0]["against_retrain"] for one in answer["audits"]]
    first = combined[0]["against_retrain"]
    assert combined[0]["seeds"] == [8, 9]
    assert first["value"] == pytest.approx((parts[0]["value"] + parts[1]["value"]) / 2)
    assert first["se"] == pytest.approx((parts[0]["se"] + parts[1]["se"]) / 2)
    low, high = first["interval"]["low"], first["interval"]["high"]
    line = f"over 2 seeds: AUC(audited) - AUC(Retrain) {first['value']:+.3f} [{low:+.3f}, {high:+.3f}]"
    said = run_command(*asked).stdout.splitlines()
    assert said[-len(combined) - 3] == f"feduhb, loss on all forgotten data, {line}"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run"], "this run has not forgotten anything; audit a run that feduhb unlearn made"),
        (["nowhere"], "nowhere is not a run folder"),
        (["run-feduhb", "--shadows", 3], "give 0, or an even number of 4 or more, such as 16"),
        (["run-feduhb", "--canaries", 2], "canaries is 2.0; give a share of 0 (none) to 1"),
        (["run-feduhb", "--relearn", -1], "relearn is -1"),
        (["run-feduhb", "--margin", 0.6], "margin is 0.6; give a number between 0 and 0.5"),
        (["run-feduhb", "--original", "run-retrain"], "has forgotten c00,c01 and the audited run c00,c01; give the run before the request"),
        (["run-feduhb", "run-retrain/../run-feduhb"], "run-feduhb is named twice; name each run once"),
        (["run-feduhb", "--retrain", "run"], "give a run of retrain that has forgotten c00,c01"),
    ],
)  # fmt: skip
def test_what_an_audit_refuses(run, arguments, words):
    paths = [str(run.parent / a) if str(a).startswith(("run", "nowhere")) else a for a in arguments]
    ended = invoke("audit", *paths)
    assert ended.exit_code == 2
    assert words in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.slow
def test_the_figure_on_beta(run, tmp_path):
    run_command(
        "compare",
        run,
        "--forget",
        "c00",
        "--momenta",
        "0,0.5,0.9",
        "--rounds",
        3,
        "--out",
        tmp_path / "sweep",
    )
    made = {path.name for path in (tmp_path / "sweep").iterdir()}
    assert {"retrain", "feduhb-0", "feduhb-0.5", "feduhb-0.9", "beta.png", "beta.pdf"} <= made
    config = (tmp_path / "sweep" / "feduhb-0.5" / "config.toml").read_text()
    assert "momentum = 0.5" in config
    assert "[unlearn.stop]" not in config


@pytest.mark.parametrize(
    ("momenta", "words"), [("0,1.5", "momentum is 1.5"), ("a", "--momenta 'a' is not a list of numbers")]
)
def test_a_bad_momentum_is_refused_before_anything_trains(run, tmp_path, momenta, words):
    ended = invoke("compare", run, "--forget", "c00", "--momenta", momenta, "--out", tmp_path / "sweep")
    assert ended.exit_code == 2
    assert words in ended.stderr
    assert not (tmp_path / "sweep").exists()


@pytest.mark.slow
def test_the_theorem(tmp_path):
    arguments = ("--data", "digits", "--clients", 4, "--rounds", 20, "--betas", "0,0.5", "--out", tmp_path)
    answer = json.loads(run_command("theorem", *arguments, "--json").stdout)
    assert [
        (tmp_path / name).exists() for name in ("theorem.json", "theorem.html", "theorem.png", "theorem.md")
    ] == [True] * 4
    assert len(answer["written"]) == len(list(tmp_path.iterdir()))
    shutil.rmtree(tmp_path)
    ended = invoke("theorem", "--betas", "0,1", "--data", "digits", "--out", tmp_path)
    assert ended.exit_code == 2
    assert "1" in ended.stderr
    assert not tmp_path.exists()
