"""Curves as PNG, with the `viz` extra."""

from importlib.util import find_spec

from jaxformer.training.runs import RunFolder


def plot_losses(run: RunFolder) -> str | None:
    """Write loss.png from the run's metrics; its name, or None without matplotlib."""
    if find_spec("matplotlib") is None:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for name in ("loss", "train_loss", "val_loss"):
        points = [(line["step"], line[name]) for line in run.metrics if name in line]
        if points:
            axes.plot(*zip(*points, strict=True), marker=".", label={"loss": "batch loss"}.get(name, name.replace("_", " ")))
    axes.set(xlabel="optimizer step", ylabel="cross-entropy (nats a token)", title=run.path.name)
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(run.path / "loss.png", dpi=120)
    return "loss.png"
