"""Counters, running batch size, latencies and provenance."""
