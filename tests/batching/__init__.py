"""Many requests at once: ragged steps, memory under pressure, shared prefixes, those who leave, those who wait."""
