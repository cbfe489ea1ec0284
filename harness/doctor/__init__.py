"""Is this machine ready for a run? Facts are gathered in one place, and judged by pure functions."""
