"""A draft made from its target alone."""
