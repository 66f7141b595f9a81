"""Report pages: HTML files that contain their pictures, style and script."""
