"""What the paper prints, to stand beside what was measured, and how its methods are named and drawn.

Most of its results are figures without numbers: only what its text and its one table say is here.
"""

from __future__ import annotations

from collections.abc import Mapping

from feduhb.report.style import GREY, OWN, Stroke
from feduhb_reproduction.cells import ORIGINAL, RETRAIN

Printed = Mapping[str, Mapping[str, str]]  # by data set and method

CORRECTED = "fedrecover-corrected"
METHODS = (RETRAIN, "federaser", "fedrecover", CORRECTED, "feduhb")
LABELS = {
    ORIGINAL: "original",
    RETRAIN: "Retrain",
    "federaser": "FedEraser",
    "fedrecover": "FedRecover",
    CORRECTED: "FedRecover, corrected",
    "feduhb": "FedUHB",
    "feduhb-on": "FedUHB, rule off",
}
ROWS = {**LABELS, "feduhb": "FedUHB, under its rule"}  # where a table must say which run of FedUHB it means
DEEP = "#45107F"  # violet, dark enough to be seen on FedRecover's
STROKES = {
    ORIGINAL: Stroke(GREY, "dashed"),
    RETRAIN: Stroke(OWN[RETRAIN], "solid", wide=True),
    "federaser": Stroke(OWN["federaser"], "solid"),
    "fedrecover": Stroke(OWN["fedrecover"], "solid"),
    CORRECTED: Stroke(DEEP, "dotted"),
    "feduhb": Stroke(OWN["feduhb"], "solid"),
    "feduhb-on": Stroke(OWN["feduhb"], "dashed"),
}
SECONDS: Mapping[str, Mapping[str, float]] = {  # "of each unlearning round"
    "mnist": {RETRAIN: 1.26, "federaser": 1.47, "fedrecover": 2.00, "feduhb": 0.77},
    "cifar10": {RETRAIN: 16.89, "federaser": 18.58, "fedrecover": 20.01, "feduhb": 12.51},
}
LAMBDA: Mapping[str, Mapping[float, tuple[int, float]]] = {  # rounds and accuracy
    "mnist": {0.4: (30, 0.9386), 0.6: (22, 0.9302)}
}
GOAL = {"mnist": 0.93}  # the accuracy that the paper's figures come to
ACCURACY: Printed = {
    "mnist": {"feduhb": "93.02% (22 rounds)"},
    "cifar10": {"fedrecover": "around 30%", "feduhb": "best of the four"},
}
REACHED: Printed = {
    "mnist": {RETRAIN: "slow", "federaser": "slow", "fedrecover": "quick, not optimal", "feduhb": "about 20"}
}
MISR: Printed = {
    "mnist": {
        RETRAIN: "23.9%",
        "federaser": "close to 50%",
        "fedrecover": "close to 50%",
        "feduhb": "under these two",
    },
    "cifar10": {"feduhb": "better than Retrain"},
}
ASR: Printed = {
    "mnist": {"feduhb": "3.35%"},
    "cifar10": {
        RETRAIN: "under the other two",
        "feduhb": "under the other two",
    },
}
