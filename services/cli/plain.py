"""Text that came from elsewhere, made fit for a terminal."""


def plain(text: str) -> str:
    """Return `text` with what a terminal would obey, or not show, spelled out.

    Names of models come from engines, and Redis may have been edited by anybody's hand.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
