"""Files: atomic writing, caches, checked reading of untrusted files and text, JSON."""
