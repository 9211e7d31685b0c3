import inspect
import itertools
import re
import subprocess
import sys
import typing

import pytest
from tyro.extras import SubcommandApp

import fat2thin
from fat2thin import data, training
from fat2thin.cli.commands import app
from fat2thin.cli.experiments import ClusterArguments, CommandOptions
from fat2thin.cli.main import main
from fat2thin.cli.reading import LISTS, LISTS_OF, merge_repeated
from fat2thin.cli.train import TrainOptions
from fat2thin.settings import published as published_settings
from fat2thin.settings.spec import choose_spec
from fat2thin.training import load, progress

BARE = ["train", "stand_in", "tiny/own", "--steps", "6", "--evaluate-every", "3"]
TRAIN = [*BARE, "--settings-from", "default"]


def output(arguments, capsys):
    main(arguments)
    return capsys.readouterr().out


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path / "run")


def test_train_show_and_evaluate(folder, capsys):
    trained = output([*TRAIN, "--seeds", "2", "--out", folder, "--set", "noise=0.5"], capsys)
    assert "6 steps, 2 seeds" in trained
    lines = re.findall(r"^step (\d+): actor_centre -?[\d.]+, actor_sampled", trained, re.MULTILINE)
    assert lines == ["0", "3", "6"]
    shown = output(["show", folder], capsys)
    assert "stand_in on tiny/own, seeds 0, 1, after step 6" in shown
    assert trained.endswith(shown)
    for row in ("actor_sampled", "proposal_centre", "nothing", "loss", "reward"):
        assert re.search(rf"^{row} ", shown, re.MULTILINE)
    judged = output(["evaluate", folder, "--episodes", "7"], capsys)
    assert "7 fresh episodes per seed (draw 0)" in judged
    assert load(folder).spec.config.noise == 0.5
    again = output([*TRAIN, "--seeds", "2", "--out", folder, "--set", "noise=0.5"], capsys)
    assert "6 steps" not in again and again == shown


def test_published_settings_are_used_and_their_source_shown(folder, capsys, monkeypatch):
    record = published_settings.PublishedRecord(
        "stand_in", "own", ("tiny/own",), {"noise": 0.5, "learning_rate": 0.2}, "A paper.",
        batch_size=8, standardise=True, reward_scale="return_range",
    )  # fmt: skip
    monkeypatch.setattr(published_settings, "records", lambda: (record,))
    arguments = [*BARE, "--settings-from", "own", "--out", folder, "--set", "noise=0.25"]
    note = (
        "settings from own: A paper.\nAs its authors do, the log is scaled: standardise=True, "
        "reward_scale=return_range (--no-standardise and --reward-scale 1 to turn off).\n"
    )
    assert f"\n{note}" in "\n" + output(arguments, capsys)
    spec = load(folder).spec
    assert (spec.settings_from, spec.batch_size) == ("own", 8)
    assert (spec.standardise, spec.reward_scale) == (True, "return_range")
    assert (spec.config.noise, spec.config.learning_rate) == (0.25, 0.2)
    with pytest.raises(SystemExit, match="there are: 'own' on tiny/own"):
        main([*BARE, "--settings-from", "fttpo"])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], None), (["--standardise"], True), (["--no-standardise"], False),
        (["--standardise=False"], False), (["--no_standardise", "--seeds", "2"], False),
    ],
)  # fmt: skip
def test_standardising_is_on_off_or_left_to_the_settings(words, expected, monkeypatch):
    seen = []

    def choose(*arguments, **options):
        seen.append(options.get("standardise"))
        raise ValueError("enough")

    monkeypatch.setattr("fat2thin.settings.spec.choose_spec", choose)
    with pytest.raises(SystemExit, match="enough"):
        main([*BARE, *words])
    assert seen == [expected]


def test_a_flag_takes_no_value():
    with pytest.raises(SystemExit, match="'True' is one too many"):
        main([*BARE, "--standardise", "True"])


def test_published_settings_are_listed(capsys):
    text = output(["published", "fttpo", "--dataset", "treatment/quadratic"], capsys)
    assert "temperature 0.01" in text and "batch_size 256" in text
    assert re.search(r"^\[\d\] +FtTPO authors' code.* SimEnv3", text, re.MULTILINE)
    assert "halfcheetah" not in text
    every = output(["published", "iql"], capsys)
    assert "iql, from fttpo, policy beta\n" in every
    assert "ikostrikov/implicit_q_learning" in every


@pytest.mark.parametrize(
    ("seeds", "expected"), [("2", (0, 1)), ("3,", (3,)), ("3,5", (3, 5)), ("[4]", (4,))]
)
def test_seeds_are_a_count_or_a_list(seeds, expected, monkeypatch):
    seen = []
    monkeypatch.setattr(training, "execute", lambda spec, *_: seen.append(spec) or sys.exit(0))
    with pytest.raises(SystemExit):
        main([*TRAIN, "--seeds", seeds])
    assert seen[0].seeds == expected


@pytest.mark.parametrize(
    "repeated",
    [
        ["--set", "noise=0.5", "rounds=2", "--set", "loud=True"],
        ["--set=noise=0.5", "--seeds", "1", "--set", "rounds=2", "--set=loud=True"],
        [
            "--snapshots",
            "1",
            "--set",
            "noise=0.5",
            "rounds=2",
            "--snapshots",
            "3",
            "--set",
            "loud=True",
        ],
    ],
)
def test_list_options_may_be_repeated(repeated, monkeypatch):
    seen = []
    monkeypatch.setattr(training, "execute", lambda spec, *_: seen.append(spec) or sys.exit(0))
    with pytest.raises(SystemExit):
        main([*TRAIN, *repeated])
    (spec,) = seen
    assert (spec.config.noise, spec.config.rounds, spec.config.loud) == (0.5, 2, True)
    assert spec.snapshots == ((1, 3) if "--snapshots" in repeated else ())


def every_command(registered):
    """Yield the functions of all commands, including those of command groups."""
    for command in registered._subcommands.values():
        target = command.target
        yield from every_command(target) if isinstance(target, SubcommandApp) else [target]


GROUPS = ("options", "cluster")  # parameters that stand for several options


def test_exactly_the_options_with_several_values_are_merged():
    """The parser knows these options by type, `merge_repeated` by name."""
    several, one = set(), set()
    for command in [*every_command(app), TrainOptions, CommandOptions, ClusterArguments]:
        kinds = typing.get_type_hints(command)
        marked = typing.get_type_hints(command, include_extras=True)
        for name, parameter in inspect.signature(command).parameters.items():
            if parameter.kind is not parameter.POSITIONAL_ONLY and name not in GROUPS:
                marks = getattr(marked[name], "__metadata__", ())
                renamed = [mark.name for mark in marks if getattr(mark, "name", None)]
                option = (*renamed, name.replace("_", "-"))[0]
                (several if typing.get_origin(kinds[name]) is tuple else one).add(option)
    assert several == {*LISTS, *LISTS_OF["export"]}
    assert several & one == {*LISTS_OF["export"]}
    assert merge_repeated(["export", "--to", "c", "--to", "onnx"]) == [
        "export",
        "--to",
        "c",
        "onnx",
    ]


def test_whole_numbers_may_have_an_exponent(monkeypatch):
    seen = []
    monkeypatch.setattr(training, "execute", lambda spec, *_: seen.append(spec) or sys.exit(0))
    numbers = ["--log-every=100_000", "--seeds", "1e1", "--snapshots", "1e2", "2.5e4"]
    with pytest.raises(SystemExit):
        main(["train", "stand_in", "--steps", "1e5", "tiny/own", *numbers, "--set", "rounds=2e0"])
    (spec,) = seen
    assert (spec.steps, spec.log_every, spec.snapshots) == (100_000, 100_000, (100, 25_000))
    assert spec.seeds == tuple(range(10)) and spec.config.rounds == 2


@pytest.mark.parametrize(
    ("arguments", "meant", "option"),
    [
        ([*TRAIN, "--sedes", "3"], "--seeds", "--checkpoint-seconds"),
        (["sweep", "bc", "x", "--report_sedes=3"], "--report-seeds", "--grid"),
        (["show", "--folow", "here"], "--follow", "--follow"),
        (["data", "make", "a", "b", "--row", "3"], "--rows", "--discount"),
    ],
)
def test_an_unknown_option_lists_the_options_of_its_command(arguments, meant, option):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    first, listed = end.value.code.split("\n", 1)
    assert re.fullmatch(
        rf"fat2thin: `fat2thin .*` has no option .* \(did you mean {meant}\?\)", first
    )
    assert option in listed and listed.startswith("Its options: ")
    assert ("--preset" in listed, "--follow" in listed) == (False, "show" in arguments)


def test_positional_arguments_may_stand_around_options(capsys):
    text = output(["show", "here", "--no-follow", "there"], capsys)
    assert text.startswith("2 run folders")


def test_arguments_after_two_dashes_are_unchanged():
    assert merge_repeated(["show", "--follow", "--", "--follow"]) == [
        "show", "--follow", "--", "--follow",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "stand_on", "tiny/own", "--steps", "1"], "no algorithm is called 'stand_on'"),
        (["train", "stand_in", "tny/own", "--steps", "1"], "did you mean 'tiny/own'"),
        ([*TRAIN, "--set", "nose=1"], "no setting 'nose'; there are noise, "),
        ([*TRAIN, "--set", "noise"], "a setting is written NAME=VALUE, got 'noise'"),
        ([*TRAIN, "--set", "learning_rate=-1"], "learning_rate must be positive"),
        ([*TRAIN, "--set", "learning_rate=fast"], "learning_rate must be one number, got 'fast'"),
        ([*TRAIN, "--set", "noise=1", "noise=2"], "noise is set twice, to 1 and 2: set it once"),
        ([*TRAIN, "--set", "noise=1", "--set=noise=2"], "noise is set twice, to 1 and 2"),
        ([*TRAIN, "--checkpoint-seconds", "-1"], "checkpoint_seconds must be at least 0, got -1"),
        ([*TRAIN, "--checkpoint-seconds", "nan"], "checkpoint_seconds must be at least 0, got nan"),
        ([*TRAIN, "--out", "/proc/x"], "/proc/x: No such file or directory"),
        ([*TRAIN, "--steps", "7"], "--steps is given twice"),
        ([*TRAIN, "--settings_from=auto"], "--settings-from is given twice"),
        (["show", "here", "--follow", "--no-follow"], "--follow is given twice"),
        ([*TRAIN, "--seeds", "0"], "seeds must be"),
        (["show", "nowhere"], "nowhere holds no run: there is no such folder"),
        (
            ["verify", "nowhere"],
            "nowhere does not exist: give the folder of a run or an export",
        ),
        (["verify", __file__], "test_main.py is none of these, or damaged: give the folder of a"),
        (["value", "nowhere", "--out", __file__], "test_main.py is a file: choose a folder with"),
        (
            ["figures", "nowhere", "--out", f"{__file__}/x"],
            "test_main.py is a file: choose a folder",
        ),
        (["validate", "nowhere", "x.npz", "--out", __file__], "test_main.py is a file: choose a"),
        (
            ["certify", "nowhere", "box.toml", "--seconds", "-1"],
            "--seconds must be at least 0, got",
        ),
        (["certify", "nowhere", "box.toml", "--gap", "nan"], "--gap must be at least 0, got nan"),
        (["show", "nowhere", "--follow"], "nowhere holds no run"),
        (["show", "here", "there", "--follow"], "exactly one with --follow"),
        (["show"], "show needs a run folder"),
        (["evaluate", "nowhere"], "nowhere holds no run"),
        (["settings", "stand_on"], "no algorithm is called 'stand_on'"),
        (["published", "stand_on"], "no settings of 'stand_on' are known"),
        (["trian"], "`fat2thin` has no command 'trian' (did you mean 'train'?); there are train, "),
        (["trian"], "more (`fat2thin --help` lists all)"),
        (
            ["data", "inf"],
            "no command 'inf' (did you mean 'info'?); there are info, split, convert, check",
        ),
        (["data"], "`fat2thin data` needs a command: info, check, template, split, convert, make"),
        (["--helo"], "`fat2thin` has no option --helo"),
        (["train", "stand_in"], "`fat2thin train` needs DATASET"),
        (["train"], "`fat2thin train` needs ALGORITHM and DATASET"),
        (["evaluate"], "`fat2thin evaluate` needs FOLDER"),
        (["report"], "report needs a run folder"),
        (["sweep", "stand_in", "tiny/own"], "`fat2thin sweep` needs --grid"),
        (
            ["train", "stand_in", "iql", "tiny/own"],
            "takes ALGORITHM DATASET; 'tiny/own' is one too",
        ),
        (["algorithms", "bc"], "`fat2thin algorithms` takes no positional arguments; 'bc'"),
        ([*BARE, "--out"], "--out of `fat2thin train` needs a value"),
        ([*BARE, "--log-every", "1.5"], "--log-every takes a whole number, such as 20000 or 1e5"),
        ([*BARE, "--log-every", "1e999999999"], "--log-every takes a whole number"),
        ([*BARE, "--snapshots", "1", "x"], "--snapshots takes a whole number, such"),
        ([*BARE, "--holdout", "much"], "--holdout takes a number, got 'much'"),
        ([*BARE, "--select", "lst"], "--select cannot be 'lst' (did you mean 'last'?)"),
        (["reproduce", "time", "--dry-run"], "times are measured by this process: leave out opt"),
        (["reproduce", "fig33"], "more (`fat2thin reproduce --help` lists all)"),
        (["gallery", "--formats=png", "--formats=gif"], "--formats cannot be 'gif'; there are"),
        (["settings", "ftpo"], "(did you mean 'fttpo'?); there are fttpo, fttpo-sg, fttpo-spot"),
        (["settings", "ftpo"], "more (`fat2thin algorithms` lists all)"),
        (["data", "info", "cubik"], "no data set is called 'cubik'; there are treatment/cubic, "),
        (["data", "info", "cubik"], "more (`fat2thin data info` lists all)"),
        (
            ["train", "bc", "treatment/cubic", "--steps", "1", "--set", "hidden=64x64"],
            "hidden must be a list of whole numbers, got '64x64': write hidden=64,64",
        ),
        (["train", "bc", "treatment/cubic", "--set", "hidden=64"], "got 64: write hidden=64,"),
    ],
)
def test_a_user_error_is_one_line_and_a_status(arguments, message):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert message in end.value.code
    assert end.value.code.startswith("fat2thin: ")
    assert "\n" not in end.value.code


def test_divergence_is_one_line_and_a_status(folder):
    with pytest.raises(SystemExit, match=r"training diverged: loss .* at step \d"):
        main([*TRAIN, "--set", "learning_rate=1e30", "--out", folder])


def test_a_stopped_seed_is_shown_with_the_run(folder, capsys):
    """Seed 1 breaks at its third update; the tables show the other seed, which continues."""
    first = training.execute(training.make_spec("stand_in", "tiny/own", steps=1, seeds=2))
    bad = f"bad_identity={float(first.states.identity[1])}"
    output([*TRAIN, "--seeds", "2", "--out", folder, "--set", bad, "bad_update=2"], capsys)
    shown = output(["show", folder], capsys)
    assert "\nseed 1 stopped at step 3: loss was not finite. Its state after step 0 is" in shown
    assert re.search(r"^loss +(0\.\d+|[1-9]\S*) ", shown, re.MULTILINE)
    assert output(["show", folder, "--follow"], capsys) == shown
    assert "finished, 1 of 2 seeds stopped" in output(["show", folder, folder], capsys)


def test_another_run_in_the_folder_is_a_one_line_error(folder, capsys):
    output([*TRAIN, "--out", folder], capsys)
    with pytest.raises(SystemExit, match=r"holds another run \(seeds: "):
        main([*TRAIN, "--out", folder, "--seeds", "3"])


def test_settings_are_explained(capsys):
    text = output(["settings", "fttpo"], capsys)
    assert "temperature = 0.5" in text
    assert "--set NAME=VALUE" in text


def test_help_explains_the_options(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    text = capsys.readouterr().out
    for word in ("ALGORITHM DATASET", "--steps INT", "--seeds COUNT|LIST", "--set NAME=VALUE"):
        assert word in text


def _commands(commands, path=()):
    for name, command in commands.items():
        inner = getattr(command.target, "_subcommands", None)
        yield from _commands(inner, (*path, name)) if inner else [(*path, name)]


@pytest.mark.parametrize("words", [*_commands(app._subcommands)], ids=" ".join)
def test_the_help_of_every_command_has_whole_lines_and_no_defaults_that_say_nothing(
    words, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit) as end:
        main([*words, "--help"])
    text = capsys.readouterr().out
    assert not end.value.code and f"usage: fat2thin {' '.join(words)}" in text
    for noise in ("(default: None)", "(default: )", "(default: False)", "{None}"):
        assert noise not in text
    # A line that ends early is followed by a word that would not have fitted.
    body = [line.strip("│").rstrip() for line in text.splitlines() if line[:1] in ("│", " ")]
    assert body
    for line, below in itertools.pairwise(body):
        indent, inner = len(line) - len(line.lstrip()), len(below) - len(below.lstrip())
        if line and indent == inner > 2 and not line.endswith((".", ")", ":")):
            assert len(line) + 1 + len(below.split()[0]) > 96


class Terminal:
    """A standard error that claims to be a terminal."""

    def __init__(self):
        self.text = ""

    def isatty(self):
        return True

    def write(self, text):
        self.text += text

    def flush(self):
        """Do nothing: there is no buffer."""


def test_a_terminal_shows_a_progress_bar(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    shown = progress.for_terminal(otherwise=progress.Lines)
    with shown:
        shown.begin(1000, 3)
        for step in (250, 500, 1000):
            shown.advance(step)
            shown.evaluated(step, {"actor_sampled": step / 100})
    assert "3 seeds" in terminal.text
    assert "1000/1000" in terminal.text
    assert re.search(r"[\d,]+ steps/s, 0:00 left, actor 10.00", terminal.text)


def test_the_speed_excludes_the_first_chunk(monkeypatch, capsys):
    """Chunk one compiles for 50 s; then 100 steps take 10 s: 10 steps/s, 80 s for the last 800."""
    times = iter([50.0, 60.0, 70.0])
    monkeypatch.setattr(progress.time, "perf_counter", lambda: next(times))
    with progress.Lines() as shown:
        shown.begin(1100, 1)
        for step in (100, 200, 300):
            shown.advance(step)
        shown.evaluated(300, {"actor_sampled": 1.0})
    assert "step 300: actor_sampled 1.00 (10 steps/s, 1:20 left)" in capsys.readouterr().out


def test_training_without_evaluations_prints_a_line_now_and_then(monkeypatch, capsys):
    """The first chunk compiles; 25 s, 40 s, 60 s and 80 s later there are 100 steps more each."""
    times = iter([50.0, 75.0, 90.0, 110.0, 130.0])
    monkeypatch.setattr(progress.time, "perf_counter", lambda: next(times))
    with progress.Lines() as shown:
        shown.begin(500, 1)
        for step in (100, 200, 300, 400, 500):
            shown.advance(step)
    lines = ["500 steps, 1 seed", "step 300 of 500 (5 steps/s, 0:40 left)"]
    assert capsys.readouterr().out.splitlines() == lines


def test_evaluations_replace_the_lines_in_between(monkeypatch, capsys):
    times = iter([50.0, 75.0, 90.0, 110.0])
    monkeypatch.setattr(progress.time, "perf_counter", lambda: next(times))
    with progress.Lines() as shown:
        shown.begin(500, 2)
        for step in (100, 200, 300, 400):
            shown.advance(step)
            if step == 200:
                shown.evaluated(200, {"actor_sampled": 1.0})
    _, evaluated, between = capsys.readouterr().out.splitlines()
    assert evaluated.startswith("step 200: actor_sampled 1.00 (")
    assert between.startswith("step 400 of 500 (")


@pytest.mark.parametrize("made", ["file", "folder with files"])
def test_a_folder_of_other_files_is_not_trained_into(tmp_path, made):
    out = tmp_path / "out"
    if made == "file":
        out.touch()
        message = "is a file: choose a folder"
    else:
        out.mkdir()
        (out / "thesis.txt").write_text("mine")
        (out / "b.txt").touch()
        message = r"holds other files \(b.txt, ...\) and no run: choose an empty or a new folder"
    with pytest.raises(SystemExit, match=message):
        main([*TRAIN, "--out", str(out)])
    assert made == "file" or sorted(path.name for path in out.iterdir()) == ["b.txt", "thesis.txt"]


def test_leftovers_of_an_interrupted_start_are_not_in_the_way(tmp_path, capsys):
    for name in (".lock", ".gitkeep", "metrics.jsonl"):
        (tmp_path / name).touch()
    assert f"saved in {tmp_path}" in output([*TRAIN, "--out", str(tmp_path)], capsys)


@pytest.fixture
def one_episode(tmp_path):
    path = tmp_path / "one.npz"
    whole = data.load("treatment/cubic@1")
    data.save_npz(whole, path)
    return str(path)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--holdout", "0.2"], r"holdout=0.2 cannot be met: .* has one episode"),
        (["--batch-size", "1e12"], r"batch_size=10+ needs about [\d,]+ bytes of memory per seed"),
    ],
)
def test_what_the_log_or_the_memory_cannot_meet_is_one_line(one_episode, tmp_path, more, message):
    words = ["train", "bc", one_episode, "--steps", "2", "--set", "hidden=4,", "--out"]
    with pytest.raises(SystemExit, match=f"^fat2thin: {message}[^\n]*$"):
        main([*words, str(tmp_path / "run"), *more])
    assert not (tmp_path / "run").exists()


def test_a_batch_larger_than_the_log_gives_a_note(one_episode):
    options = {"steps": 1, "batch_size": 25, "settings_from": "default", "seeds": 1, "holdout": 0.0}
    _, note = choose_spec("bc", one_episode, None, {}, data.load, **options)
    assert note.startswith("batch_size=25 is larger than the log of 24 rows: rows are drawn with")
    _, note = choose_spec("bc", one_episode, None, {}, data.load, **options | {"batch_size": 24})
    assert note == ""


@pytest.mark.parametrize(
    "command",
    [
        ["evaluate"], ["show"], ["figures"], ["validate", "treatment/cubic"], ["verify"],
        ["report"], ["data", "info"], ["data", "check"],
        ["data", "convert", "out.npz"], ["train", "bc"],
    ],
    ids=" ".join,
)  # fmt: skip
@pytest.mark.parametrize("given", ["missing", "file", "empty folder"])
def test_every_command_fails_cleanly_without_its_input(command, given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if given == "file":
        (tmp_path / given).touch()
    if given == "empty folder":
        (tmp_path / given).mkdir()
    place = 2 if command[0] in ("data", "train") else 1
    with pytest.raises(SystemExit) as end:
        main([*command[:place], given, *command[place:]])
    if command == ["verify"] and given == "empty folder":  # a table of checks that failed
        assert end.value.code == 1
    else:
        assert end.value.code.startswith("fat2thin: ") and given in end.value.code
        assert "\n" not in end.value.code


def test_a_table_that_cannot_be_read_is_a_plain_message(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.csv").write_text("episode,obs,dose,reward\n1,0.5,0.1,1.0\n")
    for name, message in (("log.csv", "log.toml next to it must describe"), ("no.csv", r"no\.csv")):
        with pytest.raises(SystemExit, match=message):
            main(["train", "stand_in", name, "--steps", "1"])


def test_help_lists_the_commands_by_group(capsys, monkeypatch):
    """One line of at most 80 characters each, and no empty group."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    listed = {
        part.splitlines()[0]: re.findall(r"^  (\w+) +[A-Z].*\.$", part, re.MULTILINE)
        for part in text.split("\n\n")
        if part.partition("\n")[0].endswith(":")
    }
    groups = ["Data:", "Train:", "Judge:", "Deploy:", "Paper:"]
    assert [*listed] == [group for group in groups if group in listed]
    assert listed["Data:"] == ["data"] and listed["Train:"][0] == "train"
    assert "report" in listed["Judge:"] and "claims" in listed["Paper:"]
    assert all(listed.values())
    assert sorted(itertools.chain(*listed.values())) == sorted(app._subcommands)
    assert len(app._subcommands) < 25


def test_no_command_prints_the_commands_and_fails(capsys):
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code == 2
    assert "Train:" in capsys.readouterr().out


def test_the_version_is_printed(capsys):
    assert output(["--version"], capsys) == f"fat2thin {fat2thin.__version__}\n"


@pytest.mark.parametrize("words", ["--help", "published", "train --help"])
def test_a_reader_that_stops_early_is_no_error(words):
    command = f"{sys.executable} -m fat2thin {words} | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""
