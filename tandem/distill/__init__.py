"""A draft for any target, made from nothing but the target: it writes, a few of its layers learn from what it wrote."""
