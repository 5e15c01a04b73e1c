"""Opening a run folder imports no code of its own, unless its user named that code again or trusted the folder."""

import hashlib
import json
import shutil
import sys

import pytest

import feduhb
from feduhb.errors import ConfigError, RunFolderError
from feduhb.runs.folder import RunFolder
from own_module import as_in_a_new_process, forget_modules, invoke, refuse, was_imported, write_project

__all__ = ["as_in_a_new_process"]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder with a module, and runs of its data: a training, and an unlearning by its method."""
    folder = tmp_path_factory.mktemp("wards")
    config = write_project(folder, "wards")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])
        patch.chdir(folder)
        invoke("train", config, "--out", "runs/first")
        invoke("unlearn", "runs/first", "--forget", "north", "--rounds", 2, "--method", "wards.py:Lookahead")
    return folder


@pytest.fixture
def runs(project, tmp_path, monkeypatch):
    """Copies of both runs in a folder without the module, which is the working directory."""
    shutil.copytree(project / "runs", tmp_path / "runs")
    was_imported(project)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


@pytest.fixture
def foreign(runs, tmp_path, monkeypatch):
    """The same, as another user finds them."""
    monkeypatch.setenv("FEDUHB_STATE", str(tmp_path / "another"))
    return runs


COMMANDS = {  # whether it opens a run, and so imports the code of a trusted one
    "unlearn": (True, ("runs/first-lookahead", "--forget", "south", "--rounds", "1", "--out", "new")),
    "compare": (True, ("runs/first", "--forget", "south", "--rounds", "1", "--methods", "retrain", "--out", "new")),
    "audit": (True, ("runs/first-lookahead", "--no-exactness", "--canaries", "0", "--relearn", "0")),
    "report": (False, ("runs/first", "runs/first-lookahead", "--out", "page")),
    "status": (False, ("runs",)),
    "verify": (False, ("runs/first/state.safetensors", "runs/first")),
    "retire": (False, ("runs/first", "--unaudited", "a test")),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("blank_figures")
@pytest.mark.parametrize("name", COMMANDS)
def test_what_commands_import_of_a_trusted_run(runs, project, name):  # noqa: ARG001
    opens, arguments = COMMANDS[name]
    invoke(name, *arguments)
    assert was_imported(project) is opens


@pytest.mark.usefixtures("foreign", "blank_figures")
@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_imports_code_of_a_foreign_run(project, name, monkeypatch):
    monkeypatch.syspath_prepend(project)  # even if it could be found
    opens, arguments = COMMANDS[name]
    run = arguments[0]
    if opens:
        assert refuse(name, *arguments) == (
            f"feduhb: the data of {run} comes from code, 'wards.py:make', which is not run unless you permit it; if you trust it, "
            f"name it again: --data-from wards.py:make (in Python data_from=), or trust the run: feduhb trust {run}"
        )
    else:
        invoke(name, *arguments)
    assert not was_imported(project)
    assert "wards" not in sys.modules


@pytest.mark.usefixtures("foreign")
def test_weights_and_card_of_a_foreign_run_are_written_without_its_code(project, monkeypatch):
    monkeypatch.syspath_prepend(project)
    for name in ("model.safetensors", "card.md"):
        assert invoke("export", "runs/first-lookahead", "--out", name).stdout == f"{name}\n"
    assert "ONNX needs the module" in refuse("export", "runs/first", "--out", "model.onnx")
    assert not was_imported(project)
    assert "wards" not in sys.modules


def test_python_imports_no_code_of_a_foreign_run_either(foreign, project):
    with pytest.raises(RunFolderError, match=r"comes from code, 'wards\.py:make', which is not run unless"):
        feduhb.open_run(foreign / "first")
    assert not was_imported(project)
    opened = feduhb.open_run(foreign / "first", data_from=f"{project}/wards.py:make")
    assert opened.seed == 3
    with pytest.raises(
        RunFolderError,
        match=r"the method of .* comes from code, 'wards\.py:Lookahead', which .* --method-from",
    ):
        feduhb.open_run(foreign / "first-lookahead", opened.federation)
    named = feduhb.open_run(
        foreign / "first-lookahead", opened.federation, method_from=f"{project}/wards.py:Lookahead"
    )
    assert named.method.name == "lookahead"
    with pytest.raises(ConfigError, match="federation and data_from both give the data; give one of them"):
        feduhb.open_run(foreign / "first", opened.federation, data_from="wards:make")


def test_naming_code_once_trusts_nothing_but_what_is_made_of_it(foreign, project):
    data = ("--data-from", f"{project}/wards.py:make")
    invoke("unlearn", "runs/first", "--forget", "north", "--rounds", 1, "--out", "new", *data)
    invoke("unlearn", "new", "--forget", "east", "--rounds", 1)
    assert "not run unless you permit it" in refuse("unlearn", "runs/first", "--forget", "north")
    assert (foreign.parent / "new-feduhb").exists()


def test_trusting_a_run_prints_its_code_and_imports_nothing(foreign, project, monkeypatch):
    said = refuse("trust", foreign / "first")
    assert said == (
        f"feduhb: there is no file {foreign.parent}/wards.py, which wards.py:make names; check the path, "
        "or go to the folder that holds it and trust the run there"
    )
    monkeypatch.chdir(project)
    digest = hashlib.sha256((project / "wards.py").read_bytes()).hexdigest()
    told = invoke("trust", foreign / "first-lookahead").stdout.splitlines()
    assert told == [
        f"wards.py:make will be run from {project}/wards.py", f"  SHA-256 {digest}",
        f"wards.py:Lookahead will be run from {project}/wards.py", f"  SHA-256 {digest}",
        f"{foreign}/first-lookahead is trusted: commands and feduhb.open_run import this code, and what it imports",
    ]  # fmt: skip
    answer = json.loads(invoke("trust", foreign / "first", "--json").stdout)
    file = str(project / "wards.py")
    assert answer["trusted"] == [{"code": "wards.py:make", "file": file, "sha256": digest}]
    assert not was_imported(project)
    monkeypatch.chdir(foreign)
    assert feduhb.open_run("first-lookahead").method.name == "lookahead"
    assert feduhb.open_run("first").seed == 3


def test_trust_moves_with_the_folder(runs, project):
    moved = runs.rename(runs.parent / "elsewhere")
    feduhb.open_run(moved / "first")
    assert was_imported(project)


def test_a_changed_config_is_not_trusted(runs):
    path = runs / "first" / "config.toml"
    path.write_text(path.read_text().replace("wards.py:make", "wards.py:raises"))
    with pytest.raises(RunFolderError, match=r"comes from code, 'wards\.py:raises', which is not run"):
        feduhb.open_run(runs / "first")
    path.write_text(
        path.read_text().replace("wards.py:raises", "wards.py:make").replace("seed = 3", "seed = 4")
    )
    with pytest.raises(RunFolderError, match="is not run unless you permit it"):
        feduhb.open_run(runs / "first")


def change(found, **changes):
    return {**found, "code": {"data": {**found["code"]["data"], **changes}}}


@pytest.mark.parametrize(
    "forge",
    [
        lambda found: change(found, folder="/somewhere"),
        lambda found: change(found, text="wards.py:raises"),
        lambda found: {**found, "signature": "0" * 64},
        lambda found: {**found, "signature": "\u00e4"},
        lambda found: {"code": found["code"]},
        lambda found: {**found, "code": {"other": found["code"]["data"]}},
        lambda found: [found],
        lambda _: {},
    ],
)  # fmt: skip
def test_a_forged_or_damaged_file_is_no_trust(runs, project, forge):
    path = runs / "first" / "trust.json"
    path.write_text(json.dumps(forge(json.loads(path.read_text()))))
    with pytest.raises(RunFolderError, match="is not run unless you permit it"):
        feduhb.open_run(runs / "first")
    for damage in (b"", b"\xff", b"{"):
        path.write_bytes(damage)
        with pytest.raises(RunFolderError, match="is not run unless you permit it"):
            feduhb.open_run(runs / "first")
    path.unlink()
    path.mkdir()
    with pytest.raises(RunFolderError, match="is not run unless you permit it"):
        feduhb.open_run(runs / "first")
    path.rmdir()
    assert "is not run unless you permit it" in refuse("unlearn", runs / "first", "--forget", "north")
    assert not was_imported(project)


def test_the_trust_of_one_run_does_not_fit_another(runs, project):
    shutil.copy(runs / "first" / "trust.json", runs / "first-lookahead" / "trust.json")
    with pytest.raises(RunFolderError, match="is not run unless you permit it"):
        feduhb.open_run(runs / "first-lookahead")
    assert not was_imported(project)


def test_code_that_was_moved_must_be_trusted_again(tmp_path, monkeypatch):
    config = write_project(tmp_path / "wards-a", "wards_moved")
    invoke("train", config, "--out", tmp_path / "run")
    config.parent.rename(tmp_path / "wards-b")
    forget_modules([*sys.path])
    assert refuse("unlearn", tmp_path / "run", "--forget", "north") == (
        f"feduhb: there is no file {config.parent}/wards_moved.py, which wards_moved.py:make names; check the path, "
        f"or go to the folder that holds it now: feduhb trust {tmp_path}/run"
    )
    monkeypatch.chdir(tmp_path / "wards-b")
    invoke("trust", tmp_path / "run")
    invoke("unlearn", tmp_path / "run", "--forget", "north", "--rounds", 1)


@pytest.mark.parametrize("data", ["../wards.py:make", "$(touch x)/wards.py:make", "\x1b[2J:make"])
def test_odd_names_in_a_foreign_config(foreign, data, project):
    path = foreign / "first" / "config.toml"
    path.write_text(path.read_text().replace('"wards.py:make"', json.dumps(data)))
    (foreign.parent / "wards.py").write_text((project / "wards.py").read_text())
    said = refuse("unlearn", "runs/first", "--forget", "north")
    assert "\x1b" not in said
    assert "--data-from $" not in said
    assert refuse("trust", "runs/first").isprintable()
    assert "wards" not in sys.modules


def test_a_run_that_names_no_code_cannot_be_trusted(tmp_path):
    feduhb.train(
        feduhb.load("digits", clients=2, model="softmax"), 1, epochs=1, out=tmp_path / "run", show=None
    )
    said = refuse("trust", tmp_path / "run")
    assert f"{tmp_path}/run names no code to trust" in said
    assert "trust.json" not in {path.name for path in (tmp_path / "run").iterdir()}
    assert "is not a run folder" in refuse("trust", tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"lookahead"', '"polyak"', "was made by the method 'lookahead', but its code defines 'polyak' now; name that method with --method"),
        ("momentum", "beta", "was made by another version of its method: Lookahead has no setting momentum; it knows beta, epochs"),
    ],
)  # fmt: skip
def test_a_method_that_changed_is_refused(tmp_path, monkeypatch, old, new, says):
    config = write_project(tmp_path / "wards-c", "wards")
    monkeypatch.chdir(config.parent)
    invoke("train", config, "--out", "run")
    invoke("unlearn", "run", "--forget", "north", "--rounds", 1, "--method", "wards:Lookahead")
    module = config.with_name("wards.py")
    module.write_text(module.read_text().replace(old, new))
    forget_modules([*sys.path])
    with pytest.raises(RunFolderError, match=says):
        feduhb.open_run("run-lookahead")


def test_the_file_is_private_and_written_before_the_config(runs):
    found = RunFolder(runs / "first")
    assert (found.path / "trust.json").stat().st_mode & 0o077 == 0
    assert json.loads((found.path / "trust.json").read_text())["code"]["data"]["text"] == "wards.py:make"
