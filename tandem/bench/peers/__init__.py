"""Engines that Tandem is measured against, each run by an interpreter of its own: nothing here imports Tandem."""
