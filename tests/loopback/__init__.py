"""Run whole Flower federations on one machine: a deployment with TLS, keys and a database, or a simulation."""

from loopback.deployment import Deployment
from loopback.federation import LocalFederation
from loopback.programs import FederationError, exit_on_signals
from loopback.simulation import Simulation

__all__ = ["Deployment", "FederationError", "LocalFederation", "Simulation", "exit_on_signals"]
