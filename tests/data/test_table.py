"""Federations from tables: what is read, how rows are split, and that nobody changes anybody else's inputs."""

from __future__ import annotations

import datetime
import gzip
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import feduhb
from data.tables import DECLARED, TRAINED, make_patients
from feduhb.data import storage, table_files
from feduhb.data.table import TableSettings, read_rows
from feduhb.data.table_files import Source
from feduhb.data.table_rows import RowReader
from feduhb.errors import ConfigError, DataError, RequestError
from feduhb.models import mlp


def read(table, **more):
    return feduhb.Federation.from_table(table, **{**DECLARED, **more})


@pytest.fixture(scope="module")
def patients():
    return make_patients()


def list_rows(federation):
    """All rows of a federation as (client, part, key)."""
    parts = {"trained": federation.clients, "held out": federation.held_out, "tested": federation.tested}
    return {(c, part, int(key)) for part, some in parts.items() for c, e in some.items() for key in e.keys}


def test_every_kind_of_file_gives_the_same_federation(patients, tmp_path):
    patients.to_csv(tmp_path / "a.csv", index=False)
    patients.to_csv(tmp_path / "a.tsv", index=False, sep="\t")
    patients.to_parquet(tmp_path / "a.parquet")
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress((tmp_path / "a.csv").read_bytes()))
    expected = read(patients).fingerprints()
    for name in ("a.csv", "a.tsv", "a.parquet", "a.csv.gz"):
        assert read(tmp_path / name).fingerprints() == expected, name


def test_columns_become_inputs_as_declared(patients):
    found = read(patients, standardize=False, scaling={"age": (50, 10)}, test=0.3, held_out=0.2)
    examples = found.clients["north"]
    x, y = examples.all()
    own = patients[patients.hospital == "north"].reset_index(drop=True).iloc[examples.keys.tolist()]
    days = (pd.to_datetime(own.admitted) - pd.Timestamp("2020-01-01")).dt.days
    columns = [(own.age - 50) / 10, own.weight, days, own.sex == "F", own.sex == "M"]
    assert torch.equal(x, torch.tensor(np.stack(columns, 1).astype(float), dtype=torch.float32))
    assert y.tolist() == (own.disease == "malignant").astype(int).tolist()


def test_every_row_is_in_one_part_and_shares_are_kept():
    found = read(make_patients(4000), test=0.3, held_out=0.5)
    rows = list_rows(found)
    assert len(rows) == 4000
    counts = {part: sum(1 for row in rows if row[1] == part) for part in ("trained", "held out", "tested")}
    assert counts["tested"] == pytest.approx(1200, abs=100)
    assert counts["held out"] == pytest.approx(1400, abs=100)


def test_a_row_stays_in_its_part_when_other_rows_clients_and_the_order_change(patients):
    named = patients.assign(number=np.arange(len(patients)))
    before = list_rows(read(named, row="number", seed=3))
    fewer = named[(named.hospital != "east") & (named.number % 5 > 0)].sample(frac=1, random_state=1)
    after = list_rows(read(fewer, row="number", seed=3))
    assert after == {row for row in before if row[0] != "east" and row[2] % 5 > 0}


def test_rows_without_numbers_are_split_by_their_content(patients):
    before = read(patients, seed=3, standardize=False)
    after = read(patients[patients.hospital != "east"][::-1], seed=3, standardize=False)
    for part in ("clients", "held_out", "tested"):
        for client, examples in getattr(after, part).items():
            old = getattr(before, part)[client].all()[0]
            assert torch.equal(examples.all()[0].sort(0).values, old.sort(0).values)


def test_equal_rows_stay_together(patients):
    found = read(pd.concat([patients, patients]), standardize=False)
    alone = read(patients, standardize=False)
    for part in ("clients", "held_out", "tested"):
        assert {c: len(e) for c, e in getattr(found, part).items()} == {
            c: 2 * len(e) for c, e in getattr(alone, part).items()
        }


def test_copies_of_one_row_cannot_be_split_and_the_error_says_why(patients):
    copies = patients.iloc[[0] * 50]
    words = r"\(equal rows of a client stay together, unless row= numbers them\); give"
    for seed in range(3):
        with pytest.raises(DataError, match=words):
            read(copies, seed=seed)
    assert len(read(copies.assign(number=range(50)), row="number").test) > 0


@pytest.mark.parametrize("odd", ["extreme", "category", "class"])
def test_an_odd_leaver_changes_nothing_for_the_others(patients, odd):
    """Extreme values, a rare category and an odd class of a leaver leave no trace: bit for bit."""
    more = {"categories": {"sex": ["F", "M", "*"]}, "classes": ["benign", "malignant", "unclear"], "seed": 2}
    own = patients.copy()
    leaver = own.hospital == "west"
    if odd == "extreme":
        own.loc[leaver, "age"] = 1e9
    elif odd == "category":
        own.loc[leaver, "sex"] = "X"
    else:
        own.loc[leaver, "disease"] = "unclear"
    trained = feduhb.train(read(own, **more), **TRAINED)
    unlearned = feduhb.unlearn(trained, ["west"], rounds=3, show=None)
    never = read(own[~leaver], **more)
    assert unlearned.federation.fingerprints() == never.fingerprints()
    assert torch.equal(unlearned.federation.test.all()[0], never.test.all()[0])
    again = feduhb.unlearn(feduhb.train(read(patients, **more), **TRAINED), ["west"], rounds=3, show=None)
    assert torch.equal(unlearned.params, again.params)


def test_a_more_precise_date_of_a_leaver_changes_nothing_for_the_others(patients):
    """pandas counts in nanoseconds if one date has them, and then rounds the others in another way."""
    draw = np.random.default_rng(0)
    moments = np.datetime64("2020-01-01T00:00:00") + draw.integers(10**14, size=len(patients)).astype(
        "m8[us]"
    )
    plain = patients.assign(admitted=moments.astype(str))
    leaver = plain.hospital == "west"
    odd = plain.assign(admitted=plain.admitted.mask(leaver, "2020-05-01T12:00:00.123456789"))
    expected = read(plain[~leaver], seed=2).fingerprints()
    assert read(odd, seed=2).without(["west"]).fingerprints() == expected


def test_text_of_a_leaver_beside_numbers_changes_no_name_of_the_others(patients):
    """Beside text, pandas keeps 1.0 as a number of Python; alone, it is one of a column of numbers."""
    own = patients.assign(
        hospital=patients.hospital.map({"east": 1.0, "north": 2.0, "south": 3.0, "west": "w"})
    )
    leaver = own.hospital == "w"
    never = read(own[~leaver].astype({"hospital": float}))
    assert [*never.clients] == [c for c in read(own).clients if c != "w"]
    assert read(own).without(["w"]).fingerprints() == never.fingerprints()


def test_classes_are_declared_as_pandas_reads_them(patients):
    ill = (patients.disease == "malignant") + 1.0
    for declared in (ill.sort_values().unique(), [1.0, 2.0], [1, 2], ["1", "2"]):
        found = read(patients.assign(disease=ill), classes=declared)
        assert found.fingerprints() == read(patients).fingerprints()


def test_forgotten_rows_change_nothing_for_the_rest_of_their_client(patients):
    named = patients.assign(number=np.arange(len(patients)))
    federation = read(named, row="number")
    rows = federation.clients["north"].keys[:3].tolist()
    extreme = named.copy()
    extreme.loc[rows, "age"] = 1e9
    trained = feduhb.train(read(extreme, row="number"), **TRAINED)
    unlearned = feduhb.unlearn(trained, {"north": rows}, rounds=3, show=None)
    never = read(named.drop(index=rows), row="number")
    assert unlearned.federation.fingerprints() == never.fingerprints()
    x = unlearned.federation.clients["north"].all()[0]
    assert float(x[:, :2].mean(0).abs().max()) < 1e-5  # standardised anew
    assert torch.allclose(x[:, :3].std(0, correction=0), torch.ones(3), atol=1e-5)


def test_all_rows_of_a_number_are_forgotten_in_every_part(patients):
    visits = patients.assign(patient=np.arange(len(patients)) // 3, hospital="north")
    visits.loc[120:, "hospital"] = "south"
    federation = read(visits, row="patient")
    trained, held, tested = (
        {*some["north"].keys.tolist()}
        for some in (federation.clients, federation.held_out, federation.tested)
    )
    assert not trained & held
    assert not tested & (trained | held)
    some = [min(trained), min(held), min(tested)]
    rest = federation.without({"north": some})
    left = {key for part in (rest.clients, rest.held_out, rest.tested) for key in part["north"].keys.tolist()}
    assert left == (trained | held | tested) - {*some}
    with pytest.raises(
        RequestError, match=r"no model was trained on row \d+ of north: .* no unlearning is needed"
    ):
        federation.without({"north": [min(held), min(tested)]})


def test_the_test_rows_of_a_leaver_leave_the_test_set(patients):
    federation = read(patients)
    rest = federation.without(["north"])
    assert {*rest.tested} == {"east", "south", "west"}
    assert len(rest.test) == len(federation.test) - len(federation.tested["north"])
    with pytest.raises(RequestError, match="no test example would remain"):
        feduhb.Federation({"a": federation.clients["north"].all(), "b": federation.clients["east"].all()},
                          {"a": federation.test.all()}, mlp((5,), 2)).without(["a"])  # fmt: skip


def test_a_test_file_of_the_server_stays(patients, tmp_path):
    patients[:60].drop(columns="hospital").to_csv(tmp_path / "test.csv", index=False)
    federation = read(patients[60:], test=str(tmp_path / "test.csv"))
    assert len(federation.test) == 60
    assert not federation.tested
    assert len(federation.without(["north"]).test) == 60
    assert sum(map(len, federation.clients.values())) + sum(map(len, federation.held_out.values())) == 180


def test_missing_values_take_the_declared_fill_or_the_clients_own_mean(patients):
    holes = patients.copy()
    holes.loc[holes.hospital == "north", "age"] = np.nan
    holes.loc[3, "sex"] = None
    found = read(holes, fills={"age": "mean", "sex": "M"})
    assert (found.clients["north"].all()[0][:, 0] == 0).all()  # it has no value at all
    plain = read(holes, fills={"age": 40, "sex": "M"}, standardize=False)
    assert (plain.clients["north"].all()[0][:, 0] == 40).all()
    with_mean = holes.copy()
    with_mean.loc[5:30, "weight"] = np.nan
    examples = read(with_mean, fills={"age": "mean", "weight": "mean", "sex": "M"}).clients["south"]
    column, known = examples.all()[0][:, 1], ~examples.unscaled.all()[0][:, 1].isnan()
    assert float(column[known].mean()) == pytest.approx(0, abs=1e-5)
    assert (column[~known] == 0).all()


def test_several_targets_and_numbers_to_predict(patients):
    labels = patients.assign(old=(patients.age > 50).astype(int), heavy=(patients.weight > 70).astype(int))
    named = {"numbers": ["age", "weight"], "categories": {}, "dates": {}, "classes": None}
    found = read(labels, target=["old", "heavy"], loss="bce_with_logits", **named)
    assert found.test.targets.shape[1] == 2
    assert feduhb.train(found, **TRAINED).rounds[-1].scores["test_loss"] < 1
    number = read(
        patients, target="weight", loss="mse", numbers=["age"], categories={}, dates={}, classes=None
    )
    assert number.test.targets.dtype == torch.float32
    assert number.fresh_model()(number.test.all()[0]).shape == number.test.targets.shape


def test_large_tables_are_kept_in_files(patients, monkeypatch):
    expected = read(patients).fingerprints()
    monkeypatch.setattr(storage, "LARGE", 256)
    monkeypatch.setattr("feduhb.data.table_files.VALUES_AT_ONCE", 1)
    monkeypatch.setattr("feduhb.data.split.AT_ONCE", 7)
    monkeypatch.setattr("feduhb.data.standardize.CHUNK", 11)
    mapped = []
    original = storage._map_file
    monkeypatch.setattr(storage, "_map_file", lambda *given: mapped.append(given) or original(*given))
    found = read(pd.concat([patients] * 9)[: len(patients)])
    assert found.fingerprints() == expected
    assert len(mapped) >= 4
    trained = feduhb.train(found, **TRAINED)
    assert feduhb.unlearn(trained, ["north"], rounds=2, show=None).params.isfinite().all()


def test_spaces_around_words_for_missing_numbers_change_no_other_number(patients, tmp_path, monkeypatch):
    monkeypatch.setattr(table_files, "VALUES_AT_ONCE", 0)  # 1000 rows at once
    many = pd.concat([patients] * 9, ignore_index=True).astype({"age": object})
    for number, word in enumerate((np.nan, " NA ", " ")):
        many.loc[1500, "age"] = word
        many.to_csv(tmp_path / f"{number}.csv", index=False)
    found = [read(tmp_path / f"{number}.csv", fills={"age": 40}).fingerprints() for number in range(3)]
    assert found[0] == found[1] == found[2]


def test_a_client_with_one_row_trains_or_is_named(patients, capsys):
    alone = patients.copy()
    alone.loc[0, "hospital"] = "lonely"
    federation = read(alone)
    if "lonely" in federation.clients:
        assert (federation.clients["lonely"].all()[0][:, :3] == 0).all()
    else:
        assert (
            "client lonely takes no part in training, because all of its rows are" in capsys.readouterr().err
        )
    assert feduhb.train(federation, **TRAINED).params.isfinite().all()


def test_numbers_in_text_and_clients_as_numbers():
    table = pd.DataFrame({"a": [1, 2] * 10, "b": ["1", "0"] * 10, "c": [f" {i}e3" for i in range(20)]})
    found = feduhb.Federation.from_table(table, client="a", target="b", standardize=False, seed=1)
    assert {*found.clients} == {"1", "2"}


def test_classes_as_truth_values_and_as_pandas_writes_whole_numbers(patients, tmp_path):
    sick = patients.disease == "malignant"
    expected = read(patients).fingerprints()
    for classes in ([False, True], np.array([False, True]), ["False", "True"]):
        assert read(patients.assign(disease=sick), classes=classes).fingerprints() == expected
    patients.assign(disease=sick.astype(float)).to_csv(tmp_path / "a.csv", index=False)
    assert ",1.0\n" in (tmp_path / "a.csv").read_text()
    assert read(tmp_path / "a.csv", classes=None).fingerprints() == expected
    patients.assign(disease=0.5).to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(DataError, match=r"target disease is '0\.5' in row 1 after the header"):
        read(tmp_path / "a.csv", classes=None)


def test_a_draft_of_the_declarations_is_what_the_table_needs(patients, tmp_path):
    holes = patients.assign(name=[f"patient {i}" for i in range(len(patients))])
    holes.loc[3, ["age", "sex"]] = [np.nan, None]
    found = feduhb.describe_table(holes, client="hospital", target="disease")
    assert found == {
        "numbers": ["age", "weight"],
        "categories": {"sex": ["F", "M", "missing"]},
        "dates": {"admitted": "2000-01-01"},
        "fills": {"age": "mean", "sex": "missing"},
        "drop": ["name"],
        "classes": ["benign", "malignant"],
    }
    holes.to_csv(tmp_path / "holes.csv", index=False)
    assert feduhb.describe_table(tmp_path / "holes.csv", client="hospital", target="disease") == found
    federation = feduhb.Federation.from_table(holes, client="hospital", target="disease", **found)
    assert feduhb.train(federation, **TRAINED).rounds[-1].scores["test_accuracy"] > 0.6
    assert feduhb.describe_table(patients, client="hospital", target="weight")["loss"] == "mse"
    with pytest.raises(DataError, match="has no column 'x'"):
        feduhb.describe_table(patients, client="x", target="weight")
    with pytest.raises(DataError, match=r"no column 'hospitl'; did you mean hospital\? It has"):
        feduhb.describe_table(patients, client="hospitl", target="weight")


def test_whole_numbers_without_repeats_may_be_identifiers(patients):
    numbered = patients.assign(patient=range(100, 100 + len(patients)), visit=range(len(patients)))
    given = {"client": "hospital", "target": "disease"}
    assert feduhb.describe_table(numbered, **given)["drop"] == ["patient", "visit"]
    found = feduhb.describe_table(numbered, **given, row="patient")
    assert (found["drop"], found["numbers"]) == (["visit"], ["age", "weight"])
    assert "visit" in feduhb.describe_table(numbered[:19], **given)["numbers"]  # too few to tell
    twice = pd.concat([numbered, numbered[:1]])
    assert "visit" in feduhb.describe_table(twice, **given)["numbers"]
    with pytest.raises(ConfigError, match="column 'disease' is named for two purposes"):
        feduhb.describe_table(numbered, **given, row="disease")
    with pytest.raises(DataError, match="has no column 'number'"):
        feduhb.describe_table(numbered, **given, row="number")


def test_truth_values_with_missing_ones_are_numbers(patients, tmp_path):
    smokes = pd.Series([True, None, False] * (len(patients) // 3), dtype=object)
    given: dict[str, Any] = {"fills": {"smokes": 0}, "standardize": False}
    expected = read(patients.assign(smokes=smokes.eq(True).astype(float)), **given).fingerprints()
    patients.assign(smokes=smokes).to_parquet(tmp_path / "a.parquet")
    for table in (patients.assign(smokes=smokes), tmp_path / "a.parquet"):
        assert read(table, **given).fingerprints() == expected


def test_values_of_other_libraries_are_recorded_as_a_config_can_hold_them(tmp_path):
    table = make_patients().assign(code=lambda frame: (frame.sex == "F").astype(int))
    table["disease"] = (table.disease == "malignant").astype(int)
    table.to_csv(tmp_path / "patients.csv", index=False)
    given: dict[str, Any] = {
        "numbers": np.array(["age"]), "categories": {"code": [0, 1]}, "dates": {"admitted": datetime.datetime(2020, 1, 1)},
        "classes": np.array([0, 1]), "scaling": {"age": [50, np.float32(10)]}, "seed": np.int64(3),
    }  # fmt: skip
    federation = feduhb.Federation.from_table(
        tmp_path / "patients.csv", client="hospital", target="disease", drop=("sex", "weight"), **given
    )
    run = feduhb.train(federation, **TRAINED, out=tmp_path / "run")
    assert torch.equal(feduhb.open_run(tmp_path / "run").params, run.params)
    assert "number, minus 50, divided by 10" in run.card()


def test_a_draft_takes_words_for_missing_numbers_as_values_of_text(patients):
    table = patients.astype({"sex": object})
    table.loc[4, "sex"] = "NA"
    declared = feduhb.describe_table(table, client="hospital", target="disease")
    assert declared["categories"] == {"sex": ["F", "M", "NA"]}
    assert feduhb.Federation.from_table(table, client="hospital", target="disease", **declared).clients


@pytest.mark.parametrize("which", [0, -1])
def test_a_deleted_row_before_or_behind_held_out_rows_is_found_again(patients, tmp_path, which):
    """The numbers of all rows behind it change, in all three parts, also where the training rows do not tell."""
    patients.to_csv(tmp_path / "patients.csv", index=False)
    federation = read(tmp_path / "patients.csv")
    row = int(federation.clients["north"].keys[which])
    run = feduhb.unlearn(
        feduhb.train(federation, **TRAINED), {"north": [row]}, rounds=2, out=tmp_path / "run", show=None
    )
    own = patients.index[patients.hospital == "north"]
    patients.drop(index=own[row]).to_csv(tmp_path / "patients.csv", index=False)
    opened = feduhb.open_run(tmp_path / "run")
    assert torch.equal(opened.params, run.params)
    assert list_rows(opened.federation) == list_rows(run.federation)


def test_of_a_table_of_one_class_in_text_the_others_must_be_added(patients):
    with pytest.raises(
        DataError, match=r"classes=\['ill'\] \(it is the only one in the table: add the others\)$"
    ):
        read(patients.assign(disease="ill"), classes=None)


def test_a_table_of_one_class_is_named_and_trains(patients, capsys):
    federation = read(patients.assign(disease="benign"))
    assert (
        "every row of the table has disease = benign, so there is nothing to learn" in capsys.readouterr().err
    )
    assert feduhb.train(federation, **TRAINED).params.isfinite().all()


def test_numbers_are_standardised_in_full_precision(patients):
    """Seconds since 1970 differ by less than float32 can tell apart."""
    federation = read(patients.assign(age=1_700_000_000.0 + np.arange(len(patients))))
    x = federation.clients["north"].all()[0]
    assert x.dtype == torch.float32
    assert len(torch.unique(x[:, 0])) == len(x)


def test_a_parquet_file_with_an_index_and_a_file_with_a_large_suffix(patients, tmp_path):
    patients.set_index("age").to_parquet(tmp_path / "a.PARQUET")
    assert read(tmp_path / "a.PARQUET").clients
    patients.to_csv(tmp_path / "a.CSV", index=False)
    (tmp_path / "a.CSV").write_text("\n" + (tmp_path / "a.CSV").read_text())
    assert read(tmp_path / "a.CSV").fingerprints() == read(patients).fingerprints()


def test_a_target_to_predict_can_be_scaled(patients):
    found = read(
        patients, target="weight", loss="mse", classes=None, scaling={"weight": (70, 12)}, drop=["disease"]
    )
    assert abs(float(found.test.targets.mean())) < 0.5


def test_a_test_file_with_more_or_fewer_columns(patients, tmp_path):
    patients[:60].assign(more=1).to_csv(tmp_path / "more.csv", index=False)
    assert len(read(patients[60:], test=tmp_path / "more.csv").test) == 60
    patients[:60].drop(columns="age").to_csv(tmp_path / "fewer.csv", index=False)
    with pytest.raises(DataError, match=r"fewer\.csv has no column 'age'"):
        read(patients[60:], test=tmp_path / "fewer.csv")


def test_ids_of_clients_are_checked_wherever_their_rows_are(patients):
    table = patients.copy()
    table.loc[0, "hospital"] = "class:1"
    for seed in range(4):
        with pytest.raises(DataError, match="'class:1' cannot be a client's id"):
            read(table, seed=seed)


@pytest.mark.parametrize("owners", ["scattered", "sorted", "one large client", "many clients"])
def test_rows_lie_client_by_client_and_are_read_in_bounded_pieces(owners, tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "LARGE", 256)
    monkeypatch.setattr("feduhb.data.table_files.VALUES_AT_ONCE", 1)  # parts of 1,000 rows
    draw, count = np.random.default_rng(0), 4500
    clients = {
        "scattered": draw.integers(3, size=count),
        "sorted": np.sort(draw.integers(3, size=count)),
        "one large client": np.where(draw.random(count) < 0.9, 0, draw.integers(1, 4, size=count)),
        "many clients": draw.integers(700, size=count),
    }[owners]
    table = pd.DataFrame(
        {"client": [f"c{c}" for c in clients], "x": draw.normal(size=count), "y": np.arange(count) % 2}
    )
    table.to_csv(tmp_path / "t.csv", index=False)
    pieces: list[int] = []
    read_piece = storage.RowWriter.read

    def watch(writer, begin, end):
        pieces.append(end - begin)
        return read_piece(writer, begin, end)

    monkeypatch.setattr(storage.RowWriter, "read", watch)
    found = read_rows(
        RowReader(Source.open(str(tmp_path / "t.csv")), TableSettings(client="client", target="y"))
    )
    assert max(pieces) <= 1000  # rows in memory at once
    names = [found.clients[owner] for owner in found.owners.tolist()]
    expected = pd.concat([table[table.client == client] for client in dict.fromkeys(table.client)])
    assert names == expected.client.tolist()
    assert found.x[:, 0].tolist() == expected.x.tolist()  # float64, as in the file, in its order
    assert found.y.tolist() == expected.y.tolist()
    assert found.keys.tolist() == expected.groupby("client", sort=False).cumcount().tolist()
