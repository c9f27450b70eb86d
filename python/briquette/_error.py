"""The error of this package."""


class FormatError(ValueError):
    """A file is damaged, incomplete, of a newer version, or not from Briquette.

    The message is one line: the file, the tensor or key, what was found, and what was expected.
    """
