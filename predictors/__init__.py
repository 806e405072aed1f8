"""The torch side. It meets `workbench` only in files and imports of it no more than `schema`, `geometry` and `units`."""
