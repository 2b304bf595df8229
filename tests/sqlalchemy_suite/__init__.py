"""SQLAlchemy's own tests of a dialect (`sqlalchemy.testing.suite`) over a store.

exclusions.py   what is left out, and why; docs/reference/sqlalchemy.md publishes it
requirements.py the features that the dialect has
plugin.py       loaded into the process that runs the suite
suite.py        the tests
test_suite.py   runs the suite in a process of its own, because its plugin changes all tests of a process
"""
