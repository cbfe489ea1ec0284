"""What a model implies: block size N, bytes per token, state per sequence."""
