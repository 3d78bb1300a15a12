"""How a command fails: one clear line on stderr and exit code 1."""


class Failure(Exception):
    """The check or call failed. The message is one line with the cause and the cure."""
