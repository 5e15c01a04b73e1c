"""Registered names are compared without case, spaces around them, invisible characters and forms of Unicode."""

import pytest
from flwr.app import ConfigRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

import feduhb
from federations import ragged
from feduhb import flower
from feduhb.errors import RequestError
from feduhb.flower.names import clean_name, fold_name
from flower.gridding import Seat, make_grid, make_key
from toys import quick

LOCAL = feduhb.Local(batch_size=8, lr=0.05)
FEDERATION = ragged()
SPELLINGS = [
    "Mallory ",
    " Mallory",
    "mallory",
    "MALLORY",
    "Mal\u200blory",  # zero width space
    "Mal\u00adlory",  # soft hyphen
    "Mallory\ufeff",
    "\u202eMallory",  # right to left
    "Mallory\u3164",  # a filler that shows nothing
    "Mallory\ufe0f",  # a variation selector
    "\uff2dallory",  # a wide M
    "Mallory\x00",
    "Mal\x1blory",
    "Mallory\r",
    "Mallory\u00a0",
]


def unlearn(grid, forget, **more):
    settings = {"epochs": 1, "stop": feduhb.never, "seed": 7, "local": LOCAL, "timeout": 0.6, **more}
    return flower.FedUHB(forget, **settings).start(grid, flower.fresh_arrays(FEDERATION.model, 7), 2)


def make_named_grid(name="Mallory"):
    grid = make_grid(FEDERATION, keyed=True)
    grid.seats[101].name = name
    return grid


@pytest.mark.parametrize("spelled", SPELLINGS)
def test_a_leaver_that_returns_under_another_spelling_of_its_name_is_not_asked(spelled):
    grid = make_named_grid()

    def renew(message):
        if 101 in grid.seats and message.metadata.message_type == "train":
            grid.seats[555] = Seat(grid.seats.pop(101).app, {}, make_key(), spelled)

    grid.before = renew
    unlearn(grid, "Mallory")
    assert grid.list_trained() == {100, 102, 103, 104}


@pytest.mark.parametrize("spelled", ["Mallory ", "mallory", "Mal\u200blory"])
def test_two_clients_under_spellings_of_one_name_must_be_named_by_key(spelled, caplog):
    grid = make_named_grid()
    grid.seats[100].name = spelled
    with pytest.raises(RequestError, match=r"2 clients are registered as 'Mallory'.*by its key"):
        unlearn(grid, "Mallory")
    leaver, other = (flower.key_id(grid.seats[node].key) for node in (101, 100))
    unlearn(grid, leaver)
    assert grid.list_trained() == {100, 102, 103, 104}
    assert (
        f"Mallory ({leaver}) is forgotten, but {clean_name(spelled)} ({other}) is registered under"
        in caplog.text
    )


def test_rows_are_dropped_under_another_spelling_too(tmp_path):
    grid = make_named_grid("dog")
    grid.seats[103].name = "other"
    unlearn(grid, {"dog": [0, 3]}, checkpoint=tmp_path / "first")
    grid.seats[555] = Seat(grid.seats.pop(101).app, {"partition-id": 1}, make_key(), "Dog ")
    unlearn(grid, ["cat"], trained=tmp_path / "first", checkpoint=tmp_path / "second")
    (told, *_) = (told for node, kind, told in grid.sent if node == 555 and kind == "train")
    assert told["forget-rows"] == [0, 3]


def test_different_names_stay_different():
    for a, b in [("site-1-1", "site-11"), ("Klinik Süd", "Klinik Sud"), ("a b", "ab"), ("c1", "c01")]:
        assert fold_name(a) != fold_name(b)
    assert fold_name("Straße") == fold_name("STRASSE")
    assert fold_name("\u200b") == ""


@quick
@given(st.text(max_size=30))
def test_folding_twice_changes_nothing(name):
    assert fold_name(fold_name(name)) == fold_name(name)
    assert fold_name(f" {name}\u200b") == fold_name(name)


def test_a_name_that_shows_nothing_is_no_name():
    grid = make_named_grid("\u200b")
    with pytest.raises(RequestError, match=r"U\+200B in it cannot be seen"):
        unlearn(grid, ["\u200b"])
    unlearn(grid, flower.key_id(grid.seats[101].key))
    assert grid.list_trained() == {100, 102, 103, 104}


def test_names_with_control_characters_reach_logs_and_files_as_a_line(tmp_path, caplog):
    grid = make_named_grid("Mal\x1b[2J\r\nlory" + "x" * 1000)
    with caplog.at_level("INFO", logger="flwr.feduhb"):
        outcome = unlearn(grid, "elk", checkpoint=tmp_path)
    names = outcome.names.values()
    assert all(name.isprintable() and len(name) <= 100 for name in names)
    assert all(record.getMessage().isprintable() for record in caplog.records)


def answer_queries(app, change):
    def handle(message, context):
        reply = app(message, context)
        if message.metadata.message_type.startswith("query"):
            change(reply.content)
        return reply

    return handle


def add_record(content: RecordDict) -> None:
    content["more"] = ConfigRecord({"a": b"x" * 1000})


def test_a_query_reply_with_another_record_is_refused(caplog):
    grid = make_grid(FEDERATION)
    grid.seats[101].app = answer_queries(grid.seats[101].app, add_record)
    with pytest.raises(feduhb.errors.AnswerError, match=r"it answered with an unexpected record 'more'"):
        unlearn(grid, "c01")
    grid = make_named_grid()
    grid.seats[101].app = answer_queries(grid.seats[101].app, add_record)
    unlearn(grid, "Mallory")
    assert "was told to leave: it answered with an unexpected record 'more'" in caplog.text
