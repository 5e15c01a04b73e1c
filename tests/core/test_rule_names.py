"""Rules by their spelling in a config, there and back."""

from __future__ import annotations

import functools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feduhb.core.aggregate import RULES, format_rule, krum, median, parse_rule, trimmed_mean, weighted_mean
from feduhb.errors import ConfigError
from toys import block_of, quick

FIVE = block_of({"a": [0.0], "b": [1.0], "c": [100.0], "d": [2.0], "e": [3.0]})


@pytest.mark.parametrize("name", list(RULES))
def test_a_plain_name_is_the_rule_itself(name: str):
    assert parse_rule(name) is RULES[name][0]
    assert format_rule(parse_rule(name)) == name


@quick
@given(st.floats(0, 0.49) | st.sampled_from([0.1, 0.2, 0.3]))
def test_a_share_comes_back_as_it_was_written(trim: float):
    assert format_rule(parse_rule(f"trimmed_mean:{trim}")) == f"trimmed_mean:{trim}"
    again = parse_rule(format_rule(functools.partial(trimmed_mean, trim=trim)))
    assert torch.equal(again([FIVE]), trimmed_mean([FIVE], trim=trim))


@quick
@given(st.integers(0, 20))
def test_a_count_comes_back_as_it_was_written(hostile: int):
    assert format_rule(parse_rule(f"krum:{hostile}")) == f"krum:{hostile}"


def test_the_parameter_is_used():
    assert parse_rule("trimmed_mean:0.4")([FIVE]).item() == 2.0
    assert parse_rule("trimmed_mean:0")([FIVE]).item() == pytest.approx(21.2)
    assert torch.equal(parse_rule("krum:1")([FIVE]), krum([FIVE], hostile=1))


def test_a_rule_of_ones_own_is_named_by_its_function():
    def halved(answers):
        return weighted_mean(answers) / 2

    class Doubled:
        def __call__(self, answers):
            return weighted_mean(answers) * 2

    assert format_rule(halved) == "halved"
    assert format_rule(Doubled()) == "Doubled"


def test_two_lookups_spell_the_same():
    assert format_rule(parse_rule("krum:2")) == format_rule(parse_rule("krum:2"))
    assert parse_rule("median") is median


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("mode", "there is no aggregation rule 'mode'; choose one of " + ", ".join(RULES)),
        ("", "there is no aggregation rule ''; choose one of " + ", ".join(RULES)),
        ("median:3", "median takes no parameter, but 'median:3' gives one; write 'median'"),
        (
            "weighted_mean:1",
            "weighted_mean takes no parameter, but 'weighted_mean:1' gives one; write 'weighted_mean'",
        ),
        ("krum:many", "'krum:many': 'many' is not a number for hostile; write for example krum:3"),
        ("krum:1.5", "'krum:1.5': '1.5' is not a number for hostile; write for example krum:3"),
        (
            "trimmed_mean:x",
            "'trimmed_mean:x': 'x' is not a number for trim; write for example trimmed_mean:0.2",
        ),
    ],
)
def test_spellings_that_cannot_be(spec: str, words: str):
    with pytest.raises(ConfigError) as error:
        parse_rule(spec)
    assert str(error.value) == words


@pytest.mark.parametrize("spec", ["trimmed_mean:0.5", "trimmed_mean:nan", "krum:-1"])
def test_a_parameter_that_cannot_be_is_refused_when_it_is_read_not_when_clients_have_worked(spec: str):
    with pytest.raises(ConfigError):
        parse_rule(spec)
