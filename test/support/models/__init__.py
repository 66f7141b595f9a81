"""Models that tests make, or take from what exporters wrote."""
