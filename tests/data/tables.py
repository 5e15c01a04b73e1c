"""A small table of patients for tests, with a client, numbers, a text column, dates and a class."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

HOSPITALS = ("east", "north", "south", "west")
DECLARED: dict[str, Any] = {
    "client": "hospital",
    "target": "disease",
    "categories": {"sex": ["F", "M"]},
    "dates": {"admitted": "2020-01-01"},
    "classes": ["benign", "malignant"],
}
TRAINED = {"rounds": 3, "epochs": 1, "batch_size": 16, "lr": 0.1, "show": None}


def make_patients(count: int = 240, seed: int = 0) -> pd.DataFrame:
    """Return a table whose target depends on age, weight and sex."""
    draw = np.random.default_rng(seed)
    age, weight = draw.normal(50, 15, count).round(1), draw.normal(70, 12, count).round(1)
    sex = draw.choice(["F", "M"], count)
    sick = (age - 50) / 15 + (weight - 70) / 12 + (sex == "F") + draw.normal(0, 0.5, count) > 0
    return pd.DataFrame(
        {
            "hospital": draw.choice(HOSPITALS, count),
            "age": age,
            "weight": weight,
            "sex": sex,
            "admitted": (np.datetime64("2020-01-01") + draw.integers(0, 900, count)).astype(str),
            "disease": np.where(sick, "malignant", "benign"),
        }
    )
