"""Own data and own methods on the command line: a module of the user's is named, and everything of a run works on it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import feduhb
from feduhb.methods import settings_of
from feduhb.runs.folder import RunFolder
from own_module import CONFIG, as_in_a_new_process, invoke, refuse, write_project

__all__ = ["as_in_a_new_process"]
FAST = ("--canaries", 0, "--relearn", 0)  # of an audit


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder with a module, a config and a trained run."""
    folder = tmp_path_factory.mktemp("wards")
    config = write_project(folder, "wards")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])
        invoke("train", config, "--out", folder / "runs" / "first")
    return folder


@pytest.fixture
def run(project, tmp_path):
    """A copy of the trained run."""
    return shutil.copytree(project / "runs" / "first", tmp_path / "first")


def read_weights(folder):
    return load_file(folder / "state.safetensors")["params"]


def test_the_config_of_the_run_records_the_function_and_nothing_else_of_the_data(run):
    config = RunFolder(run).config()
    assert config["federation"] == {"data": "wards.py:make"}
    assert config["seed"] == 3
    assert set(config["clients"]) == {"north", "south", "east", "west"}


def test_the_weights_are_those_of_the_same_training_in_python(run, project, monkeypatch):
    monkeypatch.syspath_prepend(project)
    import wards  # pyright: ignore[reportMissingImports]

    federation = wards.make().reseed(3)
    trained = feduhb.train(federation, 3, epochs=1, batch_size=8, lr=0.1, show=None)
    assert torch.equal(trained.params, read_weights(run))
    assert feduhb.open_run(run).seed == 3


def test_a_module_by_name_is_found_beside_the_config(tmp_path):
    config = write_project(tmp_path / "wards-b", "wards_b", data="wards_b:make")
    answer = json.loads(invoke("train", config, "--out", tmp_path / "run", "--json").stdout)
    assert answer["rounds"] == 3
    assert RunFolder(tmp_path / "run").config()["federation"] == {"data": "wards_b:make"}


def test_a_module_in_a_package_is_found_beside_the_config(tmp_path):
    package = tmp_path / "wards-c" / "wards_package" / "inner"
    write_project(package, "data")
    config = tmp_path / "wards-c" / "federation.toml"
    config.write_text(CONFIG.format("wards_package.inner.data:make"))
    invoke("train", config, "--out", tmp_path / "run")
    invoke("unlearn", tmp_path / "run", "--forget", "north", "--rounds", 2)


def test_a_file_in_another_folder_is_recorded_by_its_name_alone(tmp_path):
    write_project(tmp_path / "wards-d", "wards_d")
    config = tmp_path / "federation.toml"
    config.write_text(CONFIG.format("wards-d/wards_d.py:make"))
    invoke("train", config, "--out", tmp_path / "run")
    assert RunFolder(tmp_path / "run").config()["federation"] == {"data": "wards_d.py:make"}
    invoke("unlearn", tmp_path / "run", "--forget", "north", "--rounds", 2)


def test_nothing_beside_the_config_takes_the_place_of_an_installed_module(tmp_path):
    config = write_project(tmp_path / "wards-e", "wards_e")
    for name in ("json", "torch", "feduhb", "sklearn"):
        (config.parent / f"{name}.py").write_text("raise RuntimeError('code beside the config was run')")
    module = config.parent / "wards_e.py"
    module.write_text(f"{module.read_text()}\nimport json, sklearn\n")
    invoke("train", config, "--out", tmp_path / "run")
    assert sys.path[-1] == str(config.parent)
    config.write_text(CONFIG.format("json.py:make"))
    said = refuse("train", config, "--out", tmp_path / "next")
    assert said.startswith(f"feduhb: {config.parent}/json.py has the name of another module, ")
    assert said.endswith("; rename the file")
    config.write_text(CONFIG.format("json:make"))
    assert f"{json.__file__} does not define make" in refuse("train", config, "--out", tmp_path / "next")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("nowhere:make", "there is no module nowhere, which nowhere:make names, among the installed ones or in "),
        ("nowhere.inner:make", "there is no module nowhere.inner, which nowhere.inner:make names"),
        ("nowhere.py:make", "nowhere.py, which nowhere.py:make names; check the path"),
        ("wards.py:nothing", "wards.py does not define nothing; check the name in wards.py:nothing"),
        ("wards.py:raises", "wards.py:raises raised ValueError: the disk is gone; correct it"),
        ("wards.py:leaves", "wards.py:leaves raised SystemExit: 3; correct it"),
        ("wards.py:returns_tensors", "wards.py:returns_tensors returned a tuple; it must return a feduhb.Federation"),
        ("wards.py:A_NUMBER", "wards.py:A_NUMBER is an int and not a function; name a function that returns"),
        ("wards.py:draw", "wards.py:draw needs arguments (name, size); name a function without arguments"),
        ("folder/wards:make", "'folder/wards' has a slash but does not end in .py; write for example my_data.py:make"),
        ("wards.py", "'wards.py' does not name a function or class after a colon; write for example my_data.py:make"),
        ("wards:", "'wards:' does not name a function or class after a colon"),
        ("wards:make()", "'wards:make()' does not name a function or class after a colon"),
        ("wards-x.py:make", "'wards-x.py' cannot be the name of a module; write for example"),
        ("__main__:make", "'__main__' cannot be the name of a module; write for example"),
        ("sys:exit", "the module sys is not a file but <sys>; name a module with code of its own"),
        ("wards.make", "there is no data set 'wards.make'; choose one of "),
    ],
)  # fmt: skip
def test_data_that_cannot_be_made(project, tmp_path, data, says):
    (project / "other.toml").write_text(CONFIG.format(data))
    assert says in refuse("train", project / "other.toml", "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_module_that_cannot_be_imported(tmp_path):
    config = write_project(tmp_path / "wards-f", "wards_f")
    (config.parent / "wards_f.py").write_text("import nothing_of_this_name")
    said = refuse("train", config, "--out", tmp_path / "run")
    assert (
        "wards_f.py cannot be imported: ModuleNotFoundError: No module named 'nothing_of_this_name'" in said
    )


@pytest.mark.parametrize(
    "line", ["clients = 4", 'partition = "iid"', "held_out = 0.5", 'model = "mlp"', "seed = 1", "typo = 3"]
)
def test_keys_that_do_not_apply_to_own_data(project, tmp_path, line):
    text = CONFIG.format("wards.py:make").replace("[train]", f"{line}\n[train]")
    (project / "other.toml").write_text(text)
    said = refuse("train", project / "other.toml", "--out", tmp_path / "run")
    key = line.partition(" ")[0]
    assert (
        f"federation.{key} does not apply to data from code, 'wards.py:make', which returns the whole federation; remove it"
        in said
    )


def test_clients_and_rows_are_forgotten_one_after_the_other(run):
    invoke("unlearn", run, "--forget", "south:0-3", "--rounds", 3)
    invoke("unlearn", run.with_name("first-feduhb"), "--forget", "north", "--rounds", 3)
    last = run.with_name("first-feduhb-feduhb")
    assert RunFolder(last).config()["unlearn"]["forget"] == "north,south:0-3"
    assert RunFolder(last).result()["clients"] == ["east", "south", "west"]
    assert RunFolder(last).config()["federation"] == {"data": "wards.py:make"}


def test_a_training_and_an_unlearning_that_were_killed_are_resumed(project, commands, tmp_path):
    config, run = project / "federation.toml", tmp_path / "first"
    for command, place in (
        (("train", config), run),
        (
            ("unlearn", run, "--forget", "north", "--rounds", 3, "--method", "wards.py:Lookahead"),
            tmp_path / "new",
        ),
    ):
        whole = commands.feduhb(*command, "--out", tmp_path / "whole", cwd=project)
        assert whole.returncode == 0, whole.stderr
        killed = commands.feduhb(*command, "--out", place, kill_at=whole.moments * 2 // 3, cwd=project)
        assert killed.returncode == -9
        assert not RunFolder(place).is_finished()
        again = commands.feduhb(*command, "--out", place, "--resume", cwd=project)
        assert again.returncode == 0, again.stderr
        assert torch.equal(read_weights(place), read_weights(tmp_path / "whole"))
        shutil.rmtree(tmp_path / "whole")
    feduhb.open_run(tmp_path / "new")  # trusted


@pytest.mark.slow
@pytest.mark.usefixtures("blank_figures")
def test_from_a_request_to_its_tombstone(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where the module is not
    new = run.with_name("first-feduhb")
    invoke("unlearn", run, "--forget", "north", "--rounds", 3, "--stop", "never")
    audited = json.loads(invoke("audit", new, "--original", run, *FAST, "--json").stdout)["audits"][0]
    assert audited["verdict"]["word"] == "forgotten"
    compared = json.loads(
        invoke(
            "compare", new, "--forget", "south", "--rounds", 2, "--out", tmp_path / "both", "--json"
        ).stdout
    )
    assert len(compared["runs"]) == 3
    feduhb.open_run(tmp_path / "both" / "retrain")  # trusted
    invoke("report", run, new, "--out", tmp_path / "page")
    assert "wards.py:make" in (tmp_path / "page" / "report.html").read_text()
    assert json.loads(invoke("status", tmp_path, "--json").stdout)["runs"]
    invoke("verify", new / "state.safetensors", new)
    tombstone = json.loads(invoke("retire", run, "--replaced-by", new, "--json").stdout)["retired"][0]
    assert "trust.json" in {each["name"] for each in tombstone["deleted"]}
    assert tombstone["left"] == []
    assert not (run / "trust.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("named", ["wards.py:Lookahead", "wards:Lookahead", "wards:GENTLE"])
def test_a_method_of_ones_own(run, project, monkeypatch, named):
    monkeypatch.chdir(project)
    new = run.with_name("first-lookahead")
    invoke("unlearn", run, "--forget", "north", "--rounds", 3, "--method", named, "--set", "momentum=0.5")
    config = RunFolder(new).config()["unlearn"]
    assert (config["method"], config["code"]) == ("lookahead", named)
    assert config["settings"] == {"momentum": 0.5, "epochs": 1}
    monkeypatch.chdir(run.parent)
    opened = feduhb.open_run(new)
    assert (type(opened.method).__name__, settings_of(opened.method)["momentum"]) == ("Lookahead", 0.5)
    audited = json.loads(invoke("audit", new, "--original", run, *FAST, "--json").stdout)["audits"][0]
    assert audited["method"] == "lookahead"
    # An audit of own code never concludes more, with so small a model.
    assert audited["verdict"]["word"] == "inconclusive"
    again = "Trained and unlearned again, with noise in place of the forgotten data: the same weights, bit for bit."
    assert again in audited["verdict"]["reasons"]


def test_methods_of_ones_own_are_compared(run, project, monkeypatch, tmp_path):
    monkeypatch.chdir(project)
    monkeypatch.setattr("feduhb.report.write_report", lambda *_: [])
    methods = "retrain,wards:Lookahead,wards.py:GENTLE"
    out = tmp_path / "all"
    invoke("compare", run, "--forget", "north", "--rounds", 2, "--methods", methods, "--out", out)
    assert {place.name for place in out.iterdir()} >= {"retrain", "lookahead", "lookahead-2"}
    assert settings_of(feduhb.open_run(out / "lookahead").method)["momentum"] == 0.9
    assert settings_of(feduhb.open_run(out / "lookahead-2").method)["momentum"] == 0.3


@pytest.mark.parametrize(
    ("method", "more", "says"),
    [
        ("wards:make", (), "wards:make is not a method: it has no init; name a class that inherits from feduhb.Method"),
        ("wards:Nothing", (), "wards.py does not define Nothing; check the name in wards:Nothing"),
        ("wards:Lookahead", ("speed=3",), "Lookahead has no setting speed; it knows momentum, epochs"),
        ("wards:Lookahead", ("momentum=2",), "momentum must be below 1; give other settings"),
        ("wards:Misnamed", (), "has the name '../escape', which cannot name a folder; use letters, digits and dashes"),
        ("elsewhere:Lookahead", (), "there is no module elsewhere, which elsewhere:Lookahead names"),
    ],
)  # fmt: skip
def test_methods_that_cannot_be_made(run, project, monkeypatch, method, more, says):
    monkeypatch.chdir(project)
    settings = [word for one in more for word in ("--set", one)]
    assert says in refuse("unlearn", run, "--forget", "north", "--method", method, *settings)


@pytest.fixture
def made_in_python(project, tmp_path, monkeypatch):
    """A training and an unlearning by an own method, both made in Python from the same module."""
    with monkeypatch.context() as patch:
        patch.syspath_prepend(project)
        import wards  # pyright: ignore[reportMissingImports]

        trained = feduhb.train(wards.make(), 2, epochs=1, out=tmp_path / "made", show=None)
        method = wards.Lookahead(epochs=1)
        feduhb.unlearn(trained, ["north"], method=method, rounds=2, out=tmp_path / "made-new", show=None)
    for name in ("made", "made-new"):
        assert "federation" not in RunFolder(tmp_path / name).config()
        assert not (tmp_path / name / "trust.json").exists()
    del sys.modules["wards"]
    return tmp_path / "made"


@pytest.mark.slow
def test_runs_made_in_python_are_opened_by_naming_their_code(made_in_python, project, monkeypatch):
    run, new = made_in_python, made_in_python.with_name("made-new")
    for command in (
        ("audit", new),
        ("unlearn", run, "--forget", "north"),
        ("compare", run, "--forget", "north"),
    ):
        assert refuse(*command).endswith(
            "or name a function that returns the federation: --data-from my_data.py:make (in Python data_from=)"
        )
    data = ("--data-from", os.path.relpath(project / "wards.py", run.parent) + ":make")
    monkeypatch.chdir(run.parent)
    assert "or name its class: --method-from my_methods.py:Mine" in refuse("audit", new, *data)
    method = ("--method-from", f"{project}/wards.py:Lookahead")
    audited = json.loads(invoke("audit", new, "--original", run, *FAST, *data, *method, "--json").stdout)
    assert audited["audits"][0]["method"] == "lookahead"
    invoke("unlearn", new, "--forget", "south", "--rounds", 2, *data, *method)
    derived = RunFolder(run.with_name("made-new-feduhb")).config()
    assert derived["federation"] == {"data": "wards.py:make"}
    invoke("unlearn", run.with_name("made-new-feduhb"), "--forget", "east", "--rounds", 2)


def test_runs_made_in_python_are_resumed_by_naming_their_code(made_in_python, project):
    run, new = made_in_python, made_in_python.with_name("made-new")
    for folder in (run, new):
        (folder / "result.json").rename(folder / "before.json")  # as if it had been killed
    config = project / "python.toml"
    config.write_text('seed = 99\n[federation]\ndata = "wards.py:make"\n[train]\nrounds = 2\nepochs = 1\n')
    invoke("train", config, "--out", run, "--resume")
    code = ("--data-from", f"{project}/wards.py:make", "--method", f"{project}/wards.py:Lookahead")
    invoke("unlearn", run, "--forget", "north", "--rounds", 2, *code, "--out", new, "--resume")
    for folder in (run, new):
        digests = [
            json.loads((folder / name).read_text())["weights_sha256"]
            for name in ("before.json", "result.json")
        ]
        assert digests[0] == digests[1]
        assert "wards" not in (folder / "config.toml").read_text()
    config.write_text(config.read_text().replace("rounds = 2", "rounds = 3"))
    assert "was started with train.rounds = 2, not 3" in refuse("train", config, "--out", run, "--resume")


def test_other_data_is_refused(run, project, tmp_path, monkeypatch):
    other = write_project(tmp_path / "wards-g", "wards_g").with_name("wards_g.py")
    other.write_text(other.read_text().replace("* 4", "* 5"))
    said = refuse("unlearn", run, "--forget", "north", "--data-from", f"{other}:make")
    assert "was made with other data of client east; give that data" in said
    monkeypatch.chdir(project)
    invoke("unlearn", run, "--forget", "north", "--rounds", 2, "--data-from", "wards:make")


def test_two_modules_of_one_name_are_refused(run, project, tmp_path):
    write_project(tmp_path / "wards-h", "wards")
    feduhb.open_run(run)
    said = refuse("unlearn", run, "--forget", "north", "--data-from", f"{tmp_path}/wards-h/wards.py:make")
    assert f"wards-h/wards.py has the name of another module, {project}/wards.py; rename the file" in said


def test_two_modules_of_one_name_are_refused_by_name_too(run, tmp_path, monkeypatch):
    write_project(tmp_path / "wards-i", "wards")
    feduhb.open_run(run)
    monkeypatch.chdir(tmp_path / "wards-i")
    said = refuse("unlearn", run, "--forget", "north", "--method", "wards:Lookahead")
    assert "wards-i and in" in said
    assert "rename one of the two modules" in said


def test_a_config_that_a_run_wrote_does_not_make_anybody_run_its_code(run, tmp_path):
    (run / "wards.py").write_text("raise SystemExit('run')")
    said = refuse("train", run / "config.toml", "--out", tmp_path / "again")
    assert "this config was written by a run, which may be anybody's, and names code, 'wards.py:make'" in said
    lines = (run / "config.toml").read_text().splitlines(keepends=True)
    (run / "config.toml").write_text("".join(line for line in lines if not line.startswith("made_by")))
    assert refuse("train", run / "config.toml", "--out", tmp_path / "again") == said


def test_status_names_the_code_of_a_method_to_resume(run, project, monkeypatch):
    monkeypatch.chdir(project)
    invoke("unlearn", run, "--forget", "north", "--rounds", 2, "--method", "wards:Lookahead")
    (run.with_name("first-lookahead") / "result.json").unlink()
    steps = json.loads(invoke("status", run.parent, "--json").stdout)["steps"]
    assert "--method wards:Lookahead --out" in steps[0]["command"], steps


def test_help_shows_the_form():
    said = invoke("train", "--help").stdout
    assert 'data = "my_data.py:make"' in said
    for command in ("unlearn", "compare", "audit"):
        told = invoke(command, "--help").stdout
        assert "--data-from" in told
        assert "--method-from" in told


def test_the_working_directory_is_not_searched_by_processes(project, tmp_path):
    """In a real process with Python's safe path, from a folder with modules named like installed ones."""
    config = (
        shutil.copytree(project, tmp_path / "wards-i", ignore=shutil.ignore_patterns("runs"))
        / "federation.toml"
    )
    for name in ("json", "queue", "cloudpickle"):
        (config.parent / f"{name}.py").write_text("raise RuntimeError('code beside the config was run')")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    program = [sys.executable, "-P", "-m", "feduhb"]
    for command in (
        ["train", str(config), "--out", "run"],
        ["unlearn", "run", "--forget", "north", "--rounds", "1"],
    ):
        ended = subprocess.run(
            [*program, *command], cwd=config.parent, env=environment, capture_output=True, text=True, check=False
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
    assert (Path(config.parent) / "run-feduhb" / "trust.json").exists()
