"""Every parameter: table, checks, values for one camera, YAML sections, launch arguments."""
