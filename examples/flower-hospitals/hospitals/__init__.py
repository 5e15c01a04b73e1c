"""Three hospitals that learn together, and what happens when one of them leaves."""
