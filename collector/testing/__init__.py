"""Tools to test collectors and data sets of your own.

>>> from collector import SyncDataCollector
>>> check_collector(SyncDataCollector)
"""

from collector.testing.check_collector import COLLECTOR_CHECKS, check_collector
from collector.testing.check_data_set import check_data_set

__all__ = ["COLLECTOR_CHECKS", "check_collector", "check_data_set"]
