"""`grouptrail`, and `python -m grouptrail`."""

from __future__ import annotations

from grouptrail.console.signals import interrupted_silently


def main() -> None:
    """Run a command. Ctrl-C before it begins ends the process without a traceback."""
    with interrupted_silently():
        from grouptrail.cli import command

        run = command()
    run(prog_name="grouptrail")


if __name__ == "__main__":
    main()
