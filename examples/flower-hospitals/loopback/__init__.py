"""Whole Flower federations on one machine: a deployment with TLS, keys and a database, or a simulation."""

from loopback.deployment import Deployment
from loopback.running import COMPLETED, FederationError
from loopback.scrubbing import scrub
from loopback.simulation import Simulation

__all__ = ["COMPLETED", "Deployment", "FederationError", "Simulation", "scrub"]
