"""Hybrid timestamps, and the two watermarks that determine what a snapshot may see."""
