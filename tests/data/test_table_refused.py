"""Bad tables, declarations, files and arguments are refused in one line that says what to do."""

from __future__ import annotations

import datetime
import sys

import numpy as np
import pandas as pd
import pytest
import torch

import feduhb
from data.tables import DECLARED, TRAINED, make_patients
from feduhb.errors import ConfigError, DataError


def read(table, **more):
    return feduhb.Federation.from_table(table, **{**DECLARED, **more})


@pytest.fixture(scope="module")
def patients():
    return make_patients()


REFUSED = [
    ({"client": "hospitl"}, None, "has no column 'hospitl'; did you mean hospital\\? It has hospital, age"),
    ({"target": "outcome"}, None, "has no column 'outcome'; it has hospital"),
    ({"categories": {}}, None, "column sex holds '[FM]' in row 0, which is not a number; .* categories={'sex': \\['F', 'M'\\]}"),
    ({"dates": {}}, None, "column admitted holds dates \\(20.*dates={'admitted': '2000-01-01'}"),
    ({"classes": None}, None, "target disease is '.*' in row 0, and not one of the classes 0, 1; declare them, classes=\\['benign', 'malignant'\\]"),
    ({}, ("hospital", 7, None), "names no client in row 7; fill in its column hospital"),
    ({}, ("hospital", 7, "  "), "names no client in row 7"),
    ({}, ("age", 4, np.nan), "column age has no value in row 4; declare what stands for missing values: fills={'age': 0}, or"),
    ({}, ("age", 4, np.inf), "column age is inf in row 4, which is too large"),
    ({}, ("sex", 4, "X"), "column sex holds 'X' in row 4, which is not among its categories F, M; declare it, or '\\*'"),
    ({}, ("sex", 4, None), "column sex has no value in row 4; .*fills={'sex': 'F'}"),
    ({}, ("admitted", 4, "yesterday"), "column admitted holds 'yesterday' in row 4, which is not a date"),
    ({}, ("admitted", 4, "today"), "column admitted holds 'today' in row 4, which is not a date"),
    ({}, ("admitted", 4, "-1"), "column admitted holds '-1' in row 4, which is not a date"),
    ({}, ("admitted", 4, "31.12.2020"), "column admitted holds '31.12.2020' in row 4, which is not a date such as 2000-01-31"),
    ({"dates": {}, "numbers": ["age", "admitted"]}, ("admitted", 0, "31/12/2020"), "holds dates \\(31/12/2020\\); write them as 2000-01-31 and declare the day to count from"),
    ({}, ("hospital", 4, "a,b"), "'a,b' cannot be a client's id"),
    ({"row": "sex", "categories": {}}, None, "column sex holds '[FM]' in row 0, but requests name rows by whole numbers"),
    ({"row": "age"}, None, "column age holds '.*' in row 0, but requests name rows by whole numbers"),
    ({"target": "weight", "loss": "bce_with_logits", "classes": None, "drop": ["disease"]}, None, "target weight is .* in row 0, but bce_with_logits needs 0 or 1"),
    ({"target": "weight", "classes": None, "drop": ["disease"]}, None, "or loss='mse' if it is a number to predict"),
    ({"classes": None, "loss": "mse"}, None, "target disease holds '.*' in row 0, but the loss mse needs numbers; correct it, or leave loss= out"),
    ({"target": "admitted", "dates": {}, "drop": ["disease"], "classes": None, "loss": "mse"}, None, "target admitted holds '2.*' in row 0, but the loss mse"),
]  # fmt: skip


@pytest.mark.parametrize(("more", "change", "words"), REFUSED)
def test_bad_tables_are_refused_in_one_line(patients, more, change, words):
    table = patients
    if change is not None:
        column, row, value = change
        table = (
            patients.astype({column: object}) if isinstance(value, str) or value is None else patients.copy()
        )
        table.loc[row, column] = value
    with pytest.raises(DataError, match=words) as caught:
        read(table, **more)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"test": 1.5}, "test is 1.5; give a share above 0 and below 1"),
        (
            {"test": (torch.zeros(5000, 3), None)},
            "^test is a tuple; give the share of every client's rows, .* a file or DataFrame",
        ),
        ({"test": None}, "test is a NoneType; give the share"),
        (
            {"loss": torch.nn.CrossEntropyLoss()},
            r"a table's loss is a name.*from_table\(...\).replace\(loss=function\)",
        ),
        ({"scaling": {"age": [*range(10_000)]}}, "^scaling.age = .{,80} is invalid"),
        ({"classes": [0.5, 1]}, "classes.0 = 0.5 is invalid"),
        ({"classes": np.int64(2)}, "^classes = 2 is invalid"),
        ({"scaling": {"age": (0, 0)}}, r"the scaling of age is \(0.0, 0.0\); give what to subtract"),
        ({"scaling": {"sex": (0, 1)}}, "scaling names 'sex', which is not an input"),
        ({"fills": {"nobody": 0}}, "fills names 'nobody', which is not an input"),
        ({"fills": {"age": "often"}}, "age = 'often' is not a number; give a number, or 'mean'"),
        ({"fills": {"age": "mean"}, "standardize": False}, "age cannot take the client's mean"),
        ({"classes": ["benign"]}, "name at least two"),
        ({"categories": {"sex": ["F", "F"]}}, "names a value twice"),
        ({"drop": ["sex"]}, "column 'sex' is named for two purposes"),
        ({"dates": {"admitted": "soon"}}, "admitted = 'soon' is not a day"),
        (
            {"target": ["age", "weight"], "drop": ["disease"]},
            r"several targets \(age, weight\) are not one class",
        ),
    ],
)
def test_bad_declarations_are_refused_in_one_line(patients, more, words):
    with pytest.raises(ConfigError, match=words) as caught:
        read(patients, **more)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.csv", "", "a.csv is empty"),
        ("a.csv", "a,b,c\n", "a.csv holds no rows"),
        ("a.csv", "a,b,b\nx,1,2\n", "has two columns 'b'"),
        ("a.csv", "a,b,c\nx,1,5,6\nx,0,5,6\n", "cannot be read .*more values than"),
        ("a.csv", "a,b,c\nx,1,5\nx,0,5,6\n", "cannot be read .*line 3"),
        ("a.csv", 'a,b,c\nx,1,"5\nx,0,5\n', "cannot be read"),
        ("a.csv", "a,b,c\nx,1,5\nx,0,abc\n", "column c holds 'abc' in row 2 after the header"),
        ("a.csv", "a,b,c\nx,1,5\nx,0,\n", "column c has no value in row 2 after the header"),
        ("a.csv", "a,b,c\nx,1,5\nx,,6\n", "target b has no value in row 2 after the header; delete that row"),
        ("a.csv", ",a,b,c\n0,x,1,5\n", "has a column without a name, as pandas writes an index"),
        ("a.csv", "a,b,c\nx,1,1e400\n", "column c is inf in row 1 after the header, which is too large"),
        ("a.csv", "a,b\nx,1\n", "no column of inputs"),
        ("a.csv", "a, b, c\nx,1,5\n", "has no column 'b'; did you mean ' b'\\? It has a, ' b', ' c'"),
        (
            "a.csv",
            "a;b;c\nx;1;5,5\n",
            r"separates its values by ';' and not by ','; save it with .*read_csv\('a.csv', sep=';'\)",
        ),
        ("a.csv", "a\tb\tc\nx\t1\t5\n", r"separates its values by '\\t' and not by ','"),
        ("a.tsv", "a,b,c\nx,1,5\n", r"separates its values by ',' and not by '\\t'"),
        ("a.csv", b"a,b,c\nx,1,\xff\n", "save it as text in UTF-8|cannot be read"),
        ("a.parquet", "no parquet", "a.parquet cannot be read"),
        ("a.xlsx", "", "a.xlsx is not a table that can be read; give a .csv"),
        ("b.csv", None, "there is no file"),
    ],
)
def test_bad_files_are_refused_in_one_line(tmp_path, name, text, words):
    if text is not None:
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError, match=words) as caught:
        feduhb.Federation.from_table(tmp_path / name, client="a", target="b")
    assert "\n" not in str(caught.value)
    assert str(caught.value).count(";") >= 1


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.csv", "a,b,c\nx,1,5\nx,0,5,6\n", "a.csv cannot be read .*line 3"),
        ("a.csv", b"a,b,c\nx,1,\xff\n", "save it as text in UTF-8|cannot be read"),
        ("a.parquet", None, "a.parquet cannot be read"),
    ],
)
def test_a_draft_of_a_damaged_file_is_refused_in_one_line(patients, tmp_path, name, text, words):
    if text is None:
        patients.rename(columns={"hospital": "a", "disease": "b"}).to_parquet(tmp_path / name)
        whole = (tmp_path / name).read_bytes()
        text = whole[:20] + bytes(200) + whole[220:]
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError, match=words) as caught:
        feduhb.describe_table(tmp_path / name, client="a", target="b")
    assert "\n" not in str(caught.value)


def test_a_draft_for_a_column_of_two_purposes_is_refused(patients):
    with pytest.raises(ConfigError, match="'hospital' is named for two purposes"):
        feduhb.describe_table(patients, client="hospital", target="hospital")
    with pytest.raises(DataError, match="several targets must be numbers"):
        feduhb.describe_table(patients, client="hospital", target=["age", "disease"])


def test_a_parquet_file_without_its_extra_says_what_to_install(patients, tmp_path, monkeypatch):
    patients.to_parquet(tmp_path / "a.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(
        DataError, match=r"needs the package pyarrow; in a clone: pip install .*\.\[parquet\]"
    ):
        read(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ([1, 2], "lists"),
        (np.ones(2), "lists"),
        (b"a", "bytes"),
        (datetime.time(8), "times"),
        ({"a": 1}, "records"),
    ],
)
def test_values_that_no_declaration_turns_into_numbers(patients, value, kind):
    table = patients.assign(odd=pd.Series([value] * len(patients)))
    with pytest.raises(DataError, match=rf"column odd holds {kind}; leave the column out, drop=\['odd'\]$"):
        read(table)
    assert read(table, drop=["odd"]).clients


def test_a_file_that_is_not_there_is_named_with_what_helps(patients, tmp_path):
    for call in (
        lambda: read(tmp_path / "no.csv"),
        lambda: feduhb.describe_table(tmp_path / "no.csv", client="hospital", target="disease"),
    ):
        with pytest.raises(DataError, match=r"no\.csv; check the path of the table$"):
            call()
    patients.to_csv(tmp_path / "patients.csv", index=False)
    patients.to_csv(tmp_path / "test.csv", index=False)
    federation = read(tmp_path / "patients.csv", test=tmp_path / "test.csv")
    feduhb.train(federation, **TRAINED, out=tmp_path / "run")
    (tmp_path / "test.csv").rename(tmp_path / "moved.csv")
    words = r"test\.csv; it is the server's test table, which --data does not name; put that file back there$"
    with pytest.raises(DataError, match=words):
        feduhb.open_run(tmp_path / "run")
    (tmp_path / "patients.csv").rename(tmp_path / "elsewhere.csv")
    with pytest.raises(DataError, match=r"name the file if it was moved: --data FILE \(in Python data=\)$"):
        feduhb.open_run(tmp_path / "run")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"target": 3}, "target.* = 3 is invalid"),
        ({"drop": "sex"}, "drop = 'sex' is invalid"),
        ({"categories": ["sex"]}, r"categories = \['sex'\] is invalid"),
        ({"categories": {"sex": {"F", "M"}}}, "categories.sex = .* is invalid"),
        ({"categories": {"sex": "FM"}}, "categories.sex = 'FM' is invalid"),
        ({"fills": 0}, "fills = 0 is invalid"),
        ({"fills": {"age": True}}, "fills.age = True is invalid"),
        (
            {"clients": ["north"]},
            "from_table has no argument 'clients'; besides its own it takes augment, backdoor",
        ),
        (
            {"dates": {"admitted": "today"}},
            "dates: admitted = 'today' is not a day; write it as in 2000-01-31",
        ),
        ({"dates": {"admitted": "01/02/2000"}}, "dates: admitted = '01/02/2000' is not a day"),
        ({"dates": {"admitted": "2000"}}, "dates: admitted = '2000' is not a day"),
        ({"dates": {"admitted": "NaT"}}, "dates: admitted = 'NaT' is not a day"),
        ({"dates": {"admitted": datetime.datetime(2000, 1, 1, 12)}}, "'2000-01-01 12:00:00' is not a day"),
        ({"test": True}, "test = True is invalid"),
        ({"held_out": None}, "held_out is None; give a share"),
        ({"scaling": {"age": 5}}, "scaling.age = 5 is invalid"),
        ({"scaling": {"age": (np.nan, 1)}}, "the scaling of age is"),
        ({"held_out": 1.5}, "held_out is 1.5"),
        ({"held_out": -1}, "held_out is -1"),
        ({"held_out": "half"}, "held_out is 'half'"),
        ({"target": []}, "target names no column"),
        ({"fills": {"age": np.nan}}, "age = nan is not finite; give a number, or 'mean'"),
        ({"fills": {"age": np.inf}}, "age = inf is not finite"),
    ],
)
def test_arguments_of_the_wrong_kind_are_refused_in_one_line(patients, more, words):
    with pytest.raises(ConfigError, match=words) as caught:
        read(patients, **more)
    assert "\n" not in str(caught.value)


def test_infinity_as_a_target_or_category_and_complex_numbers_are_refused_in_one_line(patients):
    with pytest.raises(DataError, match=r"column age holds '\(\d+\+1j\)' in row 0, which is not a number"):
        read(patients.assign(age=patients.age.round() + 1j))
    for change in ({"disease": np.inf}, {"sex": np.inf}):
        with pytest.raises(DataError, match="'inf' in row 0"):
            read(patients.assign(**change))


def test_numbers_too_large_for_float32_are_refused_or_standardised(patients):
    large = patients.assign(age=patients.age * 1e38)
    assert read(large).clients["north"].all()[0].isfinite().all()
    with pytest.raises(DataError, match="which is too large"):
        read(large, standardize=False)
    with pytest.raises(DataError, match="which is too large"):
        read(large, target="age", loss="mse", classes=None, drop=["disease"])


def test_a_test_row_too_large_to_standardise_is_refused_by_its_client(patients):
    numbered = patients.assign(patient=range(len(patients)))
    tested = read(numbered, row="patient").tested["north"].keys[0].item()
    with pytest.raises(DataError, match="north holds infinite or very large inputs"):
        read(numbered.assign(age=numbered.age.where(numbered.patient != tested, 1e300)), row="patient")


def test_a_model_of_images_is_refused_for_a_table(patients):
    with pytest.raises(ConfigError, match="the model 'cnn' reads images, not inputs of the shape"):
        read(patients, model="cnn")
