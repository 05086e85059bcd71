"""Errors for bad input. Each message states the problem and what to do."""


class InputError(ValueError):
    """A file, row, option or value that cannot be used. The command line prints the message and exits with code 2."""


class DivergedError(InputError):
    """The training loss is no longer finite. Other settings, such as a lower learning rate, may help."""
