"""Makes the fakes of this folder importable from the folders below."""
