"""lm-eval tasks, stored prompts and the streaming completions model."""
