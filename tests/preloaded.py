"""What commands of the tests need: torch, the command line, and a data set. A fork server imports this module once."""

from importlib import import_module

import torch

from feduhb.data.load import load_dataset

NEEDED = (
    "feduhb.api",
    "feduhb.audit.audit",
    "feduhb.cli",
    "feduhb.report",
    "feduhb.runs.retire",
    "torch._dynamo",
)
for module in NEEDED:
    import_module(module)  # every optimiser imports torch._dynamo
torch.set_num_threads(1)  # a child hangs if its parent's threads have computed something before the fork
load_dataset("digits")
