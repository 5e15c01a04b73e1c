"""The attacks of an audit: each shows the same examples to the audited model, the original and Retrain."""
