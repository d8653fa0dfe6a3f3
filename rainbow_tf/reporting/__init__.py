"""The report: tables, figures and the page."""
