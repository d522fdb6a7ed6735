"""Measurements of Tandem against what it is built on. Every figure is a ratio of things timed in turn in one run."""
