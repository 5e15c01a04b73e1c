"""The paper, reproduced: its grid of experiments cell by cell, and its theorem, measured."""
