"""What is watched while a node runs: counts, statistics, delivery, silence."""
