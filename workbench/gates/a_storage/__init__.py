"""Gate A: what does this disk give, to which reader, at which size and depth?"""

from workbench.gates.a_storage.config import StorageConfig
from workbench.gates.a_storage.gate import GATE

__all__ = ["GATE", "StorageConfig"]
