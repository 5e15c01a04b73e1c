"""Federations of Hugging Face data sets: the columns, the split by rows, and what is refused."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, List, Value
from torch import Tensor, nn

import feduhb
from data.wording import refused
from feduhb.data.federation import Examples
from feduhb.errors import ConfigError, DataError
from feduhb.models import mlp

WARDS = ["ant", "bee", "cat"] * 16
DIGITS = feduhb.load("digits", clients=2)
PIXELS = ((DIGITS.test.x[:48] + 1) * 127.5).round().byte()  # [48, 1, 8, 8]
LABELS = DIGITS.test.y[:48].tolist()
NAMES = [f"digit {number}" for number in range(10)]
IMAGES = Features({"ward": Value("string"), "image": Image(), "digit": ClassLabel(names=NAMES)})
ANT: dict[str, Any] = {"client": "ward", "target": "digit"}


def pictures(rows: Any = range(48), wards: list[str] = WARDS) -> Dataset:
    columns = {
        "ward": [wards[row] for row in rows],
        "image": [PIL.Image.fromarray(PIXELS[row, 0].numpy()) for row in rows],
        "digit": [LABELS[row] for row in rows],
    }
    return Dataset.from_dict(columns, features=IMAGES)


def lines(**columns: list[Any]) -> Dataset:
    """Return tokens with a mask, and how many of them are even."""
    tokens = [[(row + place) % 7 for place in range(4)] for row in range(48)]
    mask = [[1, 1, 1, row % 2] for row in range(48)]
    even = [["few", "many"][row % 3 == 0] for row in range(48)]
    return Dataset.from_dict({"tokens": tokens, "ward": WARDS, "mask": mask, "even": even, **columns})


class Reader(nn.Module):
    """Adds up the embeddings of the tokens that count."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 4), nn.Linear(4, 2)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return self.head((self.embed(tokens) * mask.unsqueeze(2)).sum(1))


def of_lines(ds: Dataset, **more: Any) -> feduhb.Federation:
    given = {
        "classes": ["few", "many"],
        "columns": ["tokens", "mask"],
        "model": Reader(),
        "test": 0.3,
        **more,
    }
    return feduhb.Federation.from_huggingface(ds, client="ward", target="even", **given)


def train(made: feduhb.Federation, **how: Any) -> feduhb.Run:
    return feduhb.train(made, 2, epochs=1, batch_size=4, lr=0.1, show=None, **how)


def to_tensors(made: feduhb.Federation) -> feduhb.Federation:
    """Return the same federation of tensors of each client's own rows."""

    def copy(examples: Examples) -> Examples:
        return Examples(*examples.all(), torch.arange(len(examples)), examples.keys)

    held = {client: copy(examples) for client, examples in made.held_out.items()}
    clients = {client: copy(examples) for client, examples in made.clients.items()}
    return feduhb.Federation(clients, made.test.all(), made.model, seed=made.seed, held_out=held)


def serve(made: feduhb.Federation, folder: Path) -> list[Tensor]:
    trained = train(made, out=folder / "trained")
    without = feduhb.unlearn(trained, "bee", rounds=2, out=folder / "client", show=None)
    first, second = made.clients["ant"].keys.tolist()[:2]
    rows = feduhb.unlearn(without, f"ant:{first}+{second}", rounds=2, out=folder / "rows", show=None)
    return [run.params for run in (trained, without, rows, feduhb.open_run(folder / "rows", made))]


KINDS: dict[str, Callable[[], feduhb.Federation]] = {
    "images": lambda: feduhb.Federation.from_huggingface(pictures(), **ANT, seed=3),
    "lines": lambda: of_lines(lines(), seed=3),
    "lines, torch": lambda: of_lines(lines().with_format("torch"), seed=3),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_trains_and_forgets_to_the_bits_of_tensors(kind, tmp_path):
    made = KINDS[kind]()
    found, wanted = serve(made, tmp_path / "a"), serve(to_tensors(made), tmp_path / "b")
    assert all(map(torch.equal, found, wanted))
    assert torch.equal(found[2], found[3])
    assert not torch.equal(found[0], found[1])


def test_images_are_scaled_as_the_built_in_data_sets_are():
    made = feduhb.Federation.from_huggingface(
        DatasetDict({"train": pictures(), "test": pictures(range(8))}), **ANT, held_out=0
    )
    assert list(made.clients) == ["ant", "bee", "cat"]
    assert torch.equal(made.clients["bee"].all()[0], PIXELS[1::3].float() * (2 / 255) - 1)
    assert made.clients["bee"].targets.tolist() == LABELS[1::3]
    assert torch.equal(made.test.all()[0], PIXELS[:8].float() * (2 / 255) - 1)
    assert not any(len(examples) for examples in made.held_out.values())
    assert [*made.fresh_model().state_dict()] == [*mlp((1, 8, 8), 10).state_dict()]


def test_images_in_colour():
    colours = np.random.default_rng(0).integers(0, 256, (2, 4, 5, 3), dtype=np.uint8)
    ds = Dataset.from_dict({"image": [PIL.Image.fromarray(one) for one in colours], "label": [0, 1]})
    made = feduhb.Federation({"a": ds}, ds, nn.Linear(5, 2))
    assert made.test.x.shape == (2, 3, 4, 5)
    assert torch.equal(made.test.x, torch.from_numpy(colours).permute(0, 3, 1, 2).float() * (2 / 255) - 1)


def test_columns_become_a_dict_and_classes_numbers():
    made = of_lines(lines(), held_out=0, test=lines())
    assert {name: part.dtype for name, part in made.test.x.items()} == dict.fromkeys(
        ["tokens", "mask"], torch.int64
    )
    x, y = made.clients["cat"].all()
    assert x["tokens"].tolist() == lines()["tokens"][2::3]
    assert y.tolist() == [int(word == "many") for word in lines()["even"][2::3]]
    swapped = of_lines(lines(), held_out=0, test=lines(), classes=["many", "few"])
    assert torch.equal(swapped.test.y, 1 - made.test.y)


def test_one_column_may_be_named_without_a_list():
    net = nn.Sequential(nn.Embedding(7, 2), nn.Flatten(), nn.Linear(8, 2))
    alone, listed = (of_lines(lines(), columns=given, model=net) for given in ("tokens", ["tokens"]))
    assert alone.fingerprints() == listed.fingerprints()


def test_ids_are_text():
    numbers = lines(ward=[row % 2 for row in range(48)])
    assert list(of_lines(numbers).clients) == ["0", "1"]
    named = lines(ward=[row % 2 for row in range(48)]).cast_column(
        "ward", ClassLabel(names=["north", "south"])
    )
    assert list(of_lines(named).clients) == ["north", "south"]


def parts(made: feduhb.Federation, client: str) -> list[Any]:
    return [part[client].all()[0]["tokens"].tolist() for part in (made.clients, made.held_out)]


def test_nobody_else_changes_where_a_row_goes():
    """A leaver with a rare class and large tokens is absent, or its rows come first."""
    extreme = lines(
        tokens=[[6] * 4 if ward == "bee" else [row % 7] * 4 for row, ward in enumerate(WARDS)],
        even=["rare" if ward == "bee" else "few" for ward in WARDS],
    )
    declared = {"classes": ["few", "many", "rare"], "seed": 5}
    whole = of_lines(extreme, **declared)
    absent = of_lines(extreme.filter(lambda row: row["ward"] != "bee"), **declared)
    order = sorted(range(48), key=lambda row: WARDS[row] != "bee")
    first = of_lines(extreme.select(order), **declared)
    for client in ("ant", "cat"):
        assert parts(whole, client) == parts(absent, client) == parts(first, client)
        assert whole.fingerprints()[client] == absent.fingerprints()[client] == first.fingerprints()[client]
    assert "bee" in whole.clients
    assert "bee" not in absent.clients


def test_a_request_names_a_row_by_its_position_among_the_rows_of_the_client():
    made = of_lines(lines(), seed=5)
    key = int(made.clients["cat"].keys[3])
    (gone,) = made.forgotten(f"cat:{key}").values()
    assert gone.all()[0]["tokens"].tolist() == [lines()["tokens"][2::3][key]]
    assert key > 3


def test_rows_with_keys_of_their_own_may_be_deleted_from_the_data_set(tmp_path):
    """A run opens again although forgotten rows are gone, and where the others are does not change."""
    ds = lines(patient=[1000 + row // 3 * 7 for row in range(48)])
    made = of_lines(ds, row="patient", seed=5)
    key = int(made.clients["cat"].keys[3])
    run = feduhb.unlearn(train(made), f"cat:{key}", rounds=2, out=tmp_path / "run", show=None)
    deleted = ds.filter(lambda row: row["ward"] != "cat" or row["patient"] != key)
    opened = feduhb.open_run(tmp_path / "run", of_lines(deleted, row="patient", seed=5))
    assert torch.equal(opened.params, run.params)
    assert opened.federation.fingerprints() == run.federation.fingerprints()
    assert len(deleted) == 47


DRAWN = DatasetDict({"validation": lines()})
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a list": (lambda: of_lines([1]), "the data is a list; give a datasets.Dataset, which load_dataset returns without streaming=True"),  # pyright: ignore[reportArgumentType]
    "a stream": (lambda: of_lines(lines().to_iterable_dataset()), "the data is an IterableDataset; give a datasets.Dataset"),  # pyright: ignore[reportArgumentType]
    "no rows": (lambda: of_lines(lines().select([])), "the data holds no rows; give a data set with at least one"),
    "a row without a list": (lambda: of_lines(lines(tokens=[None, *lines()[1:]["tokens"]])), "column 'tokens' has no value in row 0; fill it with a value that you declare, or leave the row out"),
    "a number beside a list": (lambda: of_lines(lines(mask=[1] * 47 + [None])), "column 'mask' has no value in row 47; fill it"),
    "other splits": (lambda: of_lines(DRAWN), "the splits are validation; give those called train and test, or one data set: ds['train'], with test= a data set or a share"),  # pyright: ignore[reportArgumentType]
    "a test set of text": (lambda: of_lines(lines(), test="test"), "the test set is a str; give a datasets.Dataset"),
    "no such client": (lambda: feduhb.Federation.from_huggingface(lines(), client="hospital", target="even"), "there is no column 'hospital' in the data; the columns are tokens, ward, mask, even"),
    "no such input": (lambda: of_lines(lines(), columns=["words"]), "there is no column 'words' in the data"),
    "no such target in the test set": (lambda: of_lines(lines(), test=lines().remove_columns("even")), "there is no column 'even' in the test set"),
    "no such input in the test set": (lambda: of_lines(lines(), test=lines().remove_columns("mask")), "there is no column 'mask' in the test set"),
    "twice": (lambda: of_lines(lines(), columns=["tokens", "ward"]), "client is 'ward', target 'even', row None and columns ['tokens', 'ward']; name each column once, and at least one input"),
    "no inputs": (lambda: of_lines(lines(), columns=[]), "name each column once, and at least one input"),
    "text targets": (lambda: of_lines(lines(), classes=None), "the targets in column 'even' are text; declare their classes, so that they stay when a client leaves: classes=['few', 'many']"),
    "an unknown class": (lambda: of_lines(lines(), classes=["few"]), "row 0 has the target 'many', which is not one of the classes ['few']; add it to classes=, or leave the row out"),
    "other classes": (lambda: feduhb.Federation.from_huggingface(pictures(), **ANT, classes=["one"]), "column 'digit' declares the classes ['digit 0', 'digit 1'"),
    "no class": (lambda: feduhb.Federation.from_huggingface(unlabelled(), **ANT), "row 1 has no class ('digit' is -1); leave it out: ds.filter(lambda row: row['digit'] >= 0)"),
    "a blank client": (lambda: of_lines(lines(ward=["ant", " ", *WARDS[2:]])), "row 1 names no client in column 'ward'; name one, or leave the row out"),
    "a missing client": (lambda: of_lines(lines(ward=[*WARDS[:-1], None])), "row 47 names no client in column 'ward'"),
    "numbers as clients": (lambda: of_lines(lines(ward=[0.5] * 48)), "column 'ward' cannot name clients: it is a Value('float64'); give text or whole numbers"),
    "an unclear client": (lambda: of_lines(lines(ward=["a,b"] * 48)), "'a,b' cannot be a client's id"),
    "no target": (lambda: of_lines(lines(even=[None, *lines()[1:]["even"]])), "row 0 has no target; leave the row out"),
    "no classes": (lambda: feduhb.Federation.from_huggingface(lines(sick=[0, 1] * 24), client="ward", target="sick", columns=["mask"]), "the model 'mlp' returns classes; declare those of column 'sick', so that they stay when a client leaves: classes=[0, 1], or give a module"),
    "a key of text": (lambda: of_lines(lines(), row="even", columns=["tokens"]), "name each column once"),
    "a key below 0": (lambda: of_lines(lines(patient=[-1] * 48), row="patient"), "row 0 has the key -1 in column 'patient'"),
    "a key that is too large": (lambda: of_lines(lines(patient=[np.uint64(2**63)] * 48), row="patient"), "row 0 has the key 9223372036854775808 in column 'patient'"),
    "ragged": (lambda: of_lines(lines(tokens=[[1] * (1 + row % 3) for row in range(48)])), "the values of column 'tokens' hold sequences of 1 to 3 values; pad them to one length"),
    "text beside tokens": (lambda: of_lines(lines(text=["one"] * 48), columns=None), "column 'text' holds text; turn it into tokens with ds.map, or name the other inputs: columns=[...]"),
    "text alone": (lambda: of_lines(lines(text=["one"] * 48), columns=["text"]), "column 'text' holds text; turn it into tokens with ds.map, or name the other inputs: columns=[...], or declare its categories: categories={'text': [...]}"),
    "a named model": (lambda: of_lines(lines(), model="mlp"), "the model 'mlp' reads one column of numbers or images and returns classes; give a module of your own: model=net"),
    "images of two sizes": (lambda: feduhb.Federation.from_huggingface(odd(PIL.Image.new("L", (4, 8))), **ANT), "column 'image' holds images of L (8, 8) and L (4, 8) (row 47); resize and convert them with ds.map"),
    "a palette": (lambda: feduhb.Federation.from_huggingface(odd(PIL.Image.new("P", (8, 8))), **ANT), "column 'image' holds an image of mode P in row 47; decode all images alike: ds.cast_column('image', datasets.Image(mode='RGB'))"),
    "no image": (lambda: feduhb.Federation.from_huggingface(odd(None), **ANT), "column 'image' holds not an image in row 47"),
}  # fmt: skip


def unlabelled() -> Dataset:
    columns = {name: pictures()[:3][name] for name in IMAGES}
    return Dataset.from_dict({**columns, "digit": [1, -1, 2]}, features=IMAGES)


def odd(last: Any) -> Dataset:
    columns = {name: pictures()[:][name] for name in IMAGES}
    return Dataset.from_dict({**columns, "image": [*columns["image"][:-1], last]}, features=IMAGES)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"test": 1.5}, "test is 1.5; give a share above 0 and below 1, such as 0.2"),
        ({"test": 0}, "test is 0.0; give a share above 0"),
        ({"held_out": -0.1}, "held_out is -0.1; give a share of at least 0 and below 1"),
        ({"held_out": "x"}, "held_out is 'x'; give a share"),
        (
            {"scaling": {"mask": (0, 1)}},
            "Federation.from_huggingface has no argument 'scaling'; besides its own",
        ),
    ],
)
def test_arguments_that_are_refused(more, words):
    with refused(ConfigError, words):
        of_lines(lines(), **more)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    make, words = REFUSED[name]
    with refused(DataError, words):
        make()


def test_classes_of_a_test_set_that_differ():
    other = lines(even=[0, 1] * 24).cast_column("even", ClassLabel(names=["many", "few"]))
    with refused(
        DataError, "declares the classes ['many', 'few'] in the test set, and ['few', 'many'] in the data"
    ):
        of_lines(lines(), test=other)


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    words = "Federation.from_huggingface needs the package datasets; in a clone: pip install -c constraints.txt '.[huggingface]'"
    with refused(DataError, words):
        feduhb.Federation.from_huggingface([], client="a", target="b")


def test_numbers_in_lists_take_torchs_default_type():
    ds = lines(tokens=[[0.1, 0.2 + row] for row in range(48)]).cast_column("tokens", List(Value("float64")))
    assert of_lines(ds, columns=["tokens"], model=nn.Linear(2, 2)).test.x.dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        made = of_lines(ds, columns=["tokens"], model=nn.Linear(2, 2))
        assert made.test.x[0].tolist() == [0.1, 0.2]
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_row_without_a_key_may_be_deleted_too(tmp_path):
    """Rows are split by their content, so the others stay where they are, and get their numbers back."""
    ds = lines(tokens=[[row / 48] * 4 for row in range(48)])
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    made = of_lines(ds, columns=["tokens"], model=model, seed=5)
    key = int(made.clients["cat"].keys[1])
    run = feduhb.unlearn(train(made), f"cat:{key}", rounds=2, out=tmp_path / "run", show=None)
    places = [place for place, ward in enumerate(WARDS) if ward == "cat"]
    left = ds.select([place for place in range(48) if place != places[key]])
    opened = feduhb.open_run(tmp_path / "run", of_lines(left, columns=["tokens"], model=model, seed=5))
    assert torch.equal(opened.params, run.params)


def test_a_transform_is_refused():
    with refused(
        DataError,
        "the data set has a transform of its own, which would run on every read; apply it once: ds.map",
    ):
        of_lines(lines().with_transform(lambda batch: batch))


@pytest.mark.parametrize("kind", ["torch", "numpy", None])
def test_columns_of_any_format_are_data(kind):
    ds = Dataset.from_dict({"x": [[0.5, row / 8] for row in range(8)], "y": [row % 2 for row in range(8)]})
    pair = (ds.with_format(kind)["x"], ds.with_format(kind)["y"])
    made = feduhb.Federation({"a": pair}, pair, nn.Linear(2, 2))
    assert made.clients["a"].all()[0].tolist()[3] == [0.5, 0.375]
