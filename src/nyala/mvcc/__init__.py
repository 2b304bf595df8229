"""Timestamps, the clock that gives them, and the two watermarks: what writers and readers may see."""
