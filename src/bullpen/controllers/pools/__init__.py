"""Pools: keeps ExporterSets as declared."""
