"""A report as people look at it: in the terminal, as Markdown, as one HTML page."""
