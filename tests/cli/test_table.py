"""A table on the command line: drafted, trained, resumed, unlearned, compared, audited, reported, retired."""

from __future__ import annotations

import json
import re
import shutil
import tomllib

import pytest
import torch
from typer.testing import CliRunner

import feduhb
from data.tables import make_patients
from feduhb.cli import app

TRAIN = "\n[train]\nrounds = 6\nepochs = 2\nbatch_size = 8\nlr = 0.1\nkeep_history = true\n"


def run(*words, status=0):
    done = CliRunner().invoke(app, [*map(str, words)])
    assert done.exit_code == status, done.output
    return done


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a table, a drafted config, a training and an unlearning of rows."""
    folder = tmp_path_factory.mktemp("table")
    patients = make_patients()
    patients.insert(1, "patient", range(100, 100 + len(patients)))
    patients.to_csv(folder / "patients.csv", index=False)
    words = ["table", folder / "patients.csv", "--client", "hospital", "--target", "disease"]
    assert (
        "# Is patient an identifier? It holds whole numbers without repeats, so it is dropped."
        in run(*words).stdout
    )
    draft = run(*words, "--row", "patient").stdout
    assert draft.startswith("# Drafted from all rows of patients.csv. Read every line")
    assert 'row = "patient"' in draft
    assert "identifier" not in draft
    config = draft.partition("[train]")[0] + TRAIN
    config = config.replace(str(folder / "patients.csv"), "patients.csv")  # relative to the config's folder
    (folder / "federation.toml").write_text(config)
    run("train", folder / "federation.toml", "--out", folder / "first")
    federation = feduhb.open_run(folder / "first").federation
    rows = "+".join(map(str, federation.clients["north"].keys[:4].tolist()))
    run("unlearn", folder / "first", "--forget", f"north:{rows}", "--rounds", 6, "--out", folder / "rows")
    return folder


def test_the_run_records_the_declarations_and_opens_from_any_folder(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (place / "first" / "config.toml").read_text()
    assert "[federation.table.categories]" in text
    assert f'path = "{place / "patients.csv"}"' in text
    assert "partition" not in text
    assert "mnist" not in text
    assert feduhb.open_run(place / "rows").forgot is not None


def test_a_table_that_was_moved_is_named_by_data(place, tmp_path):
    moved = tmp_path / "elsewhere.csv"
    shutil.copy(place / "patients.csv", moved)
    words = ["unlearn", place / "first", "--forget", "east", "--rounds", 2, "--out", tmp_path / "east"]
    run(*words, "--data", moved, "--allow-revival")


def test_deleted_rows_do_not_matter_to_the_run_that_forgot_them(place, tmp_path):
    table = make_patients()
    table.insert(1, "patient", range(100, 100 + len(table)))
    forgot = feduhb.open_run(place / "rows").forgot
    assert forgot is not None
    gone = forgot.rows["north"]
    table[~table.patient.isin(gone)].to_csv(tmp_path / "patients.csv", index=False)
    opened = feduhb.open_run(place / "rows", data=tmp_path / "patients.csv")
    assert torch.equal(opened.params, feduhb.open_run(place / "rows").params)
    run(
        "unlearn", place / "rows", "--forget", "south", "--rounds", 2, "--out", tmp_path / "south",
        "--data", tmp_path / "patients.csv", "--allow-revival",
    )  # fmt: skip
    with pytest.raises(feduhb.FeduhbError, match="was made with other data of client north"):
        feduhb.open_run(place / "first", data=tmp_path / "patients.csv")


def test_rows_that_were_deleted_without_numbers_of_their_own_keep_their_places(tmp_path):
    table = make_patients()
    declared = feduhb.describe_table(table, client="hospital", target="disease")
    table.to_csv(tmp_path / "patients.csv", index=False)

    def read():
        return feduhb.Federation.from_table(
            tmp_path / "patients.csv", client="hospital", target="disease", **declared
        )

    trained = feduhb.train(read(), 2, epochs=1, out=tmp_path / "first", show=None)
    rows = trained.federation.clients["north"].keys[[1, 4]].tolist()
    once = feduhb.unlearn(trained, {"north": rows[:1]}, rounds=2, out=tmp_path / "once", show=None)
    twice = feduhb.unlearn(once, {"north": rows[1:]}, rounds=2, out=tmp_path / "twice", show=None)
    own = table.index[table.hospital == "north"]
    for gone in (rows[:1], rows):
        table.drop(index=own[gone]).to_csv(tmp_path / "patients.csv", index=False)
        assert torch.equal(feduhb.open_run(tmp_path / "twice").params, twice.params)
    third = feduhb.open_run(tmp_path / "twice").federation.clients["north"].keys[2].item()
    assert third == trained.federation.clients["north"].keys[3].item()


@pytest.mark.slow
def test_a_killed_training_of_a_table_is_resumed_to_the_same_bits(place, tmp_path):
    out = tmp_path / "again"
    shutil.copytree(place / "first", out)
    (out / "result.json").unlink()
    run("train", place / "federation.toml", "--out", out, "--resume")
    assert (out / "state.safetensors").read_bytes() == (place / "first" / "state.safetensors").read_bytes()


@pytest.mark.slow
def test_a_table_is_compared_audited_reported_and_retired(place, tmp_path):
    run("train", place / "federation.toml", "--out", tmp_path / "kept")  # its history is whole
    run("compare", tmp_path / "kept", "--forget", "west", "--rounds", 6, "--out", tmp_path / "compared")
    assert {path.name for path in (tmp_path / "compared").iterdir()} >= {
        "feduhb",
        "retrain",
        "federaser",
        "fedrecover",
    }
    run(
        "unlearn",
        place / "first",
        "--forget",
        "west",
        "--rounds",
        3,
        "--out",
        tmp_path / "west",
        "--allow-revival",
    )
    for folder in (tmp_path / "west", place / "rows"):
        words = ["audit", folder, "--original", place / "first", "--relearn", 0, "--canaries", 0, "--json"]
        found = json.loads(run(*words).stdout)["audits"][0]
        assert found["verdict"]["word"] == "forgotten"
        assert found["exactness"]["exact"]
        assert [check["identical"] for check in found["exactness"]["checks"]] == [True] * len(
            found["exactness"]["checks"]
        )
    run("report", place / "first", place / "rows", tmp_path / "west", "--out", tmp_path / "report")
    assert "patients.csv" in (tmp_path / "report" / "report.html").read_text()
    run("status", place / "first")


def test_declarations_that_errors_print_are_pasted_until_the_config_is_complete(tmp_path):
    patients = (
        make_patients().rename(columns={"sex": "sex at birth"}).replace({"sex at birth": {"M": r"M\m"}})
    )
    patients.loc[3, ["age", "sex at birth"]] = None
    patients.to_csv(tmp_path / "patients.csv", index=False)
    path = tmp_path / "federation.toml"
    table = '[federation.table]\npath = "patients.csv"\nclient = "hospital"\ntarget = "disease"\n'
    declaration = re.compile(r"(?:under \[federation\.table\.(\w+)\]: |(?=classes=))(.*?)(?:, or |$)")
    pasted: dict[str, list[str]] = {"": [], "categories": [], "dates": [], "fills": []}
    text = table
    for _ in range(6):
        text = table + "".join(
            f"[federation.table.{name}]\n" * bool(name) + "".join(f"{line}\n" for line in lines)
            for name, lines in pasted.items()
        )
        path.write_text(text + TRAIN.replace("rounds = 6", "rounds = 1"))
        done = CliRunner().invoke(app, ["train", str(path), "--out", str(tmp_path / "run")])
        if done.exit_code == 0:
            break
        found = declaration.search(done.output.strip())
        assert found, done.output
        pasted[found[1] or ""].append(found[2])
    declared = tomllib.loads(text)["federation"]["table"]
    assert {*declared} == {"path", "client", "target", "classes", "categories", "dates", "fills"}
    assert declared["categories"] == {"sex at birth": ["F", r"M\m"]}


def test_a_config_of_a_table_without_its_file_is_refused_in_one_line(tmp_path):
    (tmp_path / "bad.toml").write_text('[federation.table]\nclient = "a"\ntarget = "b"\n')
    said = run("train", tmp_path / "bad.toml", "--out", tmp_path / "run", status=2).stderr
    assert said.endswith("bad.toml: federation.table.path is missing; add it\n")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ('\nclients = 10\n[federation.table]', "clients is not a setting of a table"),
        ('\ndata = "digits"\n[federation.table]', "data is not a setting of a table"),
        ('\n[federation.table]\nclas = ["a"]', "there is no setting federation.table.clas; did you mean"),
    ],
)  # fmt: skip
def test_a_config_with_settings_that_do_not_fit_is_refused_in_one_line(place, tmp_path, change, words):
    text = (
        (place / "federation.toml")
        .read_text()
        .replace("\n[federation.table]", "\n[federation]" * (change[1] != "[") + change)
    )
    (tmp_path / "bad.toml").write_text(text)
    done = run("train", tmp_path / "bad.toml", "--out", tmp_path / "bad", status=2)
    assert words in done.output
    assert done.output.count("\n") == 1


def test_declared_scaling_goes_through_a_config(place, tmp_path):
    text = (
        (place / "federation.toml")
        .read_text()
        .replace('path = "patients.csv"', f'path = "{place / "patients.csv"}"')
    )
    (tmp_path / "scaled.toml").write_text(
        text.replace("[train]", "[federation.table.scaling]\nage = [50, 20.5]\n\n[train]")
    )
    run("train", tmp_path / "scaled.toml", "--out", tmp_path / "run")
    run("report", tmp_path / "run", "--out", tmp_path / "report")
    run("export", tmp_path / "run", "--out", tmp_path / "card.md")
    assert "number, minus 50, divided by 20.5" in (tmp_path / "card.md").read_text()
