"""Entry points of other packages: found, listed, and refused in words if they cannot be used."""

from __future__ import annotations

import pytest

from feduhb.core.plugins import find_plugin, list_plugins
from feduhb.errors import ConfigError
from plugging import install_package

GROUP = "feduhb.tests"


def test_an_object_of_another_package(tmp_path, monkeypatch):
    install_package(
        tmp_path,
        monkeypatch,
        "plug_fine",
        "def make():\n    return 7\n",
        f"[{GROUP}]\nseven = plug_fine:make\n",
    )
    made = find_plugin(GROUP, "seven")
    assert made is not None
    assert made() == 7
    assert find_plugin(GROUP, "eight") is None
    assert find_plugin("feduhb.others", "seven") is None


def test_names_are_sorted_and_listed_once(tmp_path, monkeypatch):
    for name in ("plug_b", "plug_a"):
        install_package(tmp_path, monkeypatch, name, "", f"[{GROUP}]\nzoo = {name}\n{name} = {name}\n")
    assert list_plugins(GROUP) == ["plug_a", "plug_b", "zoo"]
    assert list_plugins("feduhb.others") == []


def test_listing_imports_nothing(tmp_path, monkeypatch):
    install_package(
        tmp_path, monkeypatch, "plug_broken", "raise RuntimeError", f"[{GROUP}]\nbad = plug_broken\n"
    )
    assert list_plugins(GROUP) == ["bad"]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import no_such_module", r"No module named 'no_such_module'"),
        ("raise ValueError('two\\nlines')", "two lines"),
        ("raise RuntimeError", "RuntimeError"),
        ("", "module 'plug_bad' has no attribute 'make'"),
    ],
)
def test_a_package_that_cannot_be_imported_is_named(code, reason, tmp_path, monkeypatch):
    install_package(tmp_path, monkeypatch, "plug_bad", code, f"[{GROUP}]\nbad = plug_bad:make\n")
    words = rf"^'bad' of {GROUP} cannot be imported from plug_bad 1.0 \({reason}\); repair or uninstall that package$"
    with pytest.raises(ConfigError, match=words):
        find_plugin(GROUP, "bad")


def test_two_packages_under_one_name_are_refused(tmp_path, monkeypatch):
    for name in ("plug_one", "plug_two"):
        install_package(tmp_path, monkeypatch, name, "make = 1", f"[{GROUP}]\nsame = {name}:make\n")
    words = rf"'same' is registered in {GROUP} by several packages \(plug_one 1.0, plug_two 1.0\); keep one"
    with pytest.raises(ConfigError, match=words):
        find_plugin(GROUP, "same")


def test_a_package_that_is_found_twice_is_one(tmp_path, monkeypatch):
    """As with an installation that is editable and on the path too."""
    for place in ("a", "b"):
        install_package(
            tmp_path / place, monkeypatch, "plug_twice", "make = 1", f"[{GROUP}]\ntwice = plug_twice:make\n"
        )
    assert find_plugin(GROUP, "twice") == 1
