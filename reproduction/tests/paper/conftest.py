from report.browsing import browser

__all__ = ["browser"]
