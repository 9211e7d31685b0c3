"""The dossier of a run: the page that a committee reads, and a JSON twin with its numbers."""
