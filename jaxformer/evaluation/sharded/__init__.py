"""Runs on many devices: compared with one device, and predicted before they start."""
