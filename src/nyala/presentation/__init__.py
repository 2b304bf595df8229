"""What people see of tables, scans and results: `repr`, progress, explanations, and advice about
unknown methods.
"""
