"""How long a run takes: what its passes ask of the scheduler, and what that cost in a run that was measured."""
