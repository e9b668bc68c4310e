"""Data and metrics."""
