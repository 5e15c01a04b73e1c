"""What commands of the tests need: torch, the command line, and a data set. A fork server imports this module once."""

from importlib import import_module

import torch

from feduhb.audit.attacks import misr
from feduhb.data.load import load_dataset
from quiet import FEW_TREES

NEEDED = (
    "feduhb.api",
    "feduhb.audit.audit",
    "feduhb.cli",
    "feduhb.report",
    "feduhb.runs.retire",
    "fontTools.subset",
    "jinja2",
    "matplotlib.backends.backend_pdf",
    "matplotlib.backends.backend_svg",
    "matplotlib.pyplot",
    "pydantic.dataclasses",
    "sklearn.ensemble",
    "sklearn.linear_model",
    "torch._dynamo",  # every optimiser imports it
)
for module in NEEDED:
    import_module(module)  # commands import many of these late, in every child again
torch.set_num_threads(1)  # a child hangs if its parent's threads have computed something before the fork
misr.TREES = {**misr.TREES, **FEW_TREES}
load_dataset("digits")
