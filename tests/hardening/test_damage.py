"""Damaged files and links in runs, odd values and requests at the same moment, a few of each kind; `make soak` tries them all."""

from __future__ import annotations

import random

import pytest

from hardening import fuzz, races
from hardening.damage import list_damages, refers_to, try_damage
from hardening.links import list_plants
from hardening.running import STATE, WORK_OF_AUDIT
from hardening.tally import Finding

pytestmark = pytest.mark.slow

SCENES = ("chain", "replay", "prepared", "working", "retired", "flower")
CASES = 8  # of each scene
PLANTED = 4
FUZZED = 24  # configs, and as many command lines
RACES = 2


def summarize(findings: list[Finding]) -> str:
    return "\n".join(map(str, findings))


@pytest.mark.parametrize("name", SCENES)
def test_a_damaged_run_is_refused_in_words_or_read_as_it_was(references, known, name):
    scene, draw = known[name], random.Random(name)
    cases = [
        (damage, command)
        for damage in list_damages(scene, seed=0, flips=1, keys=1)
        for command in scene.commands
        if refers_to(command, damage) and not command.is_slow
    ]
    chosen = draw.sample(cases, CASES)
    found = [one for damage, command in chosen for one in try_damage(references, scene, damage, command)]
    assert not found, summarize(found)


@pytest.mark.parametrize("name", SCENES)
def test_nothing_is_written_through_a_link(references, known, name):
    scene, draw = known[name], random.Random(name)
    cases = [
        (planted, command)
        for command in scene.commands
        if not command.is_slow
        for planted in list_plants(references, scene, command)
    ]
    chosen = draw.sample(cases, min(PLANTED, len(cases)))
    found = [one for damage, command in chosen for one in try_damage(references, scene, damage, command)]
    assert not found, summarize(found)


WORK = f"{STATE}/audits/{WORK_OF_AUDIT}"
SEEN = {  # what was wrong once: scene, path, damage and a word of the command
    ("chain", "first/result.json", "keys renamed", "train"),
    ("chain", "first/result.json", "100,000 times [", "train"),
    ("chain", "first/result.json", "a FIFO", "open_run"),
    ("chain", "first-feduhb/result.json", "a number", "unlearn"),
    ("chain", "first-feduhb", "a link to itself", "report"),
    ("chain", "first-feduhb/rounds.jsonl", "without its last line", "audit"),
    ("chain", "first-feduhb/rounds.jsonl", "without its last line", "next"),
    ("chain", "first-feduhb/audit.json", "keys renamed", "report"),
    ("chain", "first-feduhb/audit.json", "a folder in its place", "audit"),
    ("chain", "first-feduhb/lineage.json", "not UTF-8", "report"),
    ("chain", "first-feduhb/history/00002", "a link to a copy elsewhere", "next"),
    ("flower", "flower-interrupted", "unreadable", "train"),
    ("flower", "flower-fedrecover", "unreadable", "fedrecover"),
    ("working", f"{WORK}/audit-work/audit-work.json", "[]", "audit"),
    ("working", f"{WORK}/audit-work", "a link to a copy elsewhere", "audit"),
}


@pytest.mark.parametrize(("name", "path", "how", "word"), sorted(SEEN))
def test_what_was_wrong_once(references, known, name, path, how, word):
    scene = known[name]
    damages = [one for one in list_damages(scene, 0, 1, 1) if (str(one.path), one.name) == (path, how)]
    commands = [one for one in scene.commands if word in one.arguments]
    assert damages
    assert commands
    found = [
        one
        for damage in damages
        for command in commands
        for one in try_damage(references, scene, damage, command)
    ]
    assert not found, summarize(found)


@pytest.mark.parametrize("list_cases", [fuzz.list_configs, fuzz.list_command_lines])
@pytest.mark.usefixtures("known")
def test_odd_values_are_refused_in_words(watch, place, list_cases):
    cases = list_cases(0, FUZZED)
    found = [one for case in cases for one in fuzz.try_fuzzed(watch, place / "audited", case)]
    assert not found, summarize(found)


@pytest.mark.parametrize("pair", races.PAIRS)
@pytest.mark.usefixtures("known")
def test_of_two_requests_at_once_one_is_served(watch, place, pair):
    found = [one for _ in range(RACES) for one in races.try_pair(watch, place / "trained", pair)]
    assert not found, summarize(found)
