"""Python imports this module first, in every process that the tests start. It imports `loaded`."""

import loaded  # noqa: F401
