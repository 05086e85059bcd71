"""The one error a user meets: a sentence that names what is wrong and what would be right."""


class InputError(ValueError):
    """Bad input: a file, row, option or value that cannot be used. The command line prints it and exits with 2."""
