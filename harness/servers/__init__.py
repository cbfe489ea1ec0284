"""LMCache and vLLM as child process groups."""
