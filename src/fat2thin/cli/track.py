"""The command that copies the values of a run to TensorBoard, Weights & Biases or trackio."""

from pathlib import Path
from typing import Annotated, Literal

import tyro

from fat2thin.terminal_text import plain_errors, printable


def track(
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")],
    /,
    to: Literal["tensorboard", "wandb", "trackio"],
    out: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None,
    project: str = "fat2thin",
    follow: bool = False,
) -> None:
    """Show a run in TensorBoard, W&B or trackio, also while it runs.

    Example: fat2thin track runs/x --to tensorboard --follow

    Metrics and evaluations are copied per seed; TensorBoard also gets their mean. Run the command
    again to send what is new. The run folder is only read.

    Args:
        folder: Run folder.
        to: Where to send the values. wandb works offline without WANDB_API_KEY (or WANDB_MODE).
        out: Folder for event files, or offline files of wandb, and for what was sent;
            tracking/SERVICE/RUN by default. trackio keeps its values in its own folder.
        project: Name of the project in wandb or trackio.
        follow: Continue until the run ends.
    """
    from fat2thin.report import tracking

    if to == "wandb" and tracking.wandb_is_offline():
        print("wandb: offline, because WANDB_API_KEY and WANDB_MODE are not set")
    with plain_errors(ValueError):
        tracking.track(
            folder, to, out, project=project, follow=follow,
            show=lambda line: print(printable(line), flush=True),
        )  # fmt: skip
