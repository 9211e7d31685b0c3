"""The compiled part of a run: programs, jobs, devices. It reads and writes no files."""
