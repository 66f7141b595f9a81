"""Models that tests make, or that exporters wrote."""
