"""A store-vs-retrieve gate for LMCache + vLLM: see docs/ and README.md."""

__version__ = "0.1.0"
