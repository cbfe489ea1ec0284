"""The pocket model: checkpoint, problems and their generator."""

from pathlib import Path

CHECKPOINT = Path(__file__).parent / "checkpoint"
"""The committed model."""
