"""Code and commands of the pages run as they are printed, each snippet alone: nothing is added to them."""

import json
import re
import runpy
import shlex
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

import feduhb
from data.tables import make_patients
from feduhb.cli import app
from feduhb.data.load import DATASETS, PLUGINS
from feduhb.engines import ENGINES
from feduhb.runs.folder import RunFolder
from plugging import install_package

ROOT = Path(__file__).parents[2]
EXTENDING = (ROOT / "docs" / "extending.md").read_text()
ERASURE = (ROOT / "docs" / "erasure.md").read_text()
CONFIG = """
seed = 1
[federation]
data = "digits"
clients = 9
per_client = 24
model = "softmax"
[train]
rounds = 3
epochs = 1
lr = 0.1
keep_history = true
"""


def section(page, title):
    (found,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
    return found


def blocks(text, language):
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def ran(text, folder, monkeypatch):
    """Run a section's only snippet in a folder of its own, and give the names that it made."""
    (code,) = blocks(text, "python")
    monkeypatch.chdir(folder)
    (folder / "snippet.py").write_text(code)
    return runpy.run_path(str(folder / "snippet.py"), run_name="snippet")


def test_the_method_of_the_extending_page(tmp_path, monkeypatch):
    found = ran(section(EXTENDING, "Adding a method"), tmp_path, monkeypatch)
    new, again = found["new"], found["again"]
    assert new.method.name == again.method.name == "sign"
    assert len(new.rounds) == 2
    assert new.params.equal(again.params)
    step = new.rounds[0].moved / new.params.numel() ** 0.5  # each weight moves by step_size, or not at all
    assert 0 < step <= new.method.step_size * (1 + 1e-6)
    with pytest.raises(feduhb.FeduhbError, match="of your own \\(sign\\)"):
        feduhb.open_run("runs/sign")


def test_the_models_page(tmp_path, monkeypatch):
    code = "\n".join(blocks((ROOT / "docs" / "models.md").read_text(), "python"))
    found = ran(f"```python\n{code}```", tmp_path, monkeypatch)
    assert found["without"].forgot.clients == ("c03",)
    assert found["augmented"].augment is found["flip"]
    head = feduhb.train(found["head"], 1, epochs=1, show=None)
    assert head.params.numel() == 330  # of the last layer alone


def test_the_data_page(tmp_path, monkeypatch):
    code = "\n".join(blocks((ROOT / "docs" / "data.md").read_text(), "python"))
    found = ran(f"```python\n{code}```", tmp_path, monkeypatch)
    assert found["without"].forgot.clients == ("south",)
    x, y = found["patients"].clients["ward"].all()
    assert (x.dtype, y.dtype, list(x.shape)) == (torch.float32, torch.int64, [3, 2])
    for made in (found["shops"], found["hospitals"]):
        assert len(feduhb.train(made, 1, epochs=1, show=None).rounds) == 1


def test_the_rule_of_the_extending_page(tmp_path, monkeypatch):
    found = ran(section(EXTENDING, "Adding an aggregation rule"), tmp_path, monkeypatch)
    new, again = found["new"], found["again"]
    assert new.method.needs == "each"
    assert new.params.equal(again.params)
    assert RunFolder(Path("runs/clipped")).config()["unlearn"]["settings"]["aggregate"] == "clipped"
    assert new.rounds[0].moved <= 1 + 1e-6
    with pytest.raises(feduhb.FeduhbError, match="of your own \\(feduhb with clipped\\)"):
        feduhb.open_run("runs/clipped")
    with pytest.raises(feduhb.FeduhbError, match="give the name of a rule"):
        feduhb.train(found["trained"].federation, 1, aggregate=found["clipped"])


def test_the_data_set_of_the_extending_page(tmp_path, monkeypatch):
    found = ran(section(EXTENDING, "Adding a data set"), tmp_path, monkeypatch)
    assert found["trained"].params.equal(found["again"].params)
    assert list(found["again"].federation.clients) == ["north", "south", "west"]
    with pytest.raises(feduhb.FeduhbError, match="came from Python code"):
        feduhb.open_run("runs/wards")


def test_the_package_with_a_data_set_of_the_extending_page(tmp_path, monkeypatch):
    text = section(EXTENDING, "Adding a data set")
    (toml,), (code,) = blocks(text, "toml"), blocks(text, "py")
    (group, entries), *others = tomllib.loads(toml)["project"]["entry-points"].items()
    assert (group, others) == (PLUGINS, [])
    lines = [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    install_package(tmp_path, monkeypatch, "ward_data", code, "\n".join(lines))
    x, y = torch.linspace(-1, 1, 96).reshape(24, 4), torch.arange(24) % 3
    torch.save({"x": x, "y": y, "test_x": x, "test_y": y}, tmp_path / "wards.pt")
    wards = feduhb.load("wards", clients=3, data=tmp_path)
    assert [len(examples) for examples in wards.clients.values()] == [6, 6, 6]
    assert len(feduhb.train(wards, rounds=1, epochs=1, show=None).rounds) == 1


def test_the_engine_of_the_extending_page(tmp_path, monkeypatch):
    found = ran(section(EXTENDING, "Adding an engine"), tmp_path, monkeypatch)
    trained, again = found["trained"], found["again"]
    assert RunFolder(Path("runs/rounded")).result()["engine"]["name"] == "rounded"
    assert trained.params.equal(again.params)
    plain = feduhb.train(trained.federation, 2, epochs=1, engine="loop")
    assert 0 < (trained.params - plain.params).norm() < 0.02 * plain.rounds[0].moved
    with pytest.raises(feduhb.FeduhbError, match="pass that engine again: engine="):
        feduhb.unlearn(again, ["c00"], rounds=1)


def test_where_the_extending_page_says_names_are_given():
    """The lists it sends people to are there, under these names."""
    homes = {"RULES": "core/aggregate.py", "DATASETS": "data/load.py"}
    for name, home in {**homes, "ENGINES": "engines/__init__.py"}.items():
        assert f"`{name}`" in EXTENDING
        assert f"`{home}`" in EXTENDING
        assert re.search(rf"^{name}: dict", (ROOT / "src" / "feduhb" / home).read_text(), re.MULTILINE)
    assert {"loop", "pool"} < {*ENGINES}
    assert "digits" in DATASETS
    for test in re.findall(r"`(tests/\S+\.py)`", EXTENDING):
        assert (ROOT / test).exists()


@pytest.mark.slow
def test_the_seeds_of_the_audit_page(tmp_path, monkeypatch, capsys):
    (code,) = (
        one for one in blocks((ROOT / "docs" / "audit.md").read_text(), "python") if "pool_seeds(" in one
    )
    ran(f"```python\n{code}```", tmp_path, monkeypatch)
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(
        "feduhb, loss on all forgotten data, over 3 seeds: AUC(audited) - AUC(Retrain) "
    )
    assert said[1].startswith("feduhb, loss on canaries, in a rehearsal, over 3 seeds: ")


@pytest.mark.slow
@pytest.mark.usefixtures("blank_figures")
def test_the_commands_of_the_erasure_page(tmp_path, monkeypatch):
    """All of them, in their order, word for word, from a training that kept a history."""
    monkeypatch.chdir(tmp_path)
    Path("config.toml").write_text(CONFIG)
    typed("feduhb train config.toml --out runs/first")
    assert Path("runs/first/history/00000").exists()
    lines = [line.partition("#")[0].strip() for block in blocks(ERASURE, "sh") for line in block.splitlines()]
    said = {line: typed(line) for line in lines if line}
    assert [line.split()[1] for line in lines if line.startswith("feduhb")] == [
        "unlearn", "audit", "report", "retire", "status", "status", "unlearn", "audit", "report", "retire",
    ]  # fmt: skip
    assert "Nothing of c03 is left in these runs." in said["feduhb status runs --of c03"]
    assert "no longer exists" not in said["feduhb unlearn runs/second --forget c07 --out runs/third"]
    for client, path in {"c03": "runs/second/audit.json", "c07": "runs/third/audit.json"}.items():
        audit = json.loads(Path(path).read_text())
        assert (audit["forgot"], audit["verdict"]["word"]) == (client, "forgotten")
    for old in ("runs/first", "runs/second"):
        assert RunFolder(Path(old)).tombstone() is not None
        assert not [*Path(old).rglob("*.safetensors")]
    third = RunFolder(Path("runs/third"))
    assert third.config()["unlearn"]["forget"] == "c03,c07"
    assert not {"c03", "c07"} & {*third.config()["clients"]}
    for kept in ("config.toml", "rounds.jsonl", "result.json", "audit.json", "state.safetensors"):
        assert Path("runs/third", kept).exists()
    assert not Path("runs/third/audit-work").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("blank_figures")
def test_the_own_code_page(tmp_path, monkeypatch):
    """Its module, its config and its commands, in the folder of a project."""
    page = (ROOT / "docs" / "own-code.md").read_text()
    (module,), (config,), (commands,) = (blocks(page, language) for language in ("py", "toml", "sh"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "my_data", raising=False)
    Path("my_data.py").write_text(module)
    Path("federation.toml").write_text(config)
    for line in commands.splitlines():
        ended = CliRunner().invoke(app, shlex.split(line)[1:])
        assert ended.exit_code == 0, ended.output
    assert (
        RunFolder(Path("runs/first-feduhb-compare/careful")).config()["unlearn"]["code"]
        == "my_data.py:Careful"
    )
    assert json.loads(Path("runs/first-feduhb/audit.json").read_text())["verdict"]["word"] in {
        "forgotten",
        "inconclusive",
    }
    monkeypatch.delitem(sys.modules, "my_data")


def typed(line):
    """Run a command of the page."""
    program, *words = line.split()
    assert program == "feduhb"
    ended = CliRunner().invoke(app, words)
    assert ended.exit_code == 0, ended.output
    return ended.output


def test_the_python_of_the_erasure_page(tmp_path, monkeypatch, capsys):
    found = ran(section(ERASURE, "In Python"), tmp_path, monkeypatch)
    assert found["audit"].verdict.word == "forgotten"
    assert RunFolder(Path("runs/sites")).tombstone() is not None
    assert not [*Path("runs/sites").rglob("*.safetensors")]
    assert str(found["unlearned"].forgot) == "east,north"
    assert [*found["unlearned"].federation.clients] == ["south", "west"]
    said = capsys.readouterr().out
    assert (
        said.count("feduhb without north: FORGOTTEN\n") == said.count("feduhb without east: FORGOTTEN\n") == 1
    )


def test_the_digest_of_the_exact_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = feduhb.train(
        feduhb.load("digits", clients=2, model="mlp"), rounds=1, epochs=1, out="runs/second", show=None
    )
    save_file(run.model().state_dict(), "model.safetensors")
    ran(section((ROOT / "docs" / "exact.md").read_text(), "Checking weights by hand"), tmp_path, monkeypatch)
    assert capsys.readouterr().out == RunFolder(Path("runs/second")).result()["weights_sha256"] + "\n"


def test_an_older_run_that_is_named_again_is_pointed_out(tmp_path, monkeypatch):
    """What the erasure page warns of is true, and the program says so too."""
    monkeypatch.chdir(tmp_path)
    Path("config.toml").write_text(CONFIG)
    typed("feduhb train config.toml --out runs/first")
    typed("feduhb unlearn runs/first --forget c03 --out runs/second --rounds 2")
    wrong = ["unlearn", "runs/first", "--forget", "c07", "--out", "runs/third", "--rounds", "2"]
    again = CliRunner().invoke(app, wrong)
    assert "would bring c03 back" in again.output
    assert again.exit_code == 2
    assert not Path("runs/third").exists()


def test_nobody_is_sent_to_an_index_that_does_not_have_us():
    """Until feduhb is on one, it is installed from a clone."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    for text in (*(page.read_text() for page in pages), feduhb.__doc__ or ""):
        assert not re.search(r"pip install[^`\n]*\bfeduhb\b", text)
    assert "pip install -c constraints.txt '.[flower]'" in (feduhb.__doc__ or "")


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda p: p.name)
def test_links_of_the_site_stay_on_the_site(page):
    """What lies beside docs/ is not on the built site, so a link to it is dead there."""
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).resolve().is_relative_to(ROOT / "docs"), target


def test_the_tables_page(tmp_path, monkeypatch):
    make_patients().assign(patient=range(240), disease=lambda table: (table.age > 50).astype(int)).drop(
        columns=["sex", "admitted"]
    ).to_csv(tmp_path / "patients.csv", index=False)
    page = (ROOT / "docs" / "tables.md").read_text()
    code = "\n".join(blocks(page, "python"))
    found = ran(f"```python\n{code}```", tmp_path, monkeypatch)
    assert (found["declared"]["numbers"], found["declared"]["drop"]) == (["age", "weight"], ["patient"])
    assert found["unlearned"].forgot.rows == {"north": (found["number"],)}
    (commands,) = blocks(page, "sh")
    for line in commands.splitlines()[:3]:
        words, _, file = line.removeprefix("feduhb ").partition(" > ")
        done = CliRunner().invoke(app, words.split())
        assert done.exit_code == 0, done.output
        if file:
            text = done.stdout.replace("rounds = 40", "rounds = 2")
            Path(file).write_text(text)
    assert RunFolder(Path("runs/first-feduhb")).is_finished()
