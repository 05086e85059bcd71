"""The one error a user meets: a sentence that names what is wrong and what would be right."""


class InputError(ValueError):
    """Bad input: a file, row, option or value that cannot be used. The command line prints it and exits with 2."""


class DivergedError(InputError):
    """Training whose loss is no longer a number: with other settings it may go well."""
