"""Python imports this before all else in what the tests start: see `loaded`."""

import loaded  # noqa: F401
