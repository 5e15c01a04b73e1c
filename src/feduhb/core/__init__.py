"""Values and laws: no files, no clock, no global random state."""
