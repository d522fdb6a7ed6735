"""Patches of shipped functions: what mutants.py registers. Each says what it does wrong."""
