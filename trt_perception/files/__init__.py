"""Files: atomic writing, caches, checked reading of untrusted files, sections of JSON."""
