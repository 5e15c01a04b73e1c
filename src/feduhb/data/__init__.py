"""Who holds what: data sets, how they are shared out, what is asked to be forgotten, planted triggers."""
