"""Hybrid timestamps and the two watermarks that decide what a snapshot may see."""
