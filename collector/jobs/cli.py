"""`python -m collector` and `vecenv-collect`: which command runs, and the exit code of what ends it."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Sequence

PROG = "python -m collector"
EPILOG = (
    "Ctrl-C and SIGTERM end a job cleanly; `resume` goes on. Read the episodes with collector.Dataset(folder). Exit "
    "codes: 0 done, 1 failed or damaged, 2 wrong arguments or settings, 130 and 143 ended by a signal."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line, and return the exit code. SystemExit with 2 for wrong arguments, with 0 after --help."""
    command, *arguments = (sys.argv[1:] if argv is None else argv) or ["--help"]
    try:
        import tyro

        from collector.jobs.commands import COMMANDS
        from collector.jobs.job import JobError
        from collector.jobs.playing import JobFailedError
        from collector.store.safe_folder import DatasetError
    except ImportError as error:
        return _end(2, f"the command line needs {error.name}: pip install 'vecenv[job]'")
    if command in ("-h", "--help"):
        lines = (f"  {name:8} {str(each.__doc__).splitlines()[0]}" for name, each in COMMANDS.items())
        help = [f"usage: {PROG} COMMAND ...\n", "Collect whole episodes into a folder, and look at them.\n", *lines]
        sys.stdout.write("\n".join([*help, "", f"{PROG} COMMAND --help has the arguments of one.", EPILOG]) + "\n")
        return 0
    if command not in COMMANDS:
        close = difflib.get_close_matches(command, COMMANDS, n=1)
        if command.startswith("-"):
            hint = f"the flags of a job come after run: {PROG} run {command} ..."
        else:
            hint = f"did you mean {close[0]}?" if close else f"begin with one of {', '.join(COMMANDS)}"
        return _end(2, f"{command!r} is no command; {hint}")
    try:
        config = (tyro.conf.FlagCreatePairsOff,)
        return int(tyro.cli(COMMANDS[command], prog=f"{PROG} {command}", args=arguments, config=config))
    except JobFailedError as error:
        return _end(1, str(error))
    except (JobError, ImportError) as error:
        return _end(2, str(error))
    except DatasetError as error:
        return _end(1, str(error))
    except KeyboardInterrupt:
        return _end(130, "stopped at once; episodes committed before are kept")


def script() -> int:
    """`vecenv-collect`: as `python -m collector`, with modules of the current folder where a command may name some.

    Elsewhere they are not found: the folder may be that of a data set, which comes from anybody.
    """
    if sys.argv[1:2] in (["run"], ["tune"]) or any(each.startswith("--allow-import") for each in sys.argv):
        sys.path.insert(0, os.getcwd())
    return main()


def _end(code: int, message: str) -> int:
    print(f"{PROG}: {message}", file=sys.stderr)
    return code
