"""Wavefront Workbench: which SSD reads of a mixture-of-experts model can be hidden behind compute, and which mechanism pays?"""

__version__ = "0.1.0"
