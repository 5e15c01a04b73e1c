"""Every method of the field side by side: one request, served by each, audited, with its costs."""
