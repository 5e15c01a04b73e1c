"""The names a user may rely on."""

import importlib.metadata

import pytest

import feduhb

NAMES = {
    *(
        "Audit",
        "Backdoor",
        "Canaries",
        "Crab",
        "FedAF",
        "FedAdam",
        "FedEraser",
        "FedExP",
        "FedNadam",
        "FedRecover",
        "FedRecovery",
        "FedUHB",
        "FedYogi",
        "Federation",
        "FeduhbError",
        "FineTune",
        "Local",
        "Loop",
        "Method",
        "Nesterov",
        "NoT",
        "PGA",
        "Pool",
        "RapidRetrain",
        "Request",
        "Retrain",
        "Round",
        "Run",
        "Score",
        "Stacked",
        "TensorBoard",
    ),
    *(
        "Updates",
        "Work",
        "WuDistillation",
        "audit",
        "compare",
        "describe_table",
        "distance_stop",
        "dynamic_stop",
        "geometric_median",
        "krum",
        "load",
        "median",
        "never",
        "open_run",
    ),
    *("patience", "replay", "report", "retire", "train", "trimmed_mean", "unlearn", "weighted_mean"),
}


def test_the_public_names_are_these_and_no_others():
    assert set(feduhb.__all__) == NAMES
    assert set(dir(feduhb)) == NAMES


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_name_is_there_and_documented(name):
    assert getattr(feduhb, name).__doc__


def test_an_unknown_name_is_told_what_there_is():
    with pytest.raises(AttributeError, match=r"feduhb has no 'unlern'; it has PGA, Audit, Backdoor, "):
        _ = feduhb.unlern


def test_the_version_is_the_installed_one():
    assert feduhb.__version__ == importlib.metadata.version("feduhb")
