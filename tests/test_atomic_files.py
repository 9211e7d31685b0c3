"""Atomic writing and safe opening of files: planted links and pipes are never followed."""

import os
import re
import socket

import pytest

from fat2thin import atomic_files
from fat2thin.atomic_files import (
    NotRegularFileError,
    open_regular,
    remove_partial,
    write,
    writing,
    writing_folder,
)

GUESSED = "0123456789abcdef"


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def victim(tmp_path):
    """A file in another folder that must not change."""
    place = tmp_path / "elsewhere"
    place.mkdir()
    (place / "victim").write_text("precious")
    yield place / "victim"
    assert (place / "victim").read_text() == "precious"


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "folder"
    place.mkdir()
    return place


def test_a_failed_write_keeps_the_old_contents(folder):
    place = folder / "file"
    write(place, b"first")
    write(place, b"second")
    assert place.read_bytes() == b"second" and names(folder) == ["file"]
    with pytest.raises(KeyboardInterrupt), writing(place) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert place.read_bytes() == b"second" and names(folder) == ["file"]


def test_the_mode_of_a_file_follows_the_umask(folder):
    before = os.umask(0o027)
    try:
        write(folder / "file", b"")
    finally:
        os.umask(before)
    assert (folder / "file").stat().st_mode & 0o777 == 0o640


def test_temporary_names_are_random(folder):
    seen = []
    for _ in range(2):
        with writing(folder / "file"):
            seen += names(folder)
    assert len({name for name in seen if name != "file"}) == 2
    assert all(re.fullmatch(r"\.file\.[0-9a-f]{16}\.partial|file", name) for name in seen)


def test_links_at_predictable_names_are_not_followed(folder, victim):
    for name in (".file.partial", "file"):
        (folder / name).symlink_to(victim)
    write(folder / "file", b"new")
    assert not (folder / "file").is_symlink() and (folder / "file").read_bytes() == b"new"


def test_a_link_at_a_guessed_temporary_name_is_an_error(folder, victim, monkeypatch):
    monkeypatch.setattr(atomic_files.secrets, "token_hex", lambda _: GUESSED)
    planted = folder / f".file.{GUESSED}.partial"
    planted.symlink_to(victim)
    with pytest.raises(FileExistsError):
        write(folder / "file", b"new")
    with pytest.raises(FileExistsError), writing_folder(folder / "file"):
        pass
    assert names(folder) == [planted.name]


def test_a_folder_appears_with_all_of_its_files_or_not_at_all(folder):
    def fill(text, fail=False):
        with writing_folder(folder / "made") as temporary:
            (temporary / "a").write_text(text)
            assert text == "first" or (folder / "made" / "a").read_text() == "first"
            if fail:
                raise KeyboardInterrupt

    fill("first")
    with pytest.raises(KeyboardInterrupt):
        fill("half", fail=True)
    assert (folder / "made" / "a").read_text() == "first"
    fill("second")
    assert (folder / "made" / "a").read_text() == "second" and names(folder) == ["made"]


def test_only_our_own_partial_files_are_removed(folder, victim):
    for name in (f".run.json.{GUESSED}.partial", f".a b.{GUESSED}.partial"):
        (folder / name).write_text("half")
    (folder / f".step.{GUESSED}.partial").mkdir()
    (folder / f".step.{GUESSED}.partial" / "inside").write_text("half")
    others = [".notes.partial", "run.json", f"x.{GUESSED}.partial", f".y.{GUESSED[:-1]}.partial"]
    for name in others:
        (folder / name).write_text("mine")
    (folder / f".link.{GUESSED}.partial").symlink_to(victim)
    (folder / f".dir.{GUESSED}.partial").symlink_to(victim.parent)
    remove_partial(folder)
    links = [f".link.{GUESSED}.partial", f".dir.{GUESSED}.partial"]
    assert names(folder) == sorted([*others, *links])
    remove_partial(folder / "nowhere")


@pytest.mark.parametrize("follow", [True, False])
def test_only_regular_files_are_opened(folder, victim, follow, no_hang):
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(folder / "socket"))
    (folder / "zero").symlink_to("/dev/zero")
    (folder / "loop").symlink_to("loop")
    for place in (folder / "pipe", folder / "socket", folder / "zero", folder / "loop", folder):
        with pytest.raises(NotRegularFileError, match=re.escape(f"{place} is a")):
            open_regular(place, follow_links=follow)
    with pytest.raises(FileNotFoundError):
        open_regular(folder / "nothing", follow_links=follow)
    with open_regular(victim, follow_links=follow) as file:
        assert file.read() == b"precious"
    (folder / "link").symlink_to(victim)
    if follow:
        open_regular(folder / "link").close()
    else:
        with pytest.raises(NotRegularFileError, match="is a symbolic link, not a regular file"):
            open_regular(folder / "link", follow_links=False)
