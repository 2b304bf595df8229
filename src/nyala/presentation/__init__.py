"""What people see of tables, scans and results: `repr`, progress, and `explain()`."""
