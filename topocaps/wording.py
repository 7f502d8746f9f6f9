"""Numbers in sentences."""


def counted(n: int, what: str) -> str:
    """A number of things.

    >>> counted(1, "epoch"), counted(2000, "frame")
    ('1 epoch', '2,000 frames')
    """
    return f"{n:,} {what}" + "s" * (n != 1)
