"""Predicates and assignments: binds expressions to a table's columns, and derives constraints for
pruning.
"""
