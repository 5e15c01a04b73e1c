"""Whole Flower federations on one machine: a deployment with TLS, keys and a database, or a simulation."""

from loopback.deployment import Deployment
from loopback.programs import FederationError
from loopback.running import COMPLETED
from loopback.scrubbing import scrub
from loopback.simulation import Simulation

__all__ = ["COMPLETED", "Deployment", "FederationError", "Simulation", "scrub"]
