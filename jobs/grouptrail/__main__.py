"""`grouptrail`, and `python -m grouptrail`."""

from __future__ import annotations

import signal


def main() -> None:
    """Run a command. Ctrl-C before it begins ends the process without a traceback."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from grouptrail.cli import main as run

    signal.signal(signal.SIGINT, handler)
    run()


if __name__ == "__main__":
    main()
