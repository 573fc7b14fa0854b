"""Probes that hide no bug: excited parameters and adversarial inputs."""
