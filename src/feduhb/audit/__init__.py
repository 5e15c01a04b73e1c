"""Audits: did a run really forget? `feduhb.audit.result` can be read without torch."""
