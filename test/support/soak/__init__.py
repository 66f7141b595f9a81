"""Run soaks: tests of promises that can be checked only over a long time."""
