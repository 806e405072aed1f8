"""The torch side: exchanges only files with `workbench`, and imports only `schema`, `geometry` and `units` of it."""
