"""The chapters of a report, one module each."""
