"""Where bytes lie: ExpertMajor v2, PLE pages, codecs, pack, verify."""
