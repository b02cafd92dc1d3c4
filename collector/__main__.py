"""Command line of `python -m collector` and `vecenv-collect`. Errors are reported in one line."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import Any

PROG = "python -m collector"
ABOUT = (
    "Collect whole episodes into a folder, and look at them. Ctrl-C and SIGTERM end a job cleanly; `resume` continues. "
    "Read the episodes with collector.Dataset(folder). Exit codes: 0 done, 1 failed or damaged, 2 wrong arguments or "
    "settings, 130 and 143 ended by a signal."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return the exit code. Raise SystemExit with 2 for invalid arguments, and with 0 after
    --help.
    """
    _prepare_streams()
    command, *arguments = (sys.argv[1:] if argv is None else argv) or ["--help"]
    try:
        import tyro

        from collector.jobs.commands import COMMANDS
        from collector.jobs.job import JobError
        from collector.jobs.player import JobFailedError
        from collector.store.safe_folder import DatasetError
    except ImportError as error:
        return _end(2, f"the command line needs {error.name}: pip install 'vecenv[job]'")
    options: Any = {"config": (tyro.conf.FlagCreatePairsOff,)}
    try:
        if command in COMMANDS:
            return int(tyro.cli(COMMANDS[command], prog=f"{PROG} {command}", args=arguments, **options))
        options |= {"prog": PROG, "description": ABOUT, "args": [command, *arguments]}
        return int(tyro.extras.subcommand_cli_from_dict(COMMANDS, **options))  # prints the help or an error
    except (JobFailedError, DatasetError) as error:
        return _end(1, str(error))
    except (JobError, ImportError) as error:
        return _end(2, str(error))
    except KeyboardInterrupt:
        return _end(130, "stopped immediately; committed episodes are kept")


def script() -> int:
    """Run `vecenv-collect`.

    Only commands that may import user code find modules in the current folder, which may be an untrusted data set.
    """
    if sys.argv[1:2] == ["run"] or any(each.startswith("--allow-import") for each in sys.argv):
        sys.path.insert(0, os.getcwd())
    return main()


def _prepare_streams() -> None:
    """Keep output from ending a job: discard output of closed streams, and escape characters that cannot be encoded.

    Free descriptors below 3 are filled, because a data file with descriptor 1 would get text that an env prints from C.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(fd, True)
    os.close(fd)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  kept open
        elif isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def _end(code: int, message: str) -> int:
    # An untrusted data set may put terminal escape sequences into a message.
    shown = "".join(each if each.isprintable() or each == "\n" else repr(each)[1:-1] for each in message)
    print(f"{PROG}: {shown}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
