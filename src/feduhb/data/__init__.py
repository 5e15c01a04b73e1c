"""Federations and where they come from: data sets, partitions, requests to forget, planted backdoors and canaries."""
