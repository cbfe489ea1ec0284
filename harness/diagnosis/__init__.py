"""From the logs of vLLM and LMCache to a cause, the line that shows it, and what mends it."""
