"""The package's own errors: each says what was wrong, where, and what to do."""


class TopocapsError(Exception):
    """Anything this package refuses or cannot go on with."""


class BadInput(TopocapsError, ValueError):
    """A user's mistake: a shape, a value, a name or a folder that cannot be used."""


class NonFinite(TopocapsError, ArithmeticError):
    """Training met a value that is not finite; names the term and the step."""


class Interrupted(TopocapsError):
    """Training was stopped by the user after it had saved its state."""
