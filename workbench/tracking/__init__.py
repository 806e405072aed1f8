"""Files result folders in MLflow. The folders are the source of truth; the store can be rebuilt from them at any time.

Nothing here runs during a timed region: runs write folders, and this package reads them afterwards. No other package imports
mlflow, and this one imports it late, because the import takes two seconds.
"""

from workbench.tracking.filing import Filed, rebuild, track
from workbench.tracking.locks import show
from workbench.tracking.store import Store, compare_link, curves_link, run_link

__all__ = ["Filed", "Store", "compare_link", "curves_link", "rebuild", "run_link", "show", "track"]
