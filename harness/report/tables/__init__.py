"""The tables of a report: pure functions from contents of run.json and cell.json to rows, each number with its unit."""
