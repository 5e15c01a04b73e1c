"""The attacks of an audit: the same examples shown to the audited model, the original and Retrain."""
