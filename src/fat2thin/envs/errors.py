"""What goes wrong in a task that somebody else wrote."""


class TaskFailed(RuntimeError):
    """An environment raised an error or ended; says what it said."""
