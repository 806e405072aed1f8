"""Files result folders in MLflow. The folders are the truth; the store can be rebuilt from them at any time.

Nothing here runs beside a timed region: runs write folders, and this package reads them afterwards. It is the only importer
of mlflow, and imports it late, because that takes two seconds.
"""

from workbench.tracking.filing import Filed, rebuild, track
from workbench.tracking.store import Store, compare_link, curves_link, run_link

__all__ = ["Filed", "Store", "compare_link", "curves_link", "rebuild", "run_link", "track"]
