"""Validity checks, paired statistics and the verdict: functions over what passes wrote."""
