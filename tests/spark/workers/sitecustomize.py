"""Python imports this module first in what the tests start: see `loaded`."""

import loaded  # noqa: F401
