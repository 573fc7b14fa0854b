"""Comparison reports: data, text, Markdown, JSON, HTML and plots."""
