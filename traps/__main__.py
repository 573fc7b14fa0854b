"""Write docs/traps/*.md anew: `python -m traps`."""

from traps.pages import main

if __name__ == "__main__":
    main()
