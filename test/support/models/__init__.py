"""Make models for tests, and read models that exporters wrote."""
