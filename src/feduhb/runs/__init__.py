"""Runs: how one is planned, executed, recorded, opened again, and which run came from which.

`plan` holds what a run is to be, `execute` carries it out round by round with `loop`, and `folder` is what it leaves on disk.
"""
