"""What tests run the system on: a clock that jumps, tiny models, and workers named for how they misbehave."""
