"""The study of faster exact methods and of stop rules: chosen on some seeds, reported on others."""
