"""What is kept to look at a failed cell and to run it again: its worst prompts, side by side, and their replay."""
