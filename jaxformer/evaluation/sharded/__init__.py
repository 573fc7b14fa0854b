"""Runs on many devices: compared with one device, predicted before they start, and started in several processes."""
