"""Tools to test collectors and data sets of your own.

>>> from collector import SyncDataCollector
>>> check_collector(SyncDataCollector)
"""

from collector.testing.check_collector import CHECKS, check_collector
from collector.testing.check_data_set import check_data_set

__all__ = ["CHECKS", "check_collector", "check_data_set"]
