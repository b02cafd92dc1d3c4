"""`Reporting`: levels of loggers and warning filters of the parent, which its workers use too."""

from __future__ import annotations

import logging
import re
import sys
import warnings
from dataclasses import dataclass
from typing import Any


@dataclass
class Reporting:
    levels: dict[str, int]
    """Levels that are set, by logger. The root logger's name is ""."""
    disabled: int
    """Argument of the last call of `logging.disable`."""
    filters: list[Any]
    """Action, message, module and name of the category, module, line. The last filter takes precedence."""

    @classmethod
    def of_this_process(cls) -> Reporting:
        levels = {name: getattr(each, "level", 0) for name, each in logging.root.manager.loggerDict.copy().items()}
        levels = {"": logging.root.level, **{name: level for name, level in levels.items() if level}}
        filters: list[Any] = warnings.filters  # type: ignore[assignment]
        found = [
            (action, _pattern(message), category.__module__, category.__qualname__, _pattern(module), line)
            for action, message, category, module, line in reversed(filters)
        ]
        return cls(levels, logging.root.manager.disable, found)

    def apply(self) -> None:
        for name, level in self.levels.items():
            logging.getLogger(name).setLevel(level)
        logging.disable(self.disabled)
        self.apply_filters(raises=False)

    def apply_filters(self, raises: bool) -> None:
        """Replace the filters of this process. Skip filters for classes of modules that it has not imported.

        raises: False shows a warning instead of raising an error. A worker imports modules again, and the program may
            have imported these modules before it set the filter.
        """
        warnings.resetwarnings()
        for action, message, where, name, module, line in self.filters:
            category = getattr(sys.modules.get(where), name, None)
            if isinstance(category, type) and issubclass(category, Warning):
                chosen: Any = "default" if action == "error" and not raises else action
                warnings.filterwarnings(chosen, message, category, module, line)


def _pattern(value: str | re.Pattern[str] | None) -> str:
    return value.pattern if isinstance(value, re.Pattern) else value or ""
