"""What comes out follows the target's law: checks, and wrong rules that no check may pass (docs/exactness.md)."""
