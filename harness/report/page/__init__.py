"""The report as one HTML page that needs nothing else: no request leaves it, with or without a network."""

from harness.report.page.render import figures_of, page

__all__ = ["figures_of", "page"]
